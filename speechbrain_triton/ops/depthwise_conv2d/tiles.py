"""Columns of tiles, as tuples: loading them and what stands before the taps.

A tile is [ROWS, BLOCK_C]: one bin of ROWS frames of the batch, which are not
neighbours in one utterance but each the first of its own. A column has the
tiles of that bin in the frames that follow; COUNT columns are one tuple,
column by column.
"""

import triton
import triton.language as tl

from speechbrain_triton.ops.depthwise_conv1d.rows import unpack


@triton.jit
def place(C: tl.constexpr, BLOCK_C: tl.constexpr):
    """Which rows a program has, and which block of their channels.

    The blocks of a row run beside each other.
    """
    BLOCKS: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    return tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS


@triton.jit
def load_vector(ptr, offs_c, mask_c, THERE: tl.constexpr):
    """A bias as float32, [1, BLOCK_C]; zeros for an absent one."""
    if THERE:
        vector = tl.load(ptr + offs_c, mask=mask_c, other=0.0).to(tl.float32)
    else:
        vector = tl.zeros_like(offs_c).to(tl.float32)
    return vector[None, :]


@triton.jit
def frames_end(lengths_ptr, b, mask, T, HAS_LENGTHS: tl.constexpr):
    """The frame from which on an utterance counts as zero."""
    if HAS_LENGTHS:
        length = tl.load(lengths_ptr + b, mask=mask, other=0).to(tl.int64)
        T = tl.minimum(length, T).to(tl.int32)
    return T


@triton.jit
def _within(index, count):
    return (index >= 0) & (index < count)


@triton.jit
def frames_within(t, end, mask, COUNT: tl.constexpr):
    """For COUNT frames from t on, whether 0 <= frame < end: [ROWS, 1] each."""
    masks = ()
    for r in tl.static_range(COUNT):
        masks = masks + (mask & _within(t + r, end),)
    return masks


@triton.constexpr_function
def padding_value(DTYPE, PACK, RELU):
    """What to load in place of padding: minus infinity if a ReLU follows.

    So no bias has to be masked there. In the bits of two values for a word.
    """
    if RELU != "before":
        return 0
    if PACK == 1:
        return float("-inf")
    infinity = 0xFF80 if DTYPE == tl.bfloat16 else 0xFC00
    return (infinity << 16 | infinity) - 2**32


@triton.jit
def load_columns(
    ptr,
    frame,
    rows,
    mask_w,
    f,
    F,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    OTHER: tl.constexpr,
):
    """COUNT columns from bin f on, of the frames that ``rows`` are masks of.

    Frames are ``frame`` words apart and bins WIDTH; OTHER is outside.
    """
    tiles = ()
    for q in tl.static_range(COUNT):
        inside = _within(f + q, F)
        for r in tl.static_range(len(rows)):
            tile = tl.load(
                ptr + r * frame + q * WIDTH,
                mask=rows[r] & mask_w & inside,
                other=OTHER,
            )
            tiles = tiles + (tile,)
    return tiles


@triton.jit
def store_columns(
    ptr, tiles, frame, rows, mask_c, f, F, COUNT: tl.constexpr, C: tl.constexpr
):
    """Store as load_columns loads, but channels in place of words."""
    for q in tl.static_range(COUNT):
        inside = _within(f + q, F)
        for r in tl.static_range(len(rows)):
            tile = tiles[q * len(rows) + r].to(ptr.dtype.element_ty)
            mask = rows[r] & mask_c & inside
            tl.store(ptr + r * frame + q * C, tile, mask=mask)


@triton.jit
def mask_columns(tiles, rows, f, F, COUNT: tl.constexpr):
    """Zero where load_columns would load nothing."""
    masked = ()
    for q in tl.static_range(COUNT):
        inside = _within(f + q, F)
        for r in tl.static_range(len(rows)):
            tile = tiles[q * len(rows) + r]
            masked = masked + (tl.where(rows[r] & inside, tile, 0.0),)
    return masked


@triton.jit
def activate(
    xs,
    input_bias,
    rows,
    f,
    F,
    COUNT: tl.constexpr,
    DTYPE: tl.constexpr,
    PACK: tl.constexpr,
    RELU: tl.constexpr,
    HAS_INPUT_BIAS: tl.constexpr,
):
    """What the taps multiply, in float32, for columns as they were loaded."""
    hs = ()
    for n in tl.static_range(COUNT * len(rows)):
        h = unpack(xs[n], DTYPE, PACK)
        if HAS_INPUT_BIAS:
            h += input_bias
        if RELU == "before":
            h = relu(h)
        hs = hs + (h,)
    if HAS_INPUT_BIAS and RELU != "before":
        hs = mask_columns(hs, rows, f, F, COUNT)
    return hs


@triton.jit
def relu(x):
    """max(x, 0), and NaN of NaN, as in PyTorch."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
