"""The gated linear unit on (frames, 2 C) rows, forward and backward."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n_rows"])
def glu_kernel(
    h_ptr,
    bias_ptr,
    g_ptr,
    n_rows,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """g = a * sigmoid(b), where a and b are the halves of h + bias."""
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    mask = (row < n_rows) & (offs_c < C)  # [ROWS, BLOCK_C]
    offs = row.to(tl.int64) * (2 * C) + offs_c
    a, b = _halves(h_ptr, bias_ptr, offs, offs_c, mask, C, HAS_BIAS)
    g = a * tl.sigmoid(b)
    offs = row.to(tl.int64) * C + offs_c
    tl.store(g_ptr + offs, g.to(g_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n_rows", "rows_per_program"])
def glu_grad_kernel(
    dg_ptr,
    h_ptr,
    bias_ptr,
    dh_ptr,
    g_ptr,
    partial_ptr,
    n_rows,
    rows_per_program,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    COLUMN: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """dh, g once more, and each program's column sums of dh for the bias.

    The sums go to a row of partial (P, WIDTH), from COLUMN on.
    """
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    sum_a = tl.zeros([ROWS, BLOCK_C], dtype=tl.float32)
    sum_b = tl.zeros([ROWS, BLOCK_C], dtype=tl.float32)
    first = tl.program_id(0) * rows_per_program
    last = tl.minimum(first + rows_per_program, n_rows)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        mask = (row < last) & (offs_c < C)
        offs = row.to(tl.int64) * (2 * C) + offs_c
        a, b = _halves(h_ptr, bias_ptr, offs, offs_c, mask, C, HAS_BIAS)
        offs_g = row.to(tl.int64) * C + offs_c
        dg = tl.load(dg_ptr + offs_g, mask=mask, other=0.0).to(tl.float32)
        gate = tl.sigmoid(b)
        g = a * gate
        da = dg * gate
        db = dg * g * (1.0 - gate)
        sum_a += da
        sum_b += db
        tl.store(g_ptr + offs_g, g.to(g_ptr.dtype.element_ty), mask=mask)
        tl.store(dh_ptr + offs, da.to(dh_ptr.dtype.element_ty), mask=mask)
        tl.store(dh_ptr + offs + C, db.to(dh_ptr.dtype.element_ty), mask=mask)

    if HAS_BIAS:
        offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
        row = tl.program_id(0).to(tl.int64)
        out = partial_ptr + row * WIDTH + COLUMN + offs_c
        tl.store(out, tl.sum(sum_a, axis=0), mask=offs_c < C)
        tl.store(out + C, tl.sum(sum_b, axis=0), mask=offs_c < C)


@triton.jit
def _halves(
    h_ptr, bias_ptr, offs, offs_c, mask, C: tl.constexpr, HAS_BIAS: tl.constexpr
):
    a = tl.load(h_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(h_ptr + offs + C, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        mask_c = offs_c < C
        bias = tl.load(bias_ptr + offs_c, mask=mask_c, other=0.0)
        a += bias.to(tl.float32)
        bias = tl.load(bias_ptr + C + offs_c, mask=mask_c, other=0.0)
        b += bias.to(tl.float32)
    return a, b
