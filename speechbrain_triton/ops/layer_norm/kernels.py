"""Layer normalisation over channels, with an activation behind it.

Rows are (batch, time) frames, columns channels. A program holds whole rows, so
backward recomputes mean and deviation from the row that it loads anyway, and
nothing but the input is kept for it.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n_rows", "rows_per_program", "eps"])
def layer_norm_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    n_rows,
    rows_per_program,
    eps,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """y = activation(normalise(x) * weight + bias), row by row."""
    offs_c = tl.arange(0, BLOCK_C)[None, :]  # [1, BLOCK_C]
    mask_c = offs_c < C
    weight = tl.load(weight_ptr + offs_c, mask=mask_c, other=0.0)
    weight = weight.to(tl.float32)
    bias = tl.load(bias_ptr + offs_c, mask=mask_c, other=0.0).to(tl.float32)

    first = tl.program_id(0) * rows_per_program
    last = tl.minimum(first + rows_per_program, n_rows)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        mask = (row < last) & mask_c
        offs = row.to(tl.int64) * C + offs_c
        x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        normed, _ = _normalise(x, mask, eps, C)
        y = _activate(normed * weight + bias, ACTIVATION)
        tl.store(y_ptr + offs, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n_rows", "rows_per_program", "eps"])
def layer_norm_grad_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    dy_ptr,
    dx_ptr,
    extra_ptr,
    partial_ptr,
    n_rows,
    rows_per_program,
    eps,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ACTIVATION: tl.constexpr,
    COLUMN: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_EXTRA: tl.constexpr,
):
    """dx, and each program's sums for dweight and dbias.

    The sums go to a row of partial (P, WIDTH), from COLUMN on, and behind them
    the column sums of extra (n_rows, C): the gradient of some other bias, for
    the price of reading it.
    """
    offs_c = tl.arange(0, BLOCK_C)[None, :]
    mask_c = offs_c < C
    weight = tl.load(weight_ptr + offs_c, mask=mask_c, other=0.0)
    weight = weight.to(tl.float32)
    bias = tl.load(bias_ptr + offs_c, mask=mask_c, other=0.0).to(tl.float32)

    dweight = tl.zeros([ROWS, BLOCK_C], dtype=tl.float32)
    dbias = tl.zeros([ROWS, BLOCK_C], dtype=tl.float32)
    dextra = tl.zeros([ROWS, BLOCK_C], dtype=tl.float32)
    first = tl.program_id(0) * rows_per_program
    last = tl.minimum(first + rows_per_program, n_rows)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        mask = (row < last) & mask_c
        offs = row.to(tl.int64) * C + offs_c
        x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        if HAS_EXTRA:
            extra = tl.load(extra_ptr + offs, mask=mask, other=0.0)
            dextra += extra.to(tl.float32)
        normed, scale = _normalise(x, mask, eps, C)
        dy *= _activation_slope(normed * weight + bias, ACTIVATION)
        dweight += dy * normed
        dbias += dy
        dnormed = dy * weight
        mean = tl.sum(dnormed, axis=1, keep_dims=True) / C
        along = tl.sum(dnormed * normed, axis=1, keep_dims=True) / C
        dx = (dnormed - mean - normed * along) * scale
        tl.store(dx_ptr + offs, dx.to(dx_ptr.dtype.element_ty), mask=mask)

    offs_c = tl.arange(0, BLOCK_C)
    mask_c = offs_c < C
    out = partial_ptr + tl.program_id(0).to(tl.int64) * WIDTH + COLUMN + offs_c
    tl.store(out, tl.sum(dweight, axis=0), mask=mask_c)
    tl.store(out + C, tl.sum(dbias, axis=0), mask=mask_c)
    if HAS_EXTRA:
        tl.store(out + 2 * C, tl.sum(dextra, axis=0), mask=mask_c)


@triton.jit
def _normalise(x, mask, eps, C: tl.constexpr):
    """Rows with mean 0 and variance 1, and the factor that made it 1."""
    mean = tl.sum(x, axis=1, keep_dims=True) / C
    centred = tl.where(mask, x - mean, 0.0)
    # The mean is rounded. Where all channels are equal, what remains of it is
    # all there is, and would be blown up to noise.
    rest = tl.sum(centred, axis=1, keep_dims=True) / C
    centred = tl.where(mask, centred - rest, 0.0)
    variance = tl.sum(centred * centred, axis=1, keep_dims=True) / C
    scale = 1.0 / tl.sqrt(variance + eps)
    # With eps 0 the scale of a masked row is infinite.
    return tl.where(mask, centred * scale, 0.0), scale


@triton.jit
def _activate(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "swish":
        x = x * tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == "leaky_relu":
        x = tl.where(x > 0.0, x, 0.01 * x)
    return x


@triton.jit
def _activation_slope(x, ACTIVATION: tl.constexpr):
    """The activation's derivative at x."""
    if ACTIVATION == "swish":
        s = tl.sigmoid(x)
        slope = s * (1.0 + x * (1.0 - s))
    elif ACTIVATION == "gelu":
        density = tl.exp(-0.5 * x * x) * 0.3989422804014327
        slope = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * density
    elif ACTIVATION == "relu":
        slope = tl.where(x > 0.0, 1.0, 0.0)
    elif ACTIVATION == "leaky_relu":
        slope = tl.where(x > 0.0, 1.0, 0.01)
    else:
        slope = tl.full(x.shape, 1.0, dtype=tl.float32)
    return slope
