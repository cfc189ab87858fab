"""Launchers: allocate outputs, choose configs by rule, start the kernels."""

import functools
from typing import NamedTuple

import torch

from speechbrain_triton.ops.conv_stem.kernels import (
    patch_grad_kernel,
    stem_kernel,
    stem_parameters_kernel,
    stem_sums_kernel,
)
from speechbrain_triton.ops.conv_stem.patches import fold_kernel, patch_kernel
from speechbrain_triton.ops.launcher import Launcher
from speechbrain_triton.ops.reduction import ColumnSums
from speechbrain_triton.ops.sizes import cdiv, next_power_of_2, out_length

_patches = Launcher(patch_kernel)
_stem = Launcher(stem_kernel)
_sums = Launcher(stem_sums_kernel)
# In half precision with 3 x 3 taps a multiprocessor has room for four programs
# forward and three backward, if a few registers are saved.
STEM_REGISTERS, SUMS_REGISTERS = 128, 168
_half_stem = Launcher(stem_kernel, STEM_REGISTERS)
_half_sums = Launcher(stem_sums_kernel, SUMS_REGISTERS)
_parameters = Launcher(stem_parameters_kernel)
_patch_grad = Launcher(patch_grad_kernel)
_fold = Launcher(fold_kernel)

# A tile of products is BLOCK_C channels by so many positions: what one group
# of four warps multiplies at once on Hopper's tensor cores. In float32 half as
# many, which need as many registers.
BLOCK_C = 64
HALF_BLOCK_M = 64
FLOAT_BLOCK_M = 32
PATCH_ROWS = 128
FOLD_ROWS = 256
NUM_WARPS = 4

# Taps that are unrolled, and backward have their sums in registers; where
# there are more, or in float32, only those of a row of the kernel.
MAX_TAPS = 9

# Forward, tiles that a program takes one after the other.
TILES = 8

# Backward, programs that share out the outputs, for each block of channels:
# three a multiprocessor of an H200. Constant, so that the order of a sum does
# not depend on the card.
SUM_PROGRAMS = 99

# Channels that a program has which adds up what these leave: a line of 128
# bytes for each tap and partial sum.
SUM_CHANNELS = 2

# Numbers go to kernels in 32 bits.
MAX_STRIDE = 2**31 - 1


class Stem(NamedTuple):
    """Parameters of the stem, in any floating dtype; biases may be None."""

    weight: torch.Tensor  # (C, 1, K, K)
    bias: torch.Tensor | None  # (C,)
    depthwise_weight: torch.Tensor  # (C, 1, K, K)
    depthwise_bias: torch.Tensor | None  # (C,)


class Shape(NamedTuple):
    """Frames and bins of the input, the hidden layer and the output."""

    T: int
    F: int
    T1: int
    F1: int
    T2: int
    F2: int
    K: int
    stride: int
    padding: str

    @property
    def constants(self) -> tuple[int, int, int, int]:
        """K, stride, and the zeros before the first frame and bin."""
        side = 0 if self.padding == "valid" else (self.K - 1) // 2
        before = self.K - 1 if self.padding == "causal" else side
        return self.K, self.stride, before, side

    @property
    def width(self) -> int:
        """Columns of a patch: its inputs and a one, and what fills up."""
        return max(16, next_power_of_2(self.K * self.K + 1))


def shape_of(T: int, F: int, K: int, stride: int, padding: str) -> Shape:
    """The sizes of all layers for an input of T frames and F bins."""
    time = "same" if padding == "causal" else padding
    T1 = out_length(T, K, stride, padding)
    F1 = out_length(F, K, stride, time)
    T2 = out_length(T1, K, stride, padding)
    F2 = out_length(F1, K, stride, time)
    return Shape(T, F, T1, F1, T2, F2, K, stride, padding)


