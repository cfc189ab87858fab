"""Patches of the input, each with what a convolution from 1 channel reads.

Laid out as rows, and back: the gradient of an input is the sum over all patches
that it is part of.
"""

import triton
import triton.language as tl

from speechbrain_triton.ops.jit import jit_for_any

LENGTHS = (
    "n_rows",
    "rows_per_program",
    "n_partials",
    "T",
    "F",
    "T1",
    "F1",
    "T2",
    "F2",
    "stride_xb",
    "stride_xt",
    "stride_xf",
)


jit = jit_for_any(LENGTHS)


@triton.jit
def split(row, T, F):
    """Utterance, frame and bin of a row."""
    frame = row // F
    return frame // T, frame % T, row % F


@jit
def patch_kernel(
    x_ptr,
    lengths_ptr,
    patch_ptr,
    n_rows,
    T,
    F,
    T1,
    F1,
    stride_xb,
    stride_xt,
    stride_xf,
    K: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD_T: tl.constexpr,
    PAD_F: tl.constexpr,
    LOST: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
):
    """patch (B T1 F1, WIDTH): K * K inputs, a one, zeros.

    LOST is by how many frames the unpadded convolution shortens its input.
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    b, t1, f1 = split(row, T1, F1)
    inside = row < n_rows
    end = T
    if HAS_LENGTHS:
        end = tl.load(lengths_ptr + b, mask=inside, other=0).to(tl.int32)
        end = tl.minimum(end, T)
        # What the convolution makes of so many frames, rounding up from 0.
        frames = (tl.maximum(end - LOST, 0) + STRIDE - 1) // STRIDE
        inside &= t1 < frames
        end = end[:, None]
    k = tl.arange(0, WIDTH)[None, :]
    t = (t1 * STRIDE - PAD_T)[:, None] + k // K  # [BLOCK_M, WIDTH]
    f = (f1 * STRIDE - PAD_F)[:, None] + k % K
    mask = inside[:, None] & (k < K * K)
    mask &= (t >= 0) & (t < end) & (f >= 0) & (f < F)
    offs = b.to(tl.int64)[:, None] * stride_xb
    offs += t.to(tl.int64) * stride_xt + f.to(tl.int64) * stride_xf
    patch = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    patch = tl.where(inside[:, None] & (k == K * K), 1.0, patch)
    offs = row.to(tl.int64)[:, None] * WIDTH + k
    patch = patch.to(patch_ptr.dtype.element_ty)
    tl.store(patch_ptr + offs, patch, mask=(row < n_rows)[:, None])


@jit
def fold_kernel(
    dpatch_ptr,
    lengths_ptr,
    dx_ptr,
    n_rows,
    T,
    F,
    T1,
    F1,
    K: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD_T: tl.constexpr,
    PAD_F: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
):
    """dx (B T F): the sum over all patches that an input is part of."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    b, t, f = split(row, T, F)
    counts = row < n_rows
    if HAS_LENGTHS:
        length = tl.load(lengths_ptr + b, mask=counts, other=0)
        counts &= t < length.to(tl.int32)
    dx = tl.zeros([BLOCK_M], dtype=tl.float32)
    for tap in tl.static_range(K * K):
        t1 = t + (PAD_T - tap // K)
        f1 = f + (PAD_F - tap % K)
        met = counts & (t1 >= 0) & (t1 < T1 * STRIDE) & (t1 % STRIDE == 0)
        met &= (f1 >= 0) & (f1 < F1 * STRIDE) & (f1 % STRIDE == 0)
        at = (b * T1 + t1 // STRIDE) * F1 + f1 // STRIDE
        offs = at.to(tl.int64) * WIDTH + tap
        dx += tl.load(dpatch_ptr + offs, mask=met, other=0.0)
    dx = dx.to(dx_ptr.dtype.element_ty)
    tl.store(dx_ptr + row, dx, mask=row < n_rows)
