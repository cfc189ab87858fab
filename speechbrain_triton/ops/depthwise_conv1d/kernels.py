"""Depthwise convolution kernels for (B, T, C) tensors.

A program is one warp with LANES words of a row (frame): 32-bit words of two
half-precision channels (PACK 2), or single channels (PACK 1). Lanes past the
last word read that one again, so that no load needs a mask for them. The
program walks along a span of one utterance, TILE output rows at a time. The
TILE + K - 1 input rows that a tile depends on are its window. Two successive
windows share K - 1 rows, which stay in registers as they were loaded; the TILE
fresh ones are asked for a tile ahead, so that two warps a scheduler hide the
latency of memory. Each row of the window is converted to float32 and
multiplied into every output it reaches, while accumulators and taps stay in
registers. So all but the walk is unrolled, over tuples of channel vectors. On
an H200 at (64, 400, 512) with 31 taps that takes 26 us forward, and 28 to 30
for the weight gradient, where loading each tile's window anew took 31 to 38.

A chunk is a mask on the taps right of the centre: output t sees input s only
below the end of t's chunk. Tiles start at multiples of TILE, so chunks end
only at multiples of GRAIN, a common divisor of TILE and the chunk: one masked
copy of a row serves GRAIN outputs. Chunks begin ``phase`` rows before row 0.
"""

import triton
import triton.language as tl

from speechbrain_triton.ops.depthwise_conv1d.rows import (
    columns,
    load_rows,
    load_weight,
    unpack,
    words,
)
from speechbrain_triton.ops.jit import jit_for_any

LENGTHS = (
    "T_in",
    "T_out",
    "n_spans",
    "spans_per_row",
    "spans_per_program",
    "frames_per_span",
    "pad",
    "phase",
    "chunk",
    "context",
    "rows_xb",
    "rows_yb",
    "rows_cb",
    "n_partials",
)


_jit = jit_for_any(LENGTHS)


