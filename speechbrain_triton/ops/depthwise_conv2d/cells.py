"""Gradients of a cell of 2 x 2 inputs from the window of outputs above it.

The window of a cell is all outputs that read from it, column by column. It
begins ``lowest`` outputs from the first that the cell counts as its own.
"""

import triton
import triton.language as tl

from speechbrain_triton.ops.depthwise_conv1d.rows import unpack, words
from speechbrain_triton.ops.depthwise_conv2d.tiles import load_columns

CELL = tl.constexpr(2)


@triton.constexpr_function
def lowest(K, STRIDE, PAD):
    """Where the window begins, counted from the cell's own outputs."""
    return -((K - 1 - PAD) // STRIDE)


@triton.constexpr_function
def window_size(K, STRIDE):
    """Outputs along an axis of the window, whatever the padding, for odd K."""
    return (K - 1 + CELL.value) // STRIDE


@triton.constexpr_function
def _meeting(p, q, n, K_T, K_F, S_T, S_F, P_T, P_F):
    """Which output of the window reads input (p, q) of the cell through tap n.

    Its place in the window; -1 if none does.
    """
    t = p + P_T - n // K_F
    f = q + P_F - n % K_F
    if t % S_T or f % S_F:
        return -1
    u = t // S_T - lowest(K_T, S_T, P_T)
    v = f // S_F - lowest(K_F, S_F, P_F)
    return v * window_size(K_T, S_T) + u


@triton.jit
def load_output_grads(
    dy_ptr,
    y_ptr,
    offs,
    frame,
    rows,
    mask_w,
    f,
    F,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    PACK: tl.constexpr,
    RELU: tl.constexpr,
):
    """Columns of dy and, where a ReLU was behind, as many of y."""
    ptr = words(dy_ptr, PACK) + offs
    tiles = load_columns(ptr, frame, rows, mask_w, f, F, COUNT, WIDTH, 0)
    if RELU == "after":
        ptr = words(y_ptr, PACK) + offs
        ys = load_columns(ptr, frame, rows, mask_w, f, F, COUNT, WIDTH, 0)
        tiles = tiles + ys
    return tiles


@triton.jit
def mask_output_grads(
    tiles, DTYPE: tl.constexpr, PACK: tl.constexpr, RELU: tl.constexpr
):
    """These columns of dy in float32, zero where the ReLU was."""
    COUNT: tl.constexpr = len(tiles) // 2 if RELU == "after" else len(tiles)
    grads = ()
    for n in tl.static_range(COUNT):
        dy = unpack(tiles[n], DTYPE, PACK)
        if RELU == "after":
            y = unpack(tiles[COUNT + n], DTYPE, PACK)
            dy = tl.where(y <= 0.0, 0.0, dy)
        grads = grads + (dy,)
    return grads


@triton.jit
def add_weight_grads(
    dweight,
    hs,
    window,
    q: tl.constexpr,
    K_T: tl.constexpr,
    K_F: tl.constexpr,
    S_T: tl.constexpr,
    S_F: tl.constexpr,
    P_T: tl.constexpr,
    P_F: tl.constexpr,
):
    """Add what the inputs hs of the cell's column q give to each tap."""
    out = ()
    for n in tl.static_range(K_T * K_F):
        total = dweight[n]
        for p in tl.static_range(CELL):
            if _meeting(p, q, n, K_T, K_F, S_T, S_F, P_T, P_F) >= 0:
                dy = window[_meeting(p, q, n, K_T, K_F, S_T, S_F, P_T, P_F)]
                total += dy * hs[p]
        out = out + (total,)
    return out


@triton.jit
def add_bias_grad(
    dbias,
    window,
    K_T: tl.constexpr,
    K_F: tl.constexpr,
    S_T: tl.constexpr,
    S_F: tl.constexpr,
    P_T: tl.constexpr,
    P_F: tl.constexpr,
):
    """Add the outputs that the cell counts as its own: each output once."""
    LOW_T: tl.constexpr = lowest(K_T, S_T, P_T)
    LOW_F: tl.constexpr = lowest(K_F, S_F, P_F)
    for v in tl.static_range(CELL // S_F):
        for u in tl.static_range(CELL // S_T):
            dbias += window[(v - LOW_F) * window_size(K_T, S_T) + u - LOW_T]
    return dbias


@triton.jit
def input_grads(
    taps,
    window,
    q: tl.constexpr,
    K_T: tl.constexpr,
    K_F: tl.constexpr,
    S_T: tl.constexpr,
    S_F: tl.constexpr,
    P_T: tl.constexpr,
    P_F: tl.constexpr,
):
    """The gradients of what the taps multiplied, in column q of the cell."""
    out = ()
    for p in tl.static_range(CELL):
        dx = tl.zeros_like(window[0])
        for n in tl.static_range(K_T * K_F):
            if _meeting(p, q, n, K_T, K_F, S_T, S_F, P_T, P_F) >= 0:
                dy = window[_meeting(p, q, n, K_T, K_F, S_T, S_F, P_T, P_F)]
                dx += dy * taps[n][None, :]
        out = out + (dx,)
    return out


@triton.jit
def pass_relu(dxs, hs):
    """Gradients of what the ReLU took, from its results hs."""
    out = ()
    for n in tl.static_range(len(dxs)):
        out = out + (tl.where(hs[n] <= 0.0, 0.0, dxs[n]),)
    return out


@triton.jit
def store_sums(ptr, sums, offs_c, mask_c, STEP: tl.constexpr):
    """Store sums [ROWS, BLOCK_C] over their rows; channels are STEP apart."""
    for n in tl.static_range(len(sums)):
        total = tl.sum(sums[n], axis=0)
        tl.store(ptr + offs_c * STEP + n, total, mask=mask_c)
