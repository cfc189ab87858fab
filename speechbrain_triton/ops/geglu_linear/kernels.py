"""GEGLU behind a linear layer: first half * gelu(second half), and dropout.

z (M, 2 F) is the layer's output, h (M, F) the gated one. Each kernel passes
over them once, with what sums over rows there are.
"""

import triton.language as tl

from speechbrain_triton.ops.geglu_linear.mask import dropout_factor
from speechbrain_triton.ops.gelu import gelu_cdf
from speechbrain_triton.ops.jit import jit_for_any

jit = jit_for_any(
    ("M", "rows_per_program", "seed_low", "seed_high", "threshold", "scale")
)


@jit
def geglu_kernel(
    z_ptr,
    h_ptr,
    M,
    seed_low,
    seed_high,
    threshold,
    scale,
    F: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_F: tl.constexpr,
    TANH: tl.constexpr,
    DROPOUT: tl.constexpr,
):
    """h = first half * gelu(second half), with dropout."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    columns = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)[None, :]
    mask = (rows < M) & (columns < F)
    offs = rows.to(tl.int64) * (2 * F) + columns
    first = tl.load(z_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(z_ptr + F + offs, mask=mask, other=0.0).to(tl.float32)
    cdf, _ = gelu_cdf(second, TANH)
    h = first * second * cdf
    if DROPOUT:
        h *= dropout_factor(
            rows,
            tl.program_id(1),
            seed_low,
            seed_high,
            threshold,
            scale,
            BLOCK_F,
        )
    out = h_ptr + rows.to(tl.int64) * F + columns
    tl.store(out, h.to(h_ptr.dtype.element_ty), mask=mask)


@jit
def geglu_grad_kernel(
    dh_ptr,
    z_ptr,
    dz_ptr,
    h_ptr,
    partial_ptr,
    M,
    rows_per_program,
    seed_low,
    seed_high,
    threshold,
    scale,
    F: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_F: tl.constexpr,
    TANH: tl.constexpr,
    DROPOUT: tl.constexpr,
    SUMS: tl.constexpr,
):
    """dz, h again where it is wanted, and each program's sums of dz.

    These are the columns of partial (P, SUMS), SUMS = 2 F, or 0 for none.
    """
    columns = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)[None, :]
    mask_f = columns < F
    first_sum = tl.zeros([ROWS, BLOCK_F], dtype=tl.float32)
    second_sum = tl.zeros([ROWS, BLOCK_F], dtype=tl.float32)
    start = tl.program_id(0) * rows_per_program
    last = tl.minimum(start + rows_per_program, M)
    for row in range(start, last, ROWS):
        rows = row + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        mask = (rows < last) & mask_f
        narrow = rows.to(tl.int64) * F + columns
        wide = rows.to(tl.int64) * (2 * F) + columns
        dh = tl.load(dh_ptr + narrow, mask=mask, other=0.0).to(tl.float32)
        first = tl.load(z_ptr + wide, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(z_ptr + F + wide, mask=mask, other=0.0)
        second = second.to(tl.float32)
        cdf, slope = gelu_cdf(second, TANH)
        gelu = second * cdf
        h = first * gelu
        if DROPOUT:
            factor = dropout_factor(
                rows,
                tl.program_id(1),
                seed_low,
                seed_high,
                threshold,
                scale,
                BLOCK_F,
            )
            dh *= factor
            h *= factor
        dfirst = dh * gelu
        dsecond = dh * first * slope
        dtype = dz_ptr.dtype.element_ty
        tl.store(dz_ptr + wide, dfirst.to(dtype), mask=mask)
        tl.store(dz_ptr + F + wide, dsecond.to(dtype), mask=mask)
        if h_ptr is not None:
            tl.store(h_ptr + narrow, h.to(dtype), mask=mask)
        if SUMS:
            first_sum += dfirst
            second_sum += dsecond
    if SUMS:
        out = partial_ptr + tl.program_id(0).to(tl.int64) * SUMS
        out += columns
        tl.store(out, tl.sum(first_sum, axis=0, keep_dims=True), mask=mask_f)
        tl.store(
            out + F, tl.sum(second_sum, axis=0, keep_dims=True), mask=mask_f
        )
