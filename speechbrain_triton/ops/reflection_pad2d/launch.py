"""Launchers: allocate outputs, choose configs by rule, start the kernels."""

import functools

import torch

from speechbrain_triton.ops.launcher import PLANS, Launcher
from speechbrain_triton.ops.reflection_pad2d.kernels import (
    reflect_grad_kernel,
    reflect_kernel,
)
from speechbrain_triton.ops.sizes import cdiv, next_power_of_2

_reflect = Launcher(reflect_kernel)
_reflect_grad = Launcher(reflect_grad_kernel)

# A program's tile: 16 elements a thread.
TILE = 2048
MAX_BLOCK_C = 256
NUM_WARPS = 4


def launch_reflect(
    x: torch.Tensor, pad: tuple[int, int], dtype: torch.dtype
) -> torch.Tensor:
    """Pad x (B, T, F, C) by ``pad`` frames and bins on each side.

    Returns
    -------
    torch.Tensor
        (B, T + 2 pad[0], F + 2 pad[1], C) in ``dtype``, contiguous.
    """
    B, T, F, C = x.shape
    shape = B, T + 2 * pad[0], F + 2 * pad[1], C
    y = torch.empty(shape, dtype=dtype, device=x.device)
    if y.numel():
        blocks, constants = _split(shape[2], C)
        _reflect(
            (B * shape[1], blocks),
            (x.contiguous(), y),
            (T, F),
            (*pad, *constants),
            NUM_WARPS,
        )
    return y


def launch_reflect_grad(
    dy: torch.Tensor, pad: tuple[int, int], dtype: torch.dtype
) -> torch.Tensor:
    """Transpose of :func:`launch_reflect`: dx (B, T, F, C) in ``dtype``."""
    B, T, F, C = dy.shape
    T, F = T - 2 * pad[0], F - 2 * pad[1]
    dx = torch.empty((B, T, F, C), dtype=dtype, device=dy.device)
    if dx.numel():
        blocks, constants = _split(F, C)
        _reflect_grad(
            (B * T, blocks),
            (dy.contiguous(), dx),
            (T, F),
            (*pad, *constants),
            NUM_WARPS,
        )
    return dx


@functools.lru_cache(PLANS)
def _split(F: int, C: int) -> tuple[int, tuple[int, int, int]]:
    """Programs for the bins of a frame; channels, and the tile of each."""
    block_c = min(MAX_BLOCK_C, next_power_of_2(C))
    block_f = min(TILE // block_c, next_power_of_2(F))
    return cdiv(F, block_f), (C, block_f, block_c)
