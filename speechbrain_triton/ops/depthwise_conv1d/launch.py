"""Launchers: allocate outputs, choose configs by rule, start the kernels."""

import functools
import math
from typing import NamedTuple

import torch

from speechbrain_triton.ops.depthwise_conv1d.geometry import Geometry
from speechbrain_triton.ops.depthwise_conv1d.kernels import (
    conv_kernel,
    reduce_partials_kernel,
    weight_grad_kernel,
)
from speechbrain_triton.ops.launcher import PLANS, Launcher
from speechbrain_triton.ops.sizes import cdiv

_conv = Launcher(conv_kernel)
_weight_grad = Launcher(weight_grad_kernel)
_reduce_partials = Launcher(reduce_partials_kernel)


# Words of a row that a program holds, as one warp, and output rows. More taps
# than MAX_TILED_TAPS do not fit into registers, whatever the tile: a smaller
# one halves the time to compile.
LANES = 32
TILE = 16
MAX_TILED_TAPS = 64

# With more taps, two channels a thread do not fit into its registers.
MAX_PACKED_TAPS = 33

# Warps that a launch aims at: two for each scheduler of an H200, as many as
# the weight gradient's registers allow. A constant, so that the order of a
# sum does not depend on the card. A convolution whose taps take few registers
# has twice as many: with 9 taps 16.6 us become of 20.3, at 31 taps in float32
# 35 of 43.
WARPS = 1056
FEW_TAPS = 32

GRAINS = (8, 4, 1)


class Split(NamedTuple):
    """How the rows of a batch are shared out.

    Utterances are cut into spans of equal length; where they are more than
    enough, a program of the weight gradient takes several.
    """

    spans_per_row: int
    frames_per_span: int
    spans_per_program: int


def _split(B: int, T: int, n_blocks: int, tile: int, aim: int = WARPS) -> Split:
    tiles = cdiv(T, tile)
    warps = B * n_blocks
    spans = min(max(round(aim / warps), 1), tiles)
    frames_per_span = cdiv(tiles, spans) * tile
    return Split(
        spans_per_row=cdiv(T, frames_per_span),
        frames_per_span=frames_per_span,
        spans_per_program=max(round(warps / aim), 1),
    )


class Plan(NamedTuple):
    """What a launch on tensors of known shapes takes besides the tensors."""

    grid: tuple[int, int]
    numbers: tuple[int, ...]
    tile: int
    grain: int


@functools.lru_cache(PLANS)
def _conv_plan(
    B: int,
    C: int,
    K: int,
    pack: int,
    geometry: Geometry,
    transposed: bool,
    aim: int,
) -> Plan:
    T_in, T_out, pad, shift, chunk = geometry
    phase = 0
    if transposed:
        T_in, T_out, pad = T_out, T_in, K - 1 - pad
        phase = -shift % (chunk or 1)
    n_blocks = cdiv(C, LANES * pack)
    tile = _tile(K)
    share = 2 if K * pack < FEW_TAPS else 1
    split = _split(B, T_out, n_blocks, tile, share * aim)
    return Plan(
        (B * split.spans_per_row, n_blocks),
        (
            T_in,
            T_out,
            split.spans_per_row,
            split.frames_per_span,
            pad,
            phase,
            chunk,
        ),
        tile,
        _grain(tile, geometry, transposed),
    )


@functools.lru_cache(PLANS)
def _weight_grad_plan(
    B: int, C: int, K: int, pack: int, geometry: Geometry, aim: int
) -> Plan:
    T_in, T_out, pad, _, chunk = geometry
    n_blocks = cdiv(C, LANES * pack)
    tile = _tile(K)
    split = _split(B, T_out, n_blocks, tile, aim)
    n_spans = B * split.spans_per_row
    return Plan(
        (cdiv(n_spans, split.spans_per_program), n_blocks),
        (T_in, T_out, n_spans, *split, pad, chunk),
        tile,
        _grain(tile, geometry, False),
    )


def launch_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    geometry: Geometry,
    transposed: bool = False,
    left_context: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run the convolution, or its transpose, over (B, T, C).

    Arguments
    ---------
    x : torch.Tensor
        (B, T_in, C); transposed, the output's gradient (B, T_out, C).
    weight : torch.Tensor
        (C, 1, K), of any floating dtype and stride.
    bias : torch.Tensor, optional
        (C,), of any floating dtype and stride.
    geometry : Geometry
        Of the forward pass, also when transposed.
    transposed : bool
        Compute the gradient of the input.
    left_context : torch.Tensor, optional
        (B, L, C), in x's dtype: the rows before x, in place of zeros. It is
        no part of the geometry. Not with ``transposed``.

    Returns
    -------
    torch.Tensor
        (B, T_out, C), transposed (B, T_in, C), contiguous, in x's dtype.
    """
    B, _, C = x.shape
    K = weight.shape[2]
    y = x.new_empty((B, geometry.T_in if transposed else geometry.T_out, C))
    if y.numel() == 0:
        return y

    x = _rows(x)
    context = rows_cb = 0
    if left_context is not None:
        left_context = _rows(left_context)
        context, rows_cb = left_context.shape[1], left_context.stride(0) // C
    pack = _pack(K, x, left_context)
    plan = _conv_plan(B, C, K, pack, geometry, transposed, WARPS)
    _conv(
        plan.grid,
        (
            x,
            left_context,
            weight.contiguous(),
            None if bias is None else bias.contiguous(),
            y,
        ),
        (*plan.numbers, context, x.stride(0) // C, rows_cb),
        (
            C,
            K,
            plan.tile,
            LANES,
            pack,
            transposed,
            bias is not None,
            left_context is not None,
            plan.grain,
        ),
        1,
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
    pack = _pack(K, x, dy)
    plan = _weight_grad_plan(B, C, K, pack, geometry, WARPS)
    n_partials = plan.grid[0]
    partial = torch.empty(
        (n_partials, K + 1, C), dtype=torch.float32, device=x.device
    )
    _weight_grad(
        plan.grid,
        (x, dy, partial),
        (*plan.numbers, x.stride(0) // C, dy.stride(0) // C),
        (C, K, plan.tile, LANES, pack, plan.grain),
        1,
    )
    _reduce_partials(
        (K + 1, cdiv(C, 32)),
        (partial, dweight, dbias),
        (n_partials,),
        (C, K, 32, 32, bias is not None),
        4,
    )
    return dweight, dbias


def _tile(K: int) -> int:
    return TILE if K <= MAX_TILED_TAPS else TILE // 2


def _grain(tile: int, geometry: Geometry, transposed: bool) -> int:
    """Rows of a tile that surely lie in one chunk; 0 for full context.

    Few values, since each is a variant to compile.
    """
    if geometry.chunk == 0:
        return 0
    offset = geometry.shift if transposed else 0
    common = math.gcd(tile, geometry.chunk, offset)
    return next(grain for grain in GRAINS if common % grain == 0)


def _pack(K: int, x: torch.Tensor, other: torch.Tensor | None) -> int:
    """Channels that are loaded as one word: 2 where all are aligned so."""
    address = x.data_ptr() if other is None else x.data_ptr() | other.data_ptr()
    halves = x.element_size() == 2 and x.shape[2] % 2 == 0
    return 2 if halves and address % 4 == 0 and K <= MAX_PACKED_TAPS else 1


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Frames must follow each other; utterances may lie anywhere."""
    C = x.shape[2]
    dense = x.stride(2) == 1 and x.stride(1) == C and x.stride(0) % C == 0
    return x if dense else x.contiguous()
