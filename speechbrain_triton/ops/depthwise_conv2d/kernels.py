"""Depthwise convolution kernels in two dimensions, for (B, T, F, C) tensors.

A program has a block of channels and walks over frequency, in ROWS frames of
the batch at a time, one beside the other. What a step needs is asked for a
step ahead, in 32-bit words of two half-precision channels (PACK 2) or in
single channels (PACK 1): converted early, it would have to be waited for. At
(64, 800, 20, 256), 3 x 3 taps and stride 2, memory is the bound: four inputs
are read for an output that takes nine multiply-adds.

Forward walks over outputs. Each step brings STRIDE_F new columns of K_T
inputs. A column is added to every output that sees it, the later ones of which
stay open in registers: no column is loaded or converted twice.

Backward walks over cells of 2 x 2 inputs, each loaded once and its gradient
written once. Of the outputs that read from a cell, its window, those columns
stay in registers that the next cell needs too. At stride 2 and 3 x 3 taps the
window is 2 x 2, and each tap joins exactly one input of the cell to one output
of the window. All pairs are unrolled, a column of the cell at a time: that
spares the registers that a third program beside two others needs. A program
keeps its sums for the weight and the biases in float32 registers.
"""

import triton
import triton.language as tl

from speechbrain_triton.ops.depthwise_conv1d.rows import (
    columns,
    load_weight,
    words,
)
from speechbrain_triton.ops.depthwise_conv2d.cells import (
    CELL,
    add_bias_grad,
    add_weight_grads,
    input_grads,
    load_output_grads,
    lowest,
    mask_output_grads,
    pass_relu,
    store_sums,
    window_size,
)
from speechbrain_triton.ops.depthwise_conv2d.tiles import (
    activate,
    frames_end,
    frames_within,
    load_columns,
    load_vector,
    mask_columns,
    padding_value,
    place,
    relu,
    store_columns,
)

# Speech lengths vary from batch to batch: a kernel must not be compiled anew
# for a length that is 1 or a multiple of 16.
LENGTHS = ("n_rows", "rows_per_program", "T", "F", "T_out", "F_out")


