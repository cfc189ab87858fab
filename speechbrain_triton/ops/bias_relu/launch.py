"""Launchers: allocate outputs, choose configs by rule, start the kernels."""

import torch

from speechbrain_triton.ops.bias_relu.kernels import (
    bias_relu_grad_kernel,
    bias_relu_kernel,
)
from speechbrain_triton.ops.launcher import Launcher
from speechbrain_triton.ops.reduction import ColumnSums
from speechbrain_triton.ops.sizes import cdiv, next_power_of_2

_bias_relu = Launcher(bias_relu_kernel)
_bias_relu_grad = Launcher(bias_relu_grad_kernel)

# A program's tile: 16 elements a thread.
ROWS = 8
MAX_BLOCK = 256
NUM_WARPS = 4


def launch_bias_relu(
    x: torch.Tensor, bias: torch.Tensor, lengths: torch.Tensor | None
) -> torch.Tensor:
    """Add the bias (C,) to x (B, T, F, C), rectify, mask.

    Returns
    -------
    torch.Tensor
        Of x's shape and dtype, contiguous.
    """
    x, bias = x.contiguous(), bias.contiguous()
    y = torch.empty_like(x)
    if y.numel() == 0:
        return y
    _, T, F, C = x.shape
    n_rows = x.numel() // C
    block = min(MAX_BLOCK, next_power_of_2(C))
    _bias_relu(
        (cdiv(n_rows, ROWS), cdiv(C, block)),
        (x, bias, lengths, y),
        (n_rows, T, F),
        (C, ROWS, block, lengths is not None),
        NUM_WARPS,
    )
    return y


def launch_bias_relu_grad(
    dy: torch.Tensor, y: torch.Tensor, sums: ColumnSums, column: int = 0
) -> torch.Tensor:
    """Gradient of x; that of the bias goes to ``sums``.

    Arguments
    ---------
    dy : torch.Tensor
        Of y's shape.
    y : torch.Tensor
        From forward, (B, T, F, C), not empty.
    sums : ColumnSums
        Takes the gradient of the bias (C).
    column : int
        Where in ``sums`` it begins.

    Returns
    -------
    torch.Tensor
        dx in y's dtype, contiguous.
    """
    dy = dy.contiguous()
    dx = torch.empty_like(y)
    C = y.shape[3]
    n_rows = y.numel() // C
    block = min(MAX_BLOCK, next_power_of_2(C))
    _bias_relu_grad(
        (sums.programs, cdiv(C, block)),
        (dy, y, dx, sums.partial),
        (n_rows, sums.share(n_rows)),
        (C, ROWS, block, column, sums.width),
        NUM_WARPS,
    )
    return dx
