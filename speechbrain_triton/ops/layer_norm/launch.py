"""Launchers: allocate outputs, choose configs by rule, start the kernels."""

import torch

from speechbrain_triton.ops.launcher import Launcher
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
) -> torch.Tensor:
    """Normalise the rows of x (..., C) and apply the activation.

    Returns
    -------
    torch.Tensor
        Of x's shape, contiguous, in ``dtype``.
    """
    x, weight, bias = (t.contiguous() for t in (x, weight, bias))
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    if y.numel() == 0:
        return y
    C = x.shape[-1]
    block = next_power_of_2(C)
    rows = max(1, FORWARD_TILE // block)
    n_rows = x.numel() // C
    _layer_norm(
        (cdiv(n_rows, rows), 1),
        (x, weight, bias, y),
        (n_rows, rows, eps),
        (C, rows, block, activation),
        _warps(block, FORWARD_TILE, 1),
    )
    return y


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
        (..., C), with at least one row.
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
    x, weight, bias, dy = (t.contiguous() for t in (x, weight, bias, dy))
    C = x.shape[-1]
    dx = torch.empty_like(x)
    block = next_power_of_2(C)
    rows = max(1, BACKWARD_TILE // block)
    _layer_norm_grad(
        (sums.programs, 1),
        (x, weight, bias, dy, dx, extra, sums.partial),
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
        _warps(block, BACKWARD_TILE, 4),
    )
    return dx


def _warps(block: int, tile: int, fewest: int) -> int:
    """More warps where a single row is larger than the tile."""
    return min(16, fewest * max(1, block // tile))