def launch_patches(
    x: torch.Tensor,
    lengths: torch.Tensor | None,
    shape: Shape,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Lay out the patches of x (B, T, F).

    Returns
    -------
    torch.Tensor
        (B, T1, F1, width) in ``dtype``.
    """
    if max(x.stride()) > MAX_STRIDE:
        x = x.contiguous()
    B = x.shape[0]
    size = B, shape.T1, shape.F1, shape.width
    patches = torch.empty(size, dtype=dtype, device=x.device)
    n_rows = B * shape.T1 * shape.F1
    lost = shape.K - 1 if shape.padding == "valid" else 0
    _patches(
        (cdiv(n_rows, PATCH_ROWS), 1),
        (x, lengths, patches),
        (n_rows, *shape[:4], *x.stride()),
        (*shape.constants, lost, shape.width, PATCH_ROWS, lengths is not None),
        NUM_WARPS,
    )
    return patches


def launch_stem(
    patches: torch.Tensor, stem: Stem, shape: Shape
) -> torch.Tensor:
    """Convolve, rectify, convolve depthwise.

    Returns
    -------
    torch.Tensor
        (B, T2, F2, C) in the dtype of the patches.
    """
    stem = _contiguous(stem)
    B, C = patches.shape[0], stem.weight.shape[0]
    y = patches.new_empty((B, shape.T2, shape.F2, C))
    n_rows = B * shape.T2 * shape.F2
    block, rows = tile(C, patches.dtype)
    taps = taps_at_once(shape.K, patches.dtype)
    start = _half_stem if taps == MAX_TAPS else _stem
    start(
        (cdiv(n_rows, TILES * rows) * cdiv(C, block), 1),
        (patches, *stem, y),
        (n_rows, TILES * rows, *shape[2:6]),
        (
            C,
            *shape.constants,
            shape.width,
            block,
            rows,
            taps,
            stem.bias is not None,
            stem.depthwise_bias is not None,
            start.interpreted,
        ),
        NUM_WARPS,
    )
    return y


def launch_parameter_grads(
    dy: torch.Tensor, patches: torch.Tensor, stem: Stem, shape: Shape
) -> Stem:
    """Gradients of the parameters, in float32.

    Arguments
    ---------
    dy : torch.Tensor
        (B, T2, F2, C), or the rows of it, in the dtype of the patches; not
        empty.
    patches : torch.Tensor
        As forward had them.
    stem : Stem
        The parameters.
    shape : Shape
        Of the input.

    Returns
    -------
    Stem
        Contiguous; None for an absent bias.
    """
    stem, dy = _contiguous(stem), dy.contiguous()
    C = stem.weight.shape[0]
    n_rows = dy.numel() // C
    block, rows = tile(C, patches.dtype)
    n_taps, taps = shape.K**2, taps_at_once(shape.K, patches.dtype)
    width = C * (n_taps * shape.width + 1)
    sums = ColumnSums(n_rows, width, dy.device, SUM_PROGRAMS)
    has_bias = stem.bias is not None
    start = _half_sums if taps == MAX_TAPS else _sums
    start(
        (sums.programs * cdiv(C, block), cdiv(n_taps, taps)),
        (patches, stem.weight, stem.bias, dy, sums.partial),
        (n_rows, sums.rows_per_program, *shape[2:6]),
        (
            C,
            *shape.constants,
            shape.width,
            block,
            rows,
            taps,
            has_bias,
            start.interpreted,
        ),
        NUM_WARPS,
    )
    # One allocation costs the host less than four.
    sizes = n_taps * C, n_taps * C, C, C
    grad = torch.empty(sum(sizes), dtype=torch.float32, device=dy.device)
    _parameters(
        (cdiv(C, SUM_CHANNELS), 1),
        (sums.partial, *stem[:3], grad),
        (sums.programs,),
        (
            C,
            shape.K,
            shape.width,
            partials_at_once(shape.K),
            SUM_CHANNELS,
            _triton_dtype(patches.dtype),
            has_bias,
        ),
        NUM_WARPS,
    )
    dweight, ddepthwise, dbias, ddepthwise_bias = grad.split_with_sizes(sizes)
    return Stem(
        dweight.view_as(stem.weight),
        dbias if has_bias else None,
        ddepthwise.view_as(stem.weight),
        None if stem.depthwise_bias is None else ddepthwise_bias,
    )


def launch_input_grad(
    dy: torch.Tensor,
    patches: torch.Tensor,
    stem: Stem,
    shape: Shape,
    lengths: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Gradient of x.

    Returns
    -------
    torch.Tensor
        (B, T, F) in ``dtype``.
    """
    stem, dy = _contiguous(stem), dy.contiguous()
    B, C = patches.shape[0], stem.weight.shape[0]
    n_rows = B * shape.T1 * shape.F1
    block, rows = tile(C, patches.dtype)
    dpatches = torch.empty_like(patches, dtype=torch.float32)
    _patch_grad(
        (cdiv(n_rows, rows), 1),
        (patches, *stem[:3], dy, dpatches),
        (n_rows, *shape[2:6]),
        (
            C,
            *shape.constants,
            shape.width,
            block,
            rows,
            stem.bias is not None,
            _patch_grad.interpreted,
        ),
        NUM_WARPS,
    )
    size = B, shape.T, shape.F
    dx = torch.empty(size, dtype=dtype, device=dy.device)
    _fold(
        (cdiv(dx.numel(), FOLD_ROWS), 1),
        (dpatches, lengths, dx),
        (dx.numel(), *shape[:4]),
        (*shape.constants, shape.width, FOLD_ROWS, lengths is not None),
        NUM_WARPS,
    )
    return dx


def tile(C: int, dtype: torch.dtype) -> tuple[int, int]:
    """Channels, of which tensor cores want at least 16, and positions."""
    block = min(BLOCK_C, max(16, next_power_of_2(C)))
    return block, FLOAT_BLOCK_M if dtype is torch.float32 else HALF_BLOCK_M


def taps_at_once(K: int, dtype: torch.dtype) -> int:
    """Taps that are unrolled, of K * K."""
    return K if K * K > MAX_TAPS or dtype is torch.float32 else K * K


def partials_at_once(K: int) -> int:
    """Partial sums that are added up at once, for all taps in registers."""
    return 32 if K * K <= MAX_TAPS else 8


def _contiguous(stem: Stem) -> Stem:
    return Stem(*(None if t is None else t.contiguous() for t in stem))


@functools.cache
def _triton_dtype(dtype: torch.dtype):
    import triton.language as tl

    return getattr(tl, str(dtype).removeprefix("torch."))