@triton.jit(do_not_specialize=LENGTHS)
def depthwise_conv2d_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    input_bias_ptr,
    lengths_ptr,
    y_ptr,
    n_rows,
    rows_per_program,
    T,
    F,
    T_out,
    F_out,
    C: tl.constexpr,
    K_T: tl.constexpr,
    K_F: tl.constexpr,
    STRIDE_T: tl.constexpr,
    STRIDE_F: tl.constexpr,
    PAD_T: tl.constexpr,
    PAD_F: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    PACK: tl.constexpr,
    RELU: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_INPUT_BIAS: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
):
    """y = bias + sum over the taps of weight * activation(x).

    Rows are the frames of the output: n_rows = B * T_out. weight is
    (C, K_T * K_F).
    """
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    WIDTH: tl.constexpr = C // PACK
    PADDING: tl.constexpr = padding_value(DTYPE, PACK, RELU)
    # Columns that the output before has not seen, and has.
    NEW: tl.constexpr = STRIDE_F if STRIDE_F < K_F else K_F
    OLD: tl.constexpr = K_F - NEW
    OPEN: tl.constexpr = (K_F - 1) // STRIDE_F + 1
    program, block = place(C, BLOCK_C)
    offs_c = block * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_c = offs_c < C
    offs_w = block * (BLOCK_C // PACK) + tl.arange(0, BLOCK_C // PACK)[None, :]
    mask_w = offs_w < WIDTH  # [1, BLOCK_C / PACK]
    weight = load_weight(weight_ptr, offs_c, mask_c, K_T * K_F, False)
    taps = columns(weight)
    bias = load_vector(bias_ptr, offs_c, mask_c, HAS_BIAS)
    blank = tl.zeros([ROWS, BLOCK_C], dtype=tl.float32) + bias
    input_bias = load_vector(input_bias_ptr, offs_c, mask_c, HAS_INPUT_BIAS)

    frame = F.to(tl.int64) * WIDTH
    first = program * rows_per_program
    last = tl.minimum(first + rows_per_program, n_rows)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        mask = row < last
        b = row // T_out
        t = (row - b * T_out) * STRIDE_T - PAD_T
        end = frames_end(lengths_ptr, b, mask, T, HAS_LENGTHS)
        seen = frames_within(t, end, mask, K_T)
        f = -PAD_F
        x_row = words(x_ptr, PACK) + (b.to(tl.int64) * T + t) * frame
        x_row += offs_w - PAD_F * WIDTH  # [ROWS, BLOCK_C / PACK]
        y_row = y_ptr + row.to(tl.int64) * F_out * C + offs_c[None, :]

        old = load_columns(
            x_row, frame, seen, mask_w, f, F, OLD, WIDTH, PADDING
        )
        old = activate(
            old, input_bias, seen, f, F, OLD, DTYPE, PACK, RELU, HAS_INPUT_BIAS
        )
        acc = (blank,) * OPEN
        acc = _scatter(acc, old, taps, 0, OLD, K_T, K_F, STRIDE_F)
        f += OLD
        x_row += OLD * WIDTH
        xs = load_columns(x_row, frame, seen, mask_w, f, F, NEW, WIDTH, PADDING)
        for _ in range(F_out):
            hs = activate(
                xs, input_bias, seen, f, F, NEW, DTYPE, PACK,
                RELU, HAS_INPUT_BIAS,
            )  # fmt: skip
            f += STRIDE_F
            x_row += STRIDE_F * WIDTH
            xs = load_columns(
                x_row, frame, seen, mask_w, f, F, NEW, WIDTH, PADDING
            )
            acc = _scatter(acc, hs, taps, OLD, NEW, K_T, K_F, STRIDE_F)
            y = acc[0]
            if RELU == "after":
                y = relu(y)
            y = y.to(y_ptr.dtype.element_ty)
            tl.store(y_row, y, mask=mask & mask_c[None, :])
            y_row += C
            acc = acc[1:] + (blank,)


@triton.jit(do_not_specialize=LENGTHS)
def depthwise_conv2d_grad_kernel(
    x_ptr,
    weight_ptr,
    input_bias_ptr,
    lengths_ptr,
    dy_ptr,
    y_ptr,
    dx_ptr,
    partial_ptr,
    n_rows,
    rows_per_program,
    T,
    F,
    T_out,
    F_out,
    C: tl.constexpr,
    K_T: tl.constexpr,
    K_F: tl.constexpr,
    STRIDE_T: tl.constexpr,
    STRIDE_F: tl.constexpr,
    PAD_T: tl.constexpr,
    PAD_F: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    PACK: tl.constexpr,
    RELU: tl.constexpr,
    HAS_INPUT_BIAS: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
    COLUMN: tl.constexpr,
    SUMS: tl.constexpr,
    INPUT_GRAD: tl.constexpr,
    WEIGHT_GRAD: tl.constexpr,
):
    """dx, and each program's sums for dinput_bias, dweight and dbias.

    Rows are pairs of input frames: n_rows = B * ceil(T / 2). The sums that are
    wanted go to a row of partial (P, SUMS), from COLUMN on: C of dinput_bias,
    then C * K_T * K_F of dweight and C of dbias.
    """
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    WIDTH: tl.constexpr = C // PACK
    PADDING: tl.constexpr = padding_value(DTYPE, PACK, RELU)
    TAPS: tl.constexpr = K_T * K_F
    SEEN_T: tl.constexpr = window_size(K_T, STRIDE_T)
    LOW_T: tl.constexpr = lowest(K_T, STRIDE_T, PAD_T)
    LOW_F: tl.constexpr = lowest(K_F, STRIDE_F, PAD_F)
    # Columns of the window that the cell before has not seen, and has.
    NEW: tl.constexpr = CELL // STRIDE_F
    OLD: tl.constexpr = window_size(K_F, STRIDE_F) - NEW
    program, block = place(C, BLOCK_C)
    offs_c = block * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_c = offs_c < C
    offs_w = block * (BLOCK_C // PACK) + tl.arange(0, BLOCK_C // PACK)[None, :]
    mask_w = offs_w < WIDTH  # [1, BLOCK_C / PACK]
    weight = load_weight(weight_ptr, offs_c, mask_c, TAPS, False)
    taps = columns(weight)
    input_bias = load_vector(input_bias_ptr, offs_c, mask_c, HAS_INPUT_BIAS)

    zeros = tl.zeros([ROWS, BLOCK_C], dtype=tl.float32)
    dweight = (zeros,) * TAPS
    dbias = zeros
    dinput_bias = zeros
    frame = F.to(tl.int64) * WIDTH
    frame_out = F_out.to(tl.int64) * WIDTH
    cells_t = tl.cdiv(T, CELL)
    first = program * rows_per_program
    last = tl.minimum(first + rows_per_program, n_rows)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        mask = row < last
        b = row // cells_t
        t = (row - b * cells_t) * CELL
        t_out = (row - b * cells_t) * (CELL // STRIDE_T) + LOW_T
        end = frames_end(lengths_ptr, b, mask, T, HAS_LENGTHS)
        seen = frames_within(t, end, mask, CELL)
        there = frames_within(t, T, mask, CELL)
        made = frames_within(t_out, T_out, mask, SEEN_T)
        f = 0
        offs = (b.to(tl.int64) * T + t) * frame
        x_row = words(x_ptr, PACK) + offs + offs_w  # [ROWS, BLOCK_C / PACK]
        dx_offs = offs * PACK + offs_c[None, :]  # [ROWS, BLOCK_C]
        f_out = LOW_F
        offs = (b.to(tl.int64) * T_out + t_out) * frame_out
        offs += offs_w + LOW_F * WIDTH
        old = load_output_grads(
            dy_ptr, y_ptr, offs, frame_out, made, mask_w, f_out, F_out,
            OLD, WIDTH, PACK, RELU,
        )  # fmt: skip
        window = mask_output_grads(old, DTYPE, PACK, RELU)
        f_out += OLD
        offs += OLD * WIDTH
        dys = load_output_grads(
            dy_ptr, y_ptr, offs, frame_out, made, mask_w, f_out, F_out,
            NEW, WIDTH, PACK, RELU,
        )  # fmt: skip
        xs = load_columns(
            x_row, frame, seen, mask_w, f, F, CELL, WIDTH, PADDING
        )
        for _ in range(0, F, CELL):
            window = window + mask_output_grads(dys, DTYPE, PACK, RELU)
            cell = xs
            f_out += NEW
            offs += NEW * WIDTH
            dys = load_output_grads(
                dy_ptr, y_ptr, offs, frame_out, made, mask_w, f_out, F_out,
                NEW, WIDTH, PACK, RELU,
            )  # fmt: skip
            x_row += CELL * WIDTH
            xs = load_columns(
                x_row, frame, seen, mask_w, f + CELL, F, CELL, WIDTH, PADDING
            )
            if WEIGHT_GRAD:
                dbias = add_bias_grad(
                    dbias, window, K_T, K_F, STRIDE_T, STRIDE_F, PAD_T, PAD_F
                )
            for q in tl.static_range(CELL):
                hs = activate(
                    cell[CELL * q : CELL * q + CELL], input_bias, seen,
                    f + q, F, 1, DTYPE, PACK, RELU, HAS_INPUT_BIAS,
                )  # fmt: skip
                if WEIGHT_GRAD:
                    dweight = add_weight_grads(
                        dweight, hs, window, q,
                        K_T, K_F, STRIDE_T, STRIDE_F, PAD_T, PAD_F,
                    )  # fmt: skip
                if INPUT_GRAD:
                    dxs = input_grads(
                        taps, window, q,
                        K_T, K_F, STRIDE_T, STRIDE_F, PAD_T, PAD_F,
                    )  # fmt: skip
                    if RELU == "before":
                        dxs = pass_relu(dxs, hs)
                    else:
                        dxs = mask_columns(dxs, seen, f + q, F, 1)
                    for n in tl.static_range(len(dxs)):
                        dinput_bias += dxs[n]
                    store_columns(
                        dx_ptr + dx_offs + q * C, dxs, frame * PACK, there,
                        mask_c[None, :], f + q, F, 1, C,
                    )  # fmt: skip
            dx_offs += CELL * C
            f += CELL
            window = window[NEW * SEEN_T :]

    out = partial_ptr + program.to(tl.int64) * SUMS + COLUMN
    if INPUT_GRAD and HAS_INPUT_BIAS:
        store_sums(out, (dinput_bias,), offs_c, mask_c, 1)
        out += C
    if WEIGHT_GRAD:
        store_sums(out, dweight, offs_c, mask_c, TAPS)
        store_sums(out + TAPS * C, (dbias,), offs_c, mask_c, 1)


@triton.jit
def _scatter(
    acc,
    hs,
    taps,
    FIRST: tl.constexpr,
    COUNT: tl.constexpr,
    K_T: tl.constexpr,
    K_F: tl.constexpr,
    STRIDE_F: tl.constexpr,
):
    """Add columns, from the first open output's column FIRST on."""
    out = ()
    for m in tl.static_range(len(acc)):
        y = acc[m]
        for q in tl.static_range(COUNT):
            if FIRST + q >= m * STRIDE_F:
                for r in tl.static_range(K_T):
                    tap = taps[r * K_F + FIRST + q - m * STRIDE_F]
                    y += hs[q * K_T + r] * tap[None, :]
        out = out + (y,)
    return out
