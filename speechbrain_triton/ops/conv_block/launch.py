"""Launchers of the gated linear unit, and of the block around it."""

from typing import NamedTuple

import torch

from speechbrain_triton.ops.conv_block.kernels import (
    glu_grad_kernel,
    glu_kernel,
)
from speechbrain_triton.ops.depthwise_conv1d.geometry import Geometry
from speechbrain_triton.ops.depthwise_conv1d.launch import (
    launch_conv,
    launch_weight_grad,
)
from speechbrain_triton.ops.launcher import Launcher
from speechbrain_triton.ops.layer_norm.launch import (
    launch_layer_norm,
    launch_layer_norm_grad,
)
from speechbrain_triton.ops.reduction import ColumnSums
from speechbrain_triton.ops.sizes import cdiv, next_power_of_2

_glu = Launcher(glu_kernel)
_glu_grad = Launcher(glu_grad_kernel)

ROWS = 4
MAX_BLOCK = 512
NUM_WARPS = 4


def launch_glu(
    h: torch.Tensor, bias: torch.Tensor | None, B: int, T: int
) -> torch.Tensor:
    """Gate h (..., 2 C), of B T rows, after adding the bias (2 C,).

    Returns
    -------
    torch.Tensor
        (B, T, C) in h's dtype.
    """
    C = h.shape[-1] // 2
    g = h.new_empty((B, T, C))
    if g.numel() == 0:
        return g
    block = _columns(C)
    _glu(
        (cdiv(B * T, ROWS), cdiv(C, block)),
        (h.contiguous(), None if bias is None else bias.contiguous(), g),
        (B * T,),
        (C, ROWS, block, bias is not None),
        NUM_WARPS,
    )
    return g


def launch_glu_grad(
    dg: torch.Tensor,
    h: torch.Tensor,
    bias: torch.Tensor | None,
    sums: ColumnSums,
    column: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of h, and g anew; the bias's gradient goes to ``sums``.

    Arguments
    ---------
    dg : torch.Tensor
        (B, T, C), contiguous, not empty; g is written over it.
    h : torch.Tensor
        (..., 2 C), as many rows.
    bias : torch.Tensor, optional
        (2 C,).
    sums : ColumnSums
        Over the rows of h: takes the gradient of the bias (2 C).
    column : int
        Where in ``sums`` it begins.

    Returns
    -------
    tuple of torch.Tensor
        dh (..., 2 C) and g (B, T, C), both in h's dtype.
    """
    h = h.contiguous()
    dh = torch.empty_like(h)
    C = dg.shape[2]
    block = _columns(C)
    _glu_grad(
        (sums.programs, cdiv(C, block)),
        (
            dg,
            h,
            None if bias is None else bias.contiguous(),
            dh,
            dg,
            sums.partial,
        ),
        (dg.numel() // C, sums.rows_per_program),
        (C, ROWS, block, column, sums.width, bias is not None),
        NUM_WARPS,
    )
    return dh, dg


def _columns(C: int) -> int:
    return min(MAX_BLOCK, next_power_of_2(C))


class BlockParameters(NamedTuple):
    """Parameters of the block, in any floating dtype; biases may be None."""

    weight: torch.Tensor  # (C, 1, K)
    bias: torch.Tensor | None  # (C,)
    norm_weight: torch.Tensor  # (C,)
    norm_bias: torch.Tensor  # (C,)
    glu_bias: torch.Tensor | None  # (2 C,)


class BlockOptions(NamedTuple):
    """What a block does besides its parameters."""

    geometry: Geometry
    eps: float
    activation: str


def launch_block(
    h: torch.Tensor,
    B: int,
    parameters: BlockParameters,
    options: BlockOptions,
    left_context: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gate h, convolve, normalise, activate.

    Arguments
    ---------
    h : torch.Tensor
        (B, T, 2 C), or its rows (B T, 2 C).
    B : int
        Utterances.
    parameters : BlockParameters
        As they are.
    options : BlockOptions
        Likewise.
    left_context : torch.Tensor, optional
        (B, L, C), the gated frames before h.

    Returns
    -------
    tuple of torch.Tensor
        The result, in rows if h is; the convolution's output u and its input
        g, in h's dtype; (B, T_out, C), g (B, T, C). Backward needs h and u:
        3 C elements a frame, 6 C bytes in half precision. g and the normalised
        u are cheaper to compute again than to keep.
    """
    weight, bias, norm_weight, norm_bias, glu_bias = parameters
    geometry, eps, activation = options
    g = launch_glu(h, glu_bias, B, geometry.T_in)
    u = launch_conv(g, weight, bias, geometry, left_context=left_context)
    _, T, C = u.shape
    z = launch_layer_norm(
        u,
        norm_weight,
        norm_bias,
        eps,
        activation,
        u.dtype,
        (B, T, C) if h.dim() == 3 else (B * T, C),
    )
    return z, u, g


def launch_block_grad(
    dz: torch.Tensor,
    h: torch.Tensor,
    u: torch.Tensor,
    parameters: BlockParameters,
    options: BlockOptions,
    sums: ColumnSums,
    column: int = 0,
    extra: torch.Tensor | None = None,
    convolution: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Gradients of the block.

    Arguments
    ---------
    dz : torch.Tensor
        Gradient of the result, not empty; also in rows.
    h, u : torch.Tensor
        The input, as in forward, and the convolution's output.
    parameters : BlockParameters
        As in forward.
    options : BlockOptions
        As in forward.
    sums : ColumnSums
        Over the rows of h: takes the gradients of glu_bias (2 C),
        norm_weight (C), norm_bias (C) and, if given, the column sums of
        ``extra`` (C).
    column : int
        Where in ``sums`` they begin.
    extra : torch.Tensor, optional
        (B, T_out, C), also in rows.
    convolution : bool
        Whether the gradients of weight and bias are wanted.

    Returns
    -------
    tuple of torch.Tensor
        Gradients of h, weight and bias, in their dtypes.
    """
    weight, bias, norm_weight, norm_bias, glu_bias = parameters
    geometry, eps, activation = options
    C = u.shape[2]
    du = launch_layer_norm_grad(
        u,
        norm_weight,
        norm_bias,
        dz,
        eps,
        activation,
        sums,
        column + 2 * C,
        extra,
    )
    dg = launch_conv(du, weight, None, geometry, transposed=True)
    dh, g = launch_glu_grad(dg, h, glu_bias, sums, column)
    if not convolution:
        return dh, None, None
    dweight, dbias = launch_weight_grad(g, du, weight, bias, geometry)
    return dh, dweight, dbias
