"""Launchers: allocate outputs, choose configs by rule, start the kernels."""

import math
from typing import NamedTuple

import torch

from speechbrain_triton.ops.depthwise_conv1d.geometry import Geometry
from speechbrain_triton.ops.depthwise_conv1d.kernels import (
    conv_kernel,
    reduce_partials_kernel,
    weight_grad_kernel,
)
from speechbrain_triton.ops.launcher import Launcher
from speechbrain_triton.ops.sizes import cdiv

_conv = Launcher(conv_kernel)
_weight_grad = Launcher(weight_grad_kernel)
_reduce_partials = Launcher(reduce_partials_kernel)


class Config(NamedTuple):
    """Launch shape of the row-walking kernels.

    ``tile`` output rows are held at a time, ``lanes`` channels by each warp.
    """

    tile: int
    lanes: int
    num_warps: int


# 64 channels a warp make 4-byte loads of bfloat16 and fill 128 registers of a
# thread at K=31; with more taps a thread must be content with one channel.
CONV = Config(tile=16, lanes=64, num_warps=4)
CONV_MANY_TAPS = Config(tile=16, lanes=32, num_warps=4)
GRAD = Config(tile=16, lanes=64, num_warps=1)
GRAD_MANY_TAPS = Config(tile=16, lanes=32, num_warps=1)
MANY_TAPS = 33

# Warps that a launch aims at: fewer tiles a program balance the load, more
# spare loads of the taps (forward) and partial sums (weight gradient). From a
# sweep on an H200 at (64, 400, 512). Constants, so that the order of a sum
# does not depend on the card.
CONV_WARPS = 8192
GRAD_WARPS = 1440


GRAINS = (8, 4, 1)


def taps_of(weight: torch.Tensor) -> torch.Tensor:
    """Lay a weight (C, 1, K) out as (K, C), channels contiguous."""
    return weight.squeeze(1).t().contiguous()


def launch_conv(
    x: torch.Tensor,
    taps: torch.Tensor,
    bias: torch.Tensor | None,
    geometry: Geometry,
    transposed: bool = False,
) -> torch.Tensor:
    """Run the convolution, or its transpose, over (B, T, C).

    Arguments
    ---------
    x : torch.Tensor
        (B, T_in, C); transposed, the output's gradient (B, T_out, C).
    taps : torch.Tensor
        (K, C) contiguous, of any floating dtype.
    bias : torch.Tensor, optional
        (C,), of any floating dtype and stride.
    geometry : Geometry
        Of the forward pass, also when transposed.
    transposed : bool
        Compute the gradient of the input.

    Returns
    -------
    torch.Tensor
        (B, T_out, C), transposed (B, T_in, C), contiguous, in x's dtype.
    """
    B, rows_in, C = x.shape
    K = taps.shape[0]
    rows_out = geometry.T_in if transposed else geometry.T_out
    pad = K - 1 - geometry.pad if transposed else geometry.pad
    y = x.new_empty((B, rows_out, C))
    if y.numel() == 0:
        return y

    x = _rows(x)
    bias = None if bias is None else bias.contiguous()
    config = CONV if K < MANY_TAPS else CONV_MANY_TAPS
    if C % (config.lanes * config.num_warps):
        # Few lanes of a small block are idle.
        config = config._replace(num_warps=1)
    block = config.lanes * config.num_warps
    tiles_per_row = cdiv(rows_out, config.tile)
    n_tiles = B * tiles_per_row
    n_blocks = cdiv(C, block)
    tiles_per_program = cdiv(n_tiles * n_blocks * config.num_warps, CONV_WARPS)
    grid = (cdiv(n_tiles, tiles_per_program), n_blocks)
    _conv(
        grid,
        (x, taps, bias, y),
        (
            rows_in,
            rows_out,
            n_tiles,
            tiles_per_row,
            tiles_per_program,
            pad,
            geometry.shift,
            geometry.chunk,
            x.stride(0) // C,
        ),
        (
            C,
            K,
            config.tile,
            block,
            transposed,
            bias is not None,
            _grain(config.tile, geometry, transposed),
        ),
        config.num_warps,
    )
    return y


def launch_weight_grad(
    x: torch.Tensor,
    dy: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    geometry: Geometry,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Gradients of weight and bias, summed in float32 in a fixed order.

    Arguments
    ---------
    x : torch.Tensor
        (B, T_in, C).
    dy : torch.Tensor
        Gradient of the output, (B, T_out, C).
    weight : torch.Tensor
        (C, 1, K), for its shape and dtype.
    bias : torch.Tensor, optional
        (C,), for its dtype.
    geometry : Geometry
        Of the forward pass.

    Returns
    -------
    tuple of torch.Tensor
        Gradients of weight (C, 1, K) and bias (C,), in their dtypes.
    """
    B, _, C = x.shape
    K = weight.shape[2]
    dweight = torch.empty((C, 1, K), dtype=weight.dtype, device=x.device)
    dbias = None if bias is None else torch.empty_like(bias)
    if x.numel() == 0 or dy.numel() == 0:
        return dweight.zero_(), None if dbias is None else dbias.zero_()

    x, dy = _rows(x), _rows(dy)
    config = GRAD if K < MANY_TAPS else GRAD_MANY_TAPS
    block, groups = config.lanes, config.num_warps
    tiles_per_row = cdiv(geometry.T_out, config.tile)
    n_tiles = B * tiles_per_row
    n_blocks = cdiv(C, block)
    tiles_per_group = cdiv(n_tiles * n_blocks, GRAD_WARPS)
    n_partials = cdiv(n_tiles, tiles_per_group * groups)
    partial = torch.empty(
        (n_partials, K + 1, C), dtype=torch.float32, device=x.device
    )
    _weight_grad(
        (n_partials, n_blocks),
        (x, dy, partial),
        (
            geometry.T_in,
            geometry.T_out,
            n_tiles,
            tiles_per_row,
            tiles_per_group,
            geometry.pad,
            geometry.shift,
            geometry.chunk,
            x.stride(0) // C,
            dy.stride(0) // C,
        ),
        (
            C,
            K,
            config.tile,
            groups,
            block,
            _grain(config.tile, geometry, False),
        ),
        config.num_warps,
    )
    _reduce_partials(
        (K + 1, cdiv(C, 32)),
        (partial, dweight, dbias),
        (n_partials,),
        (C, K, 32, 32, bias is not None),
        4,
    )
    return dweight, dbias


def _grain(tile: int, geometry: Geometry, transposed: bool) -> int:
    """Rows of a tile that surely lie in one chunk; 0 for full context.

    Few values, since each is a variant to compile.
    """
    if geometry.chunk == 0:
        return 0
    offset = geometry.shift if transposed else 0
    common = math.gcd(tile, geometry.chunk, offset)
    return next(grain for grain in GRAINS if common % grain == 0)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Frames must follow each other; utterances may lie anywhere."""
    C = x.shape[2]
    dense = x.stride(2) == 1 and x.stride(1) == C and x.stride(0) % C == 0
    return x if dense else x.contiguous()
