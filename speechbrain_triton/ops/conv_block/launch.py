"""Launchers of the gated linear unit."""

import torch

from speechbrain_triton.ops.conv_block.kernels import (
    glu_grad_kernel,
    glu_kernel,
)
from speechbrain_triton.ops.launcher import Launcher
from speechbrain_triton.ops.reduction import ROW_PROGRAMS, sum_partials
from speechbrain_triton.ops.sizes import cdiv, next_power_of_2

_glu = Launcher(glu_kernel)
_glu_grad = Launcher(glu_grad_kernel)

ROWS = 4
MAX_BLOCK = 512
NUM_WARPS = 4


def launch_glu(h: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Gate h (B, T, 2 C), after adding the bias (2 C,).

    Returns
    -------
    torch.Tensor
        (B, T, C) in h's dtype.
    """
    B, T, width = h.shape
    C = width // 2
    g = h.new_empty((B, T, C))
    if g.numel() == 0:
        return g
    h = h.contiguous()
    bias = None if bias is None else bias.contiguous()
    block = min(MAX_BLOCK, next_power_of_2(C))
    _glu(
        (cdiv(B * T, ROWS), cdiv(C, block)),
        (h, bias, g),
        (B * T,),
        (C, ROWS, block, bias is not None),
        NUM_WARPS,
    )
    return g


def launch_glu_grad(
    dg: torch.Tensor, h: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Gradients of h and bias; g is computed anew on the way.

    Returns
    -------
    tuple of torch.Tensor
        dh (B, T, 2 C), g (B, T, C), both in h's dtype, and dbias (2 C,) in
        float32 or None.
    """
    B, T, C = dg.shape
    h = h.contiguous()
    bias = None if bias is None else bias.contiguous()
    dh, g = torch.empty_like(h), torch.empty_like(dg)
    if dg.numel() == 0:
        dbias = None if bias is None else torch.zeros(2 * C, device=h.device)
        return dh, g, dbias
    block = min(MAX_BLOCK, next_power_of_2(C))
    n_blocks = cdiv(C, block)
    steps = cdiv(B * T * n_blocks, ROW_PROGRAMS * ROWS)
    programs = cdiv(B * T, steps * ROWS)
    partial = None
    if bias is not None:
        partial = torch.empty(
            (programs, 2 * C), dtype=torch.float32, device=h.device
        )
    _glu_grad(
        (programs, n_blocks),
        (dg, h, bias, dh, g, partial),
        (B * T, steps * ROWS),
        (C, ROWS, block, bias is not None),
        NUM_WARPS,
    )
    dbias = None if bias is None else sum_partials(partial)
    return dh, g, dbias
