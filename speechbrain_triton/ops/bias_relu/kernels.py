"""A bias, ReLU and zeros behind each utterance, for (B, T, F, C) tensors.

Backward needs the output alone: it is zero wherever no gradient passes.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n_rows", "T", "F"])
def bias_relu_kernel(
    x_ptr,
    bias_ptr,
    lengths_ptr,
    y_ptr,
    n_rows,
    T,
    F,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
):
    """y = max(x + bias, 0), and 0 from each length on. Rows are B * T * F."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    mask = (row < n_rows) & (offs_c < C)
    offs = row.to(tl.int64) * C + offs_c
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + offs_c, mask=offs_c < C, other=0.0)
    y = x + bias.to(tl.float32)
    y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if HAS_LENGTHS:
        frame = row // F
        length = tl.load(lengths_ptr + frame // T, mask=row < n_rows, other=0)
        y = tl.where(frame % T < length.to(tl.int32), y, 0.0)
    tl.store(y_ptr + offs, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n_rows", "rows_per_program"])
def bias_relu_grad_kernel(
    dy_ptr,
    y_ptr,
    dx_ptr,
    partial_ptr,
    n_rows,
    rows_per_program,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    COLUMN: tl.constexpr,
    SUMS: tl.constexpr,
):
    """dx, and each program's sums of it for dbias.

    They are C columns of partial (P, SUMS), from COLUMN on.
    """
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    mask_c = offs_c < C
    dbias = tl.zeros([ROWS, BLOCK_C], dtype=tl.float32)
    first = tl.program_id(0) * rows_per_program
    last = tl.minimum(first + rows_per_program, n_rows)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        mask = (row < last) & mask_c
        offs = row.to(tl.int64) * C + offs_c
        dy = tl.load(dy_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        dx = tl.where(y > 0.0, dy, 0.0)
        dbias += dx
        tl.store(dx_ptr + offs, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    out = partial_ptr + tl.program_id(0).to(tl.int64) * SUMS + COLUMN + offs_c
    tl.store(out, tl.sum(dbias, axis=0, keep_dims=True), mask=mask_c)