@_jit
def conv_kernel(
    x_ptr,
    context_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    T_in,
    T_out,
    spans_per_row,
    frames_per_span,
    pad,
    phase,
    chunk,
    context,
    rows_xb,
    rows_cb,
    C: tl.constexpr,
    K: tl.constexpr,
    TILE: tl.constexpr,
    LANES: tl.constexpr,
    PACK: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_CONTEXT: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """y[t] = bias + sum_k weight[k] x[t + k - pad], or its transpose.

    TRANSPOSED computes the gradient of the input: x holds the gradient of
    the output and the taps are taken in reverse. Utterances of x are rows_xb
    rows apart, those of the ``context`` rows before x rows_cb. weight is
    (C, K). GRAIN is 0 for full context.
    """
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    WIDTH: tl.constexpr = C // PACK
    offs_w = tl.minimum(_block(LANES), WIDTH - 1)  # [LANES]
    offs_c = _block(LANES * PACK)
    mask_c = offs_c < C
    b, t0, end = _span(tl.program_id(0), spans_per_row, frames_per_span, T_out)
    s0 = t0 - pad
    stop = tl.minimum(end - pad + K - 1, T_in)
    x_row = words(x_ptr, PACK) + (b * rows_xb + s0) * WIDTH + offs_w
    y_row = y_ptr + (b * T_out + t0) * C + offs_c

    # The loads of the window are under way while the taps are split.
    weight = load_weight(weight_ptr, offs_c, mask_c, K, TRANSPOSED)
    window = load_rows(x_row, s0, stop, 0, TILE + K - 1, WIDTH)
    if HAS_CONTEXT:
        # Only a span's first window reaches below row 0.
        row = b * rows_cb + context + s0
        before_row = words(context_ptr, PACK) + row * WIDTH + offs_w
        before = load_rows(before_row, context + s0, context, 0, K - 1, WIDTH)
        window = _precede(before, window, s0, K)
    taps = columns(weight)
    start = tl.zeros([LANES * PACK], dtype=tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + offs_c, mask=mask_c, other=0.0)
        start += bias.to(tl.float32)

    for _ in range(t0, end, TILE):
        edges = _chunk_edges(t0, phase, chunk, TILE, K, TRANSPOSED, GRAIN)
        acc = (start,) * TILE
        for r in tl.static_range(TILE + K - 1):
            x = unpack(window[r], DTYPE, PACK)
            acc = _scatter_row(
                acc, x, taps, edges, r, K, TILE, TRANSPOSED, GRAIN
            )
            if r < TILE:
                window = window + load_rows(
                    x_row, s0, stop, r + TILE + K - 1, 1, WIDTH
                )
        window = window[TILE:]
        x_row += TILE * WIDTH
        s0 += TILE
        for o in tl.static_range(TILE):
            y = acc[o].to(y_ptr.dtype.element_ty)
            tl.store(y_row + o * C, y, mask=mask_c & (t0 + o < end))
        y_row += TILE * C
        t0 += TILE


@_jit
def weight_grad_kernel(
    x_ptr,
    dy_ptr,
    partial_ptr,
    T_in,
    T_out,
    n_spans,
    spans_per_row,
    frames_per_span,
    spans_per_program,
    pad,
    chunk,
    rows_xb,
    rows_yb,
    C: tl.constexpr,
    K: tl.constexpr,
    TILE: tl.constexpr,
    LANES: tl.constexpr,
    PACK: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """partial[p, k] = sum over p's spans of dy[t] x[t + k - pad].

    Row K of a partial sum is that of dy alone, for the bias. partial is
    (P, K + 1, C) float32.
    """
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    WIDTH: tl.constexpr = C // PACK
    offs_w = tl.minimum(_block(LANES), WIDTH - 1)  # [LANES]

    acc_bias = tl.zeros([LANES * PACK], dtype=tl.float32)
    acc = (acc_bias,) * K
    first = tl.program_id(0) * spans_per_program
    for span in range(first, tl.minimum(first + spans_per_program, n_spans)):
        b, t0, end = _span(span, spans_per_row, frames_per_span, T_out)
        s0 = t0 - pad
        stop = tl.minimum(end - pad + K - 1, T_in)
        x_row = words(x_ptr, PACK) + (b * rows_xb + s0) * WIDTH + offs_w
        dy_row = words(dy_ptr, PACK) + (b * rows_yb + t0) * WIDTH + offs_w
        dys = load_rows(dy_row, t0, end, 0, TILE, WIDTH)
        window = load_rows(x_row, s0, stop, 0, TILE + K - 1, WIDTH)
        for _ in range(t0, end, TILE):
            edges = _chunk_edges(t0, 0, chunk, TILE, K, False, GRAIN)
            grads = ()
            tile_sum = tl.zeros([LANES * PACK], dtype=tl.float32)
            for o in tl.static_range(TILE):
                dy = unpack(dys[o], DTYPE, PACK)
                tile_sum += dy
                grads = grads + (dy,)
            # A sum of sums rounds less than one long one.
            acc_bias += tile_sum
            dys = load_rows(dy_row, t0, end, TILE, TILE, WIDTH)
            for r in tl.static_range(TILE + K - 1):
                x = unpack(window[r], DTYPE, PACK)
                acc = _gather_row(acc, x, grads, edges, r, K, TILE, GRAIN)
                if r < TILE:
                    window = window + load_rows(
                        x_row, s0, stop, r + TILE + K - 1, 1, WIDTH
                    )
            window = window[TILE:]
            x_row += TILE * WIDTH
            dy_row += TILE * WIDTH
            s0 += TILE
            t0 += TILE

    offs_c = _block(LANES * PACK)
    out = partial_ptr + tl.program_id(0).to(tl.int64) * (K + 1) * C + offs_c
    for k in tl.static_range(K):
        tl.store(out + k * C, acc[k], mask=offs_c < C)
    tl.store(out + K * C, acc_bias, mask=offs_c < C)


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
def _block(SIZE: tl.constexpr):
    return tl.program_id(1) * SIZE + tl.arange(0, SIZE)


@triton.jit
def _span(index, spans_per_row, frames_per_span, T_out):
    """The utterance, first frame and end of a span of outputs.

    The last span of an utterance is the shortest. Programs go to the
    multiprocessors in turn: without the shift by the channel block, half of an
    even number of them would get all long spans and half all short ones.
    """
    b = (index // spans_per_row).to(tl.int64)
    place = (index + tl.program_id(1)) % spans_per_row
    t0 = place * frames_per_span
    return b, t0, tl.minimum(t0 + frames_per_span, T_out)


@triton.jit
def _precede(before, window, s0, K: tl.constexpr):
    """Put rows of left context where a window reaches below row 0."""
    head = ()
    for r in tl.static_range(K - 1):
        head = head + (tl.where(s0 + r < 0, before[r], window[r]),)
    return head + window[K - 1 :]


@triton.jit
def _chunk_edges(
    t,
    phase,
    chunk,
    TILE: tl.constexpr,
    K: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """For each walked row, where its chunk begins, in rows of the tile at t.

    TRANSPOSED gives where it ends; 0 if that is before the tile.
    """
    edges = ()
    if GRAIN > 0:
        end = chunk - (t + phase) % chunk
        for r in tl.static_range(TILE + K - 1):
            if _tile_row(r, K, TRANSPOSED) < 0:
                before = _grain_row(r, K, TRANSPOSED, GRAIN) < end - chunk
                edges = edges + (tl.where(before, 0, end),)
            else:
                if _tile_row(r, K, TRANSPOSED) % GRAIN == 0:
                    ended = _tile_row(r, K, TRANSPOSED) >= end
                    end += tl.where(ended, chunk, 0)
                edges = edges + (end if TRANSPOSED else end - chunk,)
    return edges


@triton.constexpr_function
def _tile_row(r, K, TRANSPOSED):
    """Walked row r in rows of the tile."""
    return r - (K // 2 if TRANSPOSED else (K - 1) // 2)


@triton.constexpr_function
def _grain_row(r, K, TRANSPOSED, GRAIN):
    """The same, rounded down to a grain."""
    return _tile_row(r, K, TRANSPOSED) // GRAIN * GRAIN


@triton.jit
def _multiply_add(
    x,
    y,
    acc,
    edges,
    r: tl.constexpr,
    o: tl.constexpr,
    K: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """acc + x * y if no chunk ends between walked row r and tile row o."""
    if GRAIN > 0:
        row: tl.constexpr = _grain_row(r, K, TRANSPOSED, GRAIN)
        tile_row: tl.constexpr = o // GRAIN * GRAIN
        # Only rows to the right of the centre can be out of sight.
        if TRANSPOSED and row < tile_row:
            acc = _add_where(tile_row < edges[r], x, y, acc, GRAIN)
        elif not TRANSPOSED and row > tile_row:
            acc = _add_where(tile_row >= edges[r], x, y, acc, GRAIN)
        else:
            acc = tl.fma(x, y, acc)
    else:
        acc = tl.fma(x, y, acc)
    return acc


@triton.jit
def _add_where(seen, x, y, acc, GRAIN: tl.constexpr):
    if GRAIN == 1:
        # Becomes a predicated multiply-add: no instruction more.
        acc = tl.where(seen, tl.fma(x, y, acc), acc)
    else:
        # One masked x serves all rows of a grain.
        acc = tl.fma(tl.where(seen, x, 0.0), y, acc)
    return acc


@triton.jit
def _scatter_row(
    acc,
    x,
    taps,
    edges,
    r: tl.constexpr,
    K: tl.constexpr,
    TILE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """Add walked row r to each of the tile's outputs that it reaches."""
    out = ()
    for o in tl.static_range(TILE):
        y = acc[o]
        if r - o >= 0 and r - o < K:
            y = _multiply_add(
                x, taps[r - o], y, edges, r, o, K, TRANSPOSED, GRAIN
            )
        out = out + (y,)
    return out


@triton.jit
def _gather_row(
    acc,
    x,
    grads,
    edges,
    r: tl.constexpr,
    K: tl.constexpr,
    TILE: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """Add walked row r to each tap through which a tile row sees it."""
    out = ()
    for k in tl.static_range(K):
        dw = acc[k]
        if r - k >= 0 and r - k < TILE:
            dw = _multiply_add(
                x, grads[r - k], dw, edges, r, r - k, K, False, GRAIN
            )
        out = out + (dw,)
    return out
