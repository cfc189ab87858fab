"""Depthwise convolution kernels for (B, T, C) tensors.

All three walk over the rows (frames) that a tile of output rows depends on:
each row is loaded once, converted to float32 and multiplied into every output
it reaches, while accumulators and taps stay in registers. So the loops are
fully unrolled, over tuples of channel vectors.

A chunk is a mask on the taps right of the centre: output t sees input s only
below the end of t's chunk. ``shift`` rows of left context precede the first
chunk.
"""

import triton
import triton.language as tl

# Speech lengths vary from batch to batch: a kernel must not be compiled anew
# for a length that is 1 or a multiple of 16.
LENGTHS = (
    "T_in",
    "T_out",
    "n_tiles",
    "tiles_per_row",
    "tiles_per_program",
    "tiles_per_group",
    "pad",
    "shift",
    "chunk",
    "n_partials",
)


def _jit(function):
    lengths = [n for n in LENGTHS if n in function.__code__.co_varnames]
    return triton.jit(do_not_specialize=lengths)(function)


@_jit
def conv_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    T_in,
    T_out,
    C,
    n_tiles,
    tiles_per_row,
    tiles_per_program,
    pad,
    shift,
    chunk,
    stride_xb,
    stride_xt,
    stride_yb,
    stride_yt,
    K: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    CHUNKED: tl.constexpr,
):
    """y[t] = bias + sum_k weight[k] x[t + k - pad], or its transpose.

    TRANSPOSED computes the gradient of the input: x holds the gradient of
    the output and the taps are taken in reverse. weight is (K, C).
    """
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)  # [BLOCK_C]
    mask_c = offs_c < C

    weight = ()
    for k in tl.static_range(K):
        tap = (K - 1 - k if TRANSPOSED else k) * C
        row = tl.load(weight_ptr + tap + offs_c, mask=mask_c, other=0.0)
        weight = weight + (row.to(tl.float32),)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + offs_c, mask=mask_c, other=0.0)
        bias = bias.to(tl.float32)

    first = tl.program_id(0) * tiles_per_program
    last = tl.minimum(first + tiles_per_program, n_tiles)
    for tile in range(first, last):
        b = (tile // tiles_per_row).to(tl.int64)
        t0 = (tile % tiles_per_row) * TILE
        s0 = t0 - pad
        bounds = _chunk_bounds(t0, s0, shift, chunk, TILE, TRANSPOSED, CHUNKED)

        acc = _zeros(TILE, [BLOCK_C])
        x_row = x_ptr + b * stride_xb + s0.to(tl.int64) * stride_xt + offs_c
        for r in tl.static_range(TILE + K - 1):
            in_range = (s0 + r >= 0) & (s0 + r < T_in)
            x = tl.load(x_row, mask=mask_c & in_range, other=0.0)
            acc = _scatter_row(
                acc,
                x.to(tl.float32),
                weight,
                bounds,
                r,
                K,
                TILE,
                TRANSPOSED,
                CHUNKED,
            )
            x_row += stride_xt

        y_row = y_ptr + b * stride_yb + t0.to(tl.int64) * stride_yt + offs_c
        for o in tl.static_range(TILE):
            y = acc[o]
            if HAS_BIAS:
                y += bias
            mask = mask_c & (t0 + o < T_out)
            tl.store(y_row, y.to(y_ptr.dtype.element_ty), mask=mask)
            y_row += stride_yt


@_jit
def weight_grad_kernel(
    x_ptr,
    dy_ptr,
    partial_ptr,
    T_in,
    T_out,
    C,
    n_tiles,
    tiles_per_row,
    tiles_per_group,
    pad,
    shift,
    chunk,
    stride_xb,
    stride_xt,
    stride_yb,
    stride_yt,
    K: tl.constexpr,
    TILE: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    CHUNKED: tl.constexpr,
):
    """partial[p, k] = sum over p's tiles of dy[t] x[t + k - pad].

    Row K of a partial sum is that of dy alone, for the bias. Each of a
    program's GROUPS walks tiles of its own (a warp each, where BLOCK_C fills
    one); they are added before the store. partial is (P, K + 1, C) float32.
    """
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    mask_c = offs_c < C  # [1, BLOCK_C]
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)[:, None]
    first = group * tiles_per_group  # [GROUPS, 1]

    acc = _zeros(K, [GROUPS, BLOCK_C])
    acc_bias = tl.zeros([GROUPS, BLOCK_C], dtype=tl.float32)
    for i in range(tiles_per_group):
        tile = first + i
        live = tile < n_tiles
        b = (tile // tiles_per_row).to(tl.int64)
        t0 = (tile % tiles_per_row) * TILE
        s0 = t0 - pad
        bounds = _chunk_bounds(t0, s0, shift, chunk, TILE, False, CHUNKED)

        grads = ()
        dy_row = dy_ptr + b * stride_yb + t0.to(tl.int64) * stride_yt + offs_c
        for o in tl.static_range(TILE):
            mask = mask_c & live & (t0 + o < T_out)
            dy = tl.load(dy_row, mask=mask, other=0.0).to(tl.float32)
            acc_bias += dy
            grads = grads + (dy,)
            dy_row += stride_yt

        x_row = x_ptr + b * stride_xb + s0.to(tl.int64) * stride_xt + offs_c
        for r in tl.static_range(TILE + K - 1):
            in_range = (s0 + r >= 0) & (s0 + r < T_in)
            x = tl.load(x_row, mask=mask_c & live & in_range, other=0.0)
            acc = _gather_row(
                acc, x.to(tl.float32), grads, bounds, r, K, TILE, CHUNKED
            )
            x_row += stride_xt

    row = tl.program_id(0).to(tl.int64) * (K + 1) * C
    out = partial_ptr + row + tl.program_id(1) * BLOCK_C
    out = out + tl.arange(0, BLOCK_C)
    mask = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C) < C
    for k in tl.static_range(K):
        tl.store(out, tl.sum(acc[k], axis=0), mask=mask)
        out += C
    tl.store(out, tl.sum(acc_bias, axis=0), mask=mask)


