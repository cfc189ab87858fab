"""Depthwise convolution kernels for (B, T, C) tensors.

All walk over the rows (frames) that a tile of output rows depends on: each row
is loaded once, converted to float32 and multiplied into every output it
reaches, while accumulators and taps stay in registers. So the loops are fully
unrolled, over tuples of channel vectors.

A chunk is a mask on the taps right of the centre: output t sees input s only
below the end of t's chunk. Tiles start at multiples of TILE, so chunks end
only at multiples of GRAIN, a common divisor of TILE and the chunk: one masked
copy of a row serves GRAIN outputs. ``shift`` rows of left context precede the
first chunk.
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
    "rows_xb",
    "rows_yb",
    "n_partials",
)


def _jit(function):
    lengths = [n for n in LENGTHS if n in function.__code__.co_varnames]
    return triton.jit(do_not_specialize=lengths)(function)


@_jit
def conv_kernel(
    x_ptr,
    taps_ptr,
    bias_ptr,
    y_ptr,
    T_in,
    T_out,
    n_tiles,
    tiles_per_row,
    tiles_per_program,
    pad,
    shift,
    chunk,
    rows_xb,
    C: tl.constexpr,
    K: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """y[t] = bias + sum_k taps[k] x[t + k - pad], or its transpose.

    TRANSPOSED computes the gradient of the input: x holds the gradient of
    the output and the taps are taken in reverse. Utterances of x
    are rows_xb rows apart. taps is (K, C). GRAIN is 0 for full context.
    """
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)  # [BLOCK_C]
    mask_c = offs_c < C

    taps = _load_taps(taps_ptr, offs_c, mask_c, C, K, TRANSPOSED)
    if HAS_BIAS:
        start = tl.load(bias_ptr + offs_c, mask=mask_c, other=0.0)
        start = start.to(tl.float32)
    else:
        start = tl.zeros([BLOCK_C], dtype=tl.float32)

    first = tl.program_id(0) * tiles_per_program
    last = tl.minimum(first + tiles_per_program, n_tiles)
    for tile in range(first, last):
        b = (tile // tiles_per_row).to(tl.int64)
        t0 = (tile % tiles_per_row) * TILE
        s0 = t0 - pad
        bounds = _chunk_bounds(t0, s0, shift, chunk, TILE, TRANSPOSED, GRAIN)
        acc = ()
        for _ in tl.static_range(TILE):
            acc = acc + (start,)
        x_row = x_ptr + (b * rows_xb + s0) * C + offs_c
        for r in tl.static_range(TILE + K - 1):
            mask = mask_c & _within(s0 + r, T_in)
            x = _load_row(x_row, r, mask, C)
            acc = _scatter_row(
                acc, x, taps, bounds, r, K, TILE, TRANSPOSED, GRAIN
            )
        y_row = y_ptr + (b * T_out + t0) * C + offs_c
        for o in tl.static_range(TILE):
            y = acc[o].to(y_ptr.dtype.element_ty)
            tl.store(y_row + o * C, y, mask=mask_c & (t0 + o < T_out))


@_jit
def weight_grad_kernel(
    x_ptr,
    dy_ptr,
    partial_ptr,
    T_in,
    T_out,
    n_tiles,
    tiles_per_row,
    tiles_per_group,
    pad,
    shift,
    chunk,
    rows_xb,
    rows_yb,
    C: tl.constexpr,
    K: tl.constexpr,
    TILE: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """partial[p, k] = sum over p's tiles of dy[t] x[t + k - pad].

    Row K of a partial sum is that of dy alone, for the bias. Each of a
    program's GROUPS walks tiles of its own (a warp each, where BLOCK_C fills
    one); they are added before the store. Even a single group pays: without
    its axis the compiler spills registers. partial is (P, K + 1, C) float32.
    """
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    mask_c = offs_c < C  # [1, BLOCK_C]
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)[:, None]
    first = group * tiles_per_group  # [GROUPS, 1]

    acc = ()
    for _ in tl.static_range(K):
        acc = acc + (tl.zeros([GROUPS, BLOCK_C], dtype=tl.float32),)
    acc_bias = tl.zeros([GROUPS, BLOCK_C], dtype=tl.float32)
    for i in range(tiles_per_group):
        tile = first + i
        live = mask_c & (tile < n_tiles)
        b = (tile // tiles_per_row).to(tl.int64)
        t0 = (tile % tiles_per_row) * TILE
        s0 = t0 - pad
        bounds = _chunk_bounds(t0, s0, shift, chunk, TILE, False, GRAIN)

        grads = ()
        dy_row = dy_ptr + (b * rows_yb + t0) * C + offs_c
        for o in tl.static_range(TILE):
            mask = live & (t0 + o < T_out)
            dy = _load_row(dy_row, o, mask, C)
            acc_bias += dy
            grads = grads + (dy,)

        x_row = x_ptr + (b * rows_xb + s0) * C + offs_c
        for r in tl.static_range(TILE + K - 1):
            mask = live & _within(s0 + r, T_in)
            x = _load_row(x_row, r, mask, C)
            acc = _gather_row(acc, x, grads, bounds, r, K, TILE, GRAIN)

    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    out = partial_ptr + tl.program_id(0).to(tl.int64) * (K + 1) * C + offs_c
    for k in tl.static_range(K):
        tl.store(out + k * C, tl.sum(acc[k], axis=0), mask=offs_c < C)
    tl.store(out + K * C, tl.sum(acc_bias, axis=0), mask=offs_c < C)


@_jit
def reduce_partials_kernel(
    partial_ptr,
    dweight_ptr,
    dbias_ptr,
    n_partials,
    C: tl.constexpr,
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
def _load_taps(
    taps_ptr,
    offs_c,
    mask_c,
    C: tl.constexpr,
    K: tl.constexpr,
    REVERSED: tl.constexpr,
):
    """The K rows of taps (K, C), as float32."""
    taps = ()
    for k in tl.static_range(K):
        row = (K - 1 - k if REVERSED else k) * C
        tap = tl.load(taps_ptr + row + offs_c, mask=mask_c, other=0.0)
        taps = taps + (tap.to(tl.float32),)
    return taps


@triton.jit
def _load_row(row_ptr, r: tl.constexpr, mask, C: tl.constexpr):
    """Row r from row_ptr on as float32, zero where masked."""
    return tl.load(row_ptr + r * C, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _within(row, count):
    """0 <= row < count, by one unsigned comparison."""
    return row.to(tl.uint32) < count.to(tl.uint32)


@triton.jit
def _chunk_bounds(
    t0,
    s0,
    shift,
    chunk,
    TILE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """For each GRAIN tile rows, the walked row at which their chunk ends.

    TRANSPOSED tile rows are inputs and walked rows are outputs: the first
    output that sees them.
    """
    bounds = ()
    if GRAIN > 0:
        for o in tl.static_range(0, TILE, GRAIN):
            if TRANSPOSED:
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
    bounds,
    r: tl.constexpr,
    o: tl.constexpr,
    K: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """Walked row r as tile row o sees it: zero if a chunk ends between."""
    if GRAIN > 0:
        if TRANSPOSED:
            if (r - K // 2 + K * GRAIN) // GRAIN < (o + K * GRAIN) // GRAIN:
                row = tl.where(r >= bounds[o // GRAIN], row, 0.0)
        else:
            if (r - (K - 1) // 2 + K * GRAIN) // GRAIN > (
                o + K * GRAIN
            ) // GRAIN:
                row = tl.where(r < bounds[o // GRAIN], row, 0.0)
    return row


@triton.jit
def _scatter_row(
    acc,
    x,
    taps,
    bounds,
    r: tl.constexpr,
    K: tl.constexpr,
    TILE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """Add walked row r to each of the tile's outputs that it reaches."""
    out = ()
    for o in tl.static_range(TILE):
        if r - o >= 0 and r - o < K:
            seen = _visible(x, bounds, r, o, K, TRANSPOSED, GRAIN)
            out = out + (acc[o] + seen * taps[r - o],)
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
    GRAIN: tl.constexpr,
):
    """Add walked row r to each tap through which a tile row sees it."""
    out = ()
    for k in tl.static_range(K):
        if r - k >= 0 and r - k < TILE:
            seen = _visible(x, bounds, r, r - k, K, False, GRAIN)
            out = out + (acc[k] + seen * grads[r - k],)
        else:
            out = out + (acc[k],)
    return out
