"""Reflection padding of (B, T, F, C) tensors, and its transpose.

A program has a frame of one utterance, and some of its bins. Tiles are [bins,
channels], whose rows lie in memory as a whole wherever a bin comes from.
"""

import triton
import triton.language as tl

from speechbrain_triton.ops.jit import jit_for_any

LENGTHS = ("T", "F")

jit = jit_for_any(LENGTHS)


@jit
def reflect_kernel(
    x_ptr,
    y_ptr,
    T,
    F,
    PAD_T: tl.constexpr,
    PAD_F: tl.constexpr,
    C: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """y (B, T + 2 PAD_T, F + 2 PAD_F, C): x and its image beyond each edge."""
    row = tl.program_id(0)
    b, t = row // (T + 2 * PAD_T), row % (T + 2 * PAD_T)
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)[:, None]
    inside = f < F + 2 * PAD_F
    frame = (b * T + _source(t, T, PAD_T)).to(tl.int64)
    offs_x = (frame * F + _source(f, F, PAD_F)) * C
    offs_y = (row.to(tl.int64) * (F + 2 * PAD_F) + f) * C
    for start in range(0, C, BLOCK_C):
        offs_c = start + tl.arange(0, BLOCK_C)[None, :]
        mask = inside & (offs_c < C)
        x = tl.load(x_ptr + offs_x + offs_c, mask=mask, other=0.0)
        x = x.to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + offs_y + offs_c, x, mask=mask)


@jit
def reflect_grad_kernel(
    dy_ptr,
    dx_ptr,
    T,
    F,
    PAD_T: tl.constexpr,
    PAD_F: tl.constexpr,
    C: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """dx (B, T, F, C): the sum of dy over each element and its images."""
    row = tl.program_id(0)
    b, t = row // T, row % T
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)[:, None]
    inside = f < F
    offs_x = (row.to(tl.int64) * F + f) * C
    for start in range(0, C, BLOCK_C):
        offs_c = start + tl.arange(0, BLOCK_C)[None, :]
        mask = inside & (offs_c < C)
        dx = tl.zeros([BLOCK_F, BLOCK_C], dtype=tl.float32)
        for i in tl.static_range(3):
            to_t, is_t = _image(t, T, PAD_T, i)
            frame = (b * (T + 2 * PAD_T) + to_t).to(tl.int64)
            for j in tl.static_range(3):
                to_f, is_f = _image(f, F, PAD_F, j)
                offs = (frame * (F + 2 * PAD_F) + to_f) * C + offs_c
                there = mask & is_t & is_f
                dy = tl.load(dy_ptr + offs, mask=there, other=0.0)
                dx += dy.to(tl.float32)
        dx = dx.to(dx_ptr.dtype.element_ty)
        tl.store(dx_ptr + offs_x + offs_c, dx, mask=mask)


@triton.jit
def _source(i, n, PAD: tl.constexpr):
    """Which of n places stands at place i behind the padding."""
    i -= PAD
    i = tl.where(i < 0, -i, i)
    return tl.where(i < n, i, 2 * (n - 1) - i)


@triton.jit
def _image(i, n, PAD: tl.constexpr, WHICH: tl.constexpr):
    """Where place i of n stands behind the padding, and whether it does.

    By itself, as an image before the first place, or behind the last one.
    """
    if WHICH == 0:
        to, stands = i + PAD, i >= 0
    elif WHICH == 1:
        to, stands = PAD - i, (i > 0) & (i <= PAD)
    else:
        last = n - 1
        to, stands = PAD + 2 * last - i, (i < last) & (i >= last - PAD)
    return to, stands
