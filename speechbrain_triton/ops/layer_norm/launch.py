"""Launchers: allocate outputs, choose configs by rule, start the kernels."""

import functools

import torch

from speechbrain_triton.ops.launcher import PLANS, Launcher
from speechbrain_triton.ops.layer_norm.kernels import (
    layer_norm_grad_kernel,
    layer_norm_kernel,
)
from speechbrain_triton.ops.reduction import ColumnSums
from speechbrain_triton.ops.sizes import cdiv, next_power_of_2

_layer_norm = Launcher(layer_norm_kernel)
_layer_norm_grad = Launcher(layer_norm_grad_kernel)

# Elements of a program's tile: 16 a thread of one warp forward, of four
# backward, where each program keeps sums over its rows. From a sweep on an
# H200 at 25600 rows of 512.
FORWARD_TILE = 512
BACKWARD_TILE = 2048


def launch_layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    activation: str,
    dtype: torch.dtype,
    shape: tuple[int, ...] | None = None,
) -> torch.Tensor:
    """Normalise the rows of x (..., C) and apply the activation.

    Returns
    -------
    torch.Tensor
        Of x's shape, or another ``shape`` of as many rows; contiguous, in
        ``dtype``.
    """
    if shape is None:
        shape = x.shape
    y = torch.empty(shape, dtype=dtype, device=x.device)
    n = x.numel()
    if n == 0:
        return y
    C = shape[-1]
    programs, rows, block, warps = _forward_split(n // C, C)
    _layer_norm(
        (programs, 1),
        (x.contiguous(), weight.contiguous(), bias.contiguous(), y),
        (n // C, rows, eps),
        (C, rows, block, activation),
        warps,
    )
    return y


@functools.lru_cache(PLANS)
def _forward_split(n_rows: int, C: int) -> tuple[int, int, int, int]:
    """Programs, rows of each, its tile's columns and warps."""
    block = next_power_of_2(C)
    rows = max(1, FORWARD_TILE // block)
    return cdiv(n_rows, rows), rows, block, _warps(block, FORWARD_TILE, 1)


def launch_layer_norm_grad(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    dy: torch.Tensor,
    eps: float,
    activation: str,
    sums: ColumnSums,
    column: int = 0,
    extra: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gradient of x; those of weight and bias go to ``sums``.

    Arguments
    ---------
    x, dy : torch.Tensor
        (..., C), with as many rows as each other, at least one.
    weight, bias : torch.Tensor
        (C,).
    eps : float
        Added to the variance.
    activation : str
        As in forward.
    sums : ColumnSums
        Over the rows of x: takes the gradients of weight and bias (2 C).
    column : int
        Where in ``sums`` they begin.
    extra : torch.Tensor, optional
        (..., C) of which the column sums are wanted too, behind the others.

    Returns
    -------
    torch.Tensor
        Of x's shape and dtype, contiguous.
    """
    x = x.contiguous()
    dx = torch.empty_like(x)
    C = x.shape[-1]
    rows, block, warps = _backward_tile(C)
    _layer_norm_grad(
        (sums.programs, 1),
        (
            x,
            weight.contiguous(),
            bias.contiguous(),
            dy.contiguous(),
            dx,
            extra,
            sums.partial,
        ),
        (x.numel() // C, sums.rows_per_program, eps),
        (
            C,
            rows,
            block,
            activation,
            column,
            sums.width,
            extra is not None,
        ),
        warps,
    )
    return dx


@functools.lru_cache(PLANS)
def _backward_tile(C: int) -> tuple[int, int, int]:
    """Rows and columns of a program's tile, and its warps."""
    block = next_power_of_2(C)
    rows = max(1, BACKWARD_TILE // block)
    return rows, block, _warps(block, BACKWARD_TILE, 4)


def _warps(block: int, tile: int, fewest: int) -> int:
    """More warps where a single row is larger than the tile."""
    return min(16, fewest * max(1, block // tile))