@_jit
def reduce_partials_kernel(
    partial_ptr,
    dweight_ptr,
    dbias_ptr,
    n_partials,
    C,
    K: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Add the partial sums, in one fixed order: no atomics."""
    k = tl.program_id(0)
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_c = offs_c < C
    offs_p = tl.arange(0, BLOCK_P)[:, None]
    acc = tl.zeros([BLOCK_P, BLOCK_C], dtype=tl.float32)
    for p in range(0, n_partials, BLOCK_P):
        row = ((p + offs_p).to(tl.int64) * (K + 1) + k) * C
        mask = (p + offs_p < n_partials) & mask_c[None, :]
        acc += tl.load(
            partial_ptr + row + offs_c[None, :], mask=mask, other=0.0
        )
    total = tl.sum(acc, axis=0)
    if k < K:
        out = dweight_ptr + offs_c * K + k
        tl.store(out, total.to(dweight_ptr.dtype.element_ty), mask=mask_c)
    elif HAS_BIAS:
        out = dbias_ptr + offs_c
        tl.store(out, total.to(dbias_ptr.dtype.element_ty), mask=mask_c)


@triton.jit
def _zeros(COUNT: tl.constexpr, SHAPE: tl.constexpr):
    out = ()
    for _ in tl.static_range(COUNT):
        out = out + (tl.zeros(SHAPE, dtype=tl.float32),)
    return out


@triton.jit
def _chunk_bounds(
    t0,
    s0,
    shift,
    chunk,
    TILE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    CHUNKED: tl.constexpr,
):
    """For each tile row, the walked row at which its chunk ends.

    TRANSPOSED tile rows are inputs and walked rows are outputs: the first
    output that sees the input.
    """
    bounds = ()
    for o in tl.static_range(TILE):
        if not CHUNKED:
            bound = s0
        elif TRANSPOSED:
            # Rows of left context are seen from every output.
            position = tl.maximum(t0 + o - shift, 0)
            bound = (position // chunk) * chunk - s0
        else:
            bound = ((t0 + o) // chunk + 1) * chunk + shift - s0
        bounds = bounds + (bound,)
    return bounds


@triton.jit
def _visible(
    row,
    bound,
    r: tl.constexpr,
    tap: tl.constexpr,
    K: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    CHUNKED: tl.constexpr,
):
    """The row, or zero where a chunk's end lies between it and the output."""
    if CHUNKED:
        if TRANSPOSED:
            # Taps come in reverse: those right of the centre come first.
            if tap < K // 2:
                row = tl.where(r >= bound, row, 0.0)
        else:
            if tap > (K - 1) // 2:
                row = tl.where(r < bound, row, 0.0)
    return row


@triton.jit
def _scatter_row(
    acc,
    x,
    weight,
    bounds,
    r: tl.constexpr,
    K: tl.constexpr,
    TILE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    CHUNKED: tl.constexpr,
):
    """Add walked row r to each of the tile's outputs that it reaches."""
    out = ()
    for o in tl.static_range(TILE):
        if r - o >= 0 and r - o < K:
            seen = _visible(x, bounds[o], r, r - o, K, TRANSPOSED, CHUNKED)
            out = out + (acc[o] + seen * weight[r - o],)
        else:
            out = out + (acc[o],)
    return out


@triton.jit
def _gather_row(
    acc,
    x,
    grads,
    bounds,
    r: tl.constexpr,
    K: tl.constexpr,
    TILE: tl.constexpr,
    CHUNKED: tl.constexpr,
):
    """Add walked row r to each tap through which a tile row sees it."""
    out = ()
    for k in tl.static_range(K):
        if r - k >= 0 and r - k < TILE:
            seen = _visible(x, bounds[r - k], r, k, K, False, CHUNKED)
            out = out + (acc[k] + seen * grads[r - k],)
        else:
            out = out + (acc[k],)
    return out
