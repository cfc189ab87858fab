"""Convolution, ReLU and depthwise convolution, without the tensor between.

Of the C channels of the first convolution only its patches of the input
matter: K * K values, and a one for the bias, in a row of WIDTH. They are laid
out once, as ``patch`` (B, T1, F1, WIDTH), all zero where the hidden layer has
to be zero. The hidden layer at a patch is relu(weight @ patch), a matrix
product with a short inner dimension, so it is computed wherever it is needed,
on tensor cores: for a tile of outputs once for each tap (i, j) of the
depthwise convolution,

    y[m, c] = bias[c] + sum_ij depthwise[c, ij] relu(weight[c] . patch_ij[m])

where patch_ij[m] is the patch that meets output m at that tap. Products are
taken as (channel, output), so that what belongs to a channel is one register.

For backward everything follows from the sums over outputs

    D_ij[c, k] = sum_m dy[m, c] [weight[c] . patch_ij[m] > 0] patch_ij[m, k]

since ReLU is linear where it is not zero: dweight[c] is the sum of
depthwise[c, ij] D_ij[c], and ddepthwise[c, ij] is weight[c] . D_ij[c].
"""

import triton
import triton.language as tl

from speechbrain_triton.ops.conv_stem.patches import jit, split


@jit
def stem_kernel(
    patch_ptr,
    weight_ptr,
    bias_ptr,
    depthwise_ptr,
    depthwise_bias_ptr,
    y_ptr,
    n_rows,
    rows_per_program,
    T1,
    F1,
    T2,
    F2,
    C: tl.constexpr,
    K: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD_T: tl.constexpr,
    PAD_F: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TAPS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_DEPTHWISE_BIAS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """y (B T2 F2, C); the blocks of a tile's channels follow each other.

    TAPS are unrolled: the patches of all are then asked for a tile ahead.
    """
    DTYPE: tl.constexpr = patch_ptr.dtype.element_ty
    BLOCKS: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    offs_c = tl.program_id(0) % BLOCKS * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_c = offs_c < C
    weight = _weight_rows(
        weight_ptr, bias_ptr, offs_c, mask_c, K, WIDTH, HAS_BIAS
    ).to(DTYPE)
    bias = tl.zeros([BLOCK_C], dtype=tl.float32)
    if HAS_DEPTHWISE_BIAS:
        bias += tl.load(depthwise_bias_ptr + offs_c, mask=mask_c, other=0.0)

    first = tl.program_id(0) // BLOCKS * rows_per_program
    last = tl.minimum(first + rows_per_program, n_rows)
    for start in tl.range(first, last, BLOCK_M, num_stages=2):
        row = start + tl.arange(0, BLOCK_M)
        mask_m = row < last
        acc = tl.zeros([BLOCK_C, BLOCK_M], dtype=tl.float32) + bias[:, None]
        for first_tap in tl.range(0, K * K, TAPS, num_stages=3):
            for n in tl.static_range(TAPS):
                tap = first_tap + n
                patch = _load_patches(
                    patch_ptr, row, mask_m, tap // K, tap % K, T1, F1, T2, F2,
                    STRIDE, PAD_T, PAD_F, WIDTH,
                )  # fmt: skip
                h = _dot(weight, tl.trans(patch), UPCAST)
                at = depthwise_ptr + offs_c * (K * K) + tap
                depthwise = tl.load(at, mask=mask_c, other=0.0).to(tl.float32)
                h = tl.maximum(h, 0.0, propagate_nan=tl.PropagateNan.ALL)
                acc += h * depthwise[:, None]
        offs = row.to(tl.int64)[:, None] * C + offs_c[None, :]
        y = tl.trans(acc).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + offs, y, mask=mask_m[:, None] & mask_c[None, :])


@jit
def stem_sums_kernel(
    patch_ptr,
    weight_ptr,
    bias_ptr,
    dy_ptr,
    partial_ptr,
    n_rows,
    rows_per_program,
    T1,
    F1,
    T2,
    F2,
    C: tl.constexpr,
    K: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD_T: tl.constexpr,
    PAD_F: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TAPS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Each program's D_ij over its rows, for TAPS taps, and the sum of dy.

    A row of partial holds D as (K * K, C, WIDTH) and behind it the sums of
    dy (C,).
    """
    DTYPE: tl.constexpr = patch_ptr.dtype.element_ty
    BLOCKS: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    program = tl.program_id(0) // BLOCKS
    first_tap = 0
    if TAPS < K * K:
        first_tap = tl.program_id(1) * TAPS
    offs_c = tl.program_id(0) % BLOCKS * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_c = offs_c < C
    weight = _weight_rows(
        weight_ptr, bias_ptr, offs_c, mask_c, K, WIDTH, HAS_BIAS
    ).to(DTYPE)

    sums = (tl.zeros([BLOCK_C, WIDTH], dtype=tl.float32),) * TAPS
    dy_sum = tl.zeros([BLOCK_C], dtype=tl.float32)
    first = program * rows_per_program
    last = tl.minimum(first + rows_per_program, n_rows)
    for start in tl.range(first, last, BLOCK_M, num_stages=2):
        row = start + tl.arange(0, BLOCK_M)
        mask_m = row < last
        offs = row.to(tl.int64)[:, None] * C + offs_c[None, :]
        mask = mask_m[:, None] & mask_c[None, :]
        dy = tl.load(dy_ptr + offs, mask=mask, other=0.0)
        dy = _transpose(dy, UPCAST)  # [BLOCK_C, BLOCK_M]
        dy_sum += tl.sum(dy.to(tl.float32), axis=1)
        for n in tl.static_range(TAPS):
            tap = first_tap + n
            patch = _load_patches(
                patch_ptr, row, mask_m, tap // K, tap % K, T1, F1, T2, F2,
                STRIDE, PAD_T, PAD_F, WIDTH,
            )  # fmt: skip
            h = _dot(weight, tl.trans(patch), UPCAST)
            passed = _pass_alive(h, dy, UPCAST)
            total = sums[n] + _dot(passed, patch, UPCAST)
            sums = sums[:n] + (total,) + sums[n + 1 :]

    k = tl.arange(0, WIDTH)[None, :]
    partial_ptr += program.to(tl.int64) * (C * (K * K * WIDTH + 1))
    for n in tl.static_range(TAPS):
        tap = first_tap + n
        offs = (tap * C + offs_c[:, None]) * WIDTH + k
        mask = mask_c[:, None] & (tap < K * K)
        tl.store(partial_ptr + offs, sums[n], mask=mask)
    mask_c &= tl.program_id(1) == 0
    tl.store(partial_ptr + C * K * K * WIDTH + offs_c, dy_sum, mask=mask_c)


@jit
def stem_parameters_kernel(
    partial_ptr,
    weight_ptr,
    bias_ptr,
    depthwise_ptr,
    grad_ptr,
    n_partials,
    C: tl.constexpr,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    DTYPE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Gradients of the parameters, from the sums of each program.

    grad holds dweight and ddepthwise, (C, K * K) each, and behind them dbias
    and ddepthwise_bias, (C,). The loads of all taps are under way at once:
    nothing else hides their latency.
    """
    TAPS: tl.constexpr = K * K
    SUMS: tl.constexpr = C * (TAPS * WIDTH + 1)
    offs_c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_c = offs_c < C
    k = tl.arange(0, WIDTH)[None, :]
    offs_d = (offs_c[:, None] * WIDTH + k)[None, :, :]
    sums = (tl.zeros([BLOCK_P, BLOCK_C, WIDTH], dtype=tl.float32),) * TAPS
    dy_sums = tl.zeros([BLOCK_P, BLOCK_C], dtype=tl.float32)
    for first in range(0, n_partials, BLOCK_P):
        row = first + tl.arange(0, BLOCK_P)[:, None]  # [BLOCK_P, 1]
        start = partial_ptr + row.to(tl.int64) * SUMS
        mask = (row < n_partials) & mask_c[None, :]
        for tap in tl.static_range(TAPS):
            at = start[:, :, None] + tap * C * WIDTH + offs_d
            d = tl.load(at, mask=mask[:, :, None], other=0.0)
            sums = sums[:tap] + (sums[tap] + d,) + sums[tap + 1 :]
        at = start + C * TAPS * WIDTH + offs_c[None, :]
        dy_sums += tl.load(at, mask=mask, other=0.0)

    # As forward rounded it.
    weight = _weight_rows(
        weight_ptr, bias_ptr, offs_c, mask_c, K, WIDTH, HAS_BIAS
    ).to(DTYPE).to(tl.float32)  # fmt: skip
    dweight = tl.zeros([BLOCK_C, WIDTH], dtype=tl.float32)
    for tap in tl.static_range(TAPS):
        d = tl.sum(sums[tap], axis=0)  # [BLOCK_C, WIDTH]
        offs = offs_c * TAPS + tap
        depthwise = tl.load(depthwise_ptr + offs, mask=mask_c, other=0.0)
        dweight += depthwise.to(tl.float32)[:, None] * d
        ddepthwise = tl.sum(weight * d, axis=1)
        tl.store(grad_ptr + C * TAPS + offs, ddepthwise, mask=mask_c)

    offs = offs_c[:, None] * TAPS + k
    tl.store(grad_ptr + offs, dweight, mask=mask_c[:, None] & (k < TAPS))
    grad_ptr += 2 * C * TAPS
    dbias = tl.sum(tl.where(k == TAPS, dweight, 0.0), axis=1)
    tl.store(grad_ptr + offs_c, dbias, mask=mask_c)
    tl.store(grad_ptr + C + offs_c, tl.sum(dy_sums, axis=0), mask=mask_c)


@jit
def patch_grad_kernel(
    patch_ptr,
    weight_ptr,
    bias_ptr,
    depthwise_ptr,
    dy_ptr,
    dpatch_ptr,
    n_rows,
    T1,
    F1,
    T2,
    F2,
    C: tl.constexpr,
    K: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD_T: tl.constexpr,
    PAD_F: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_M: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """dpatch (B T1 F1, WIDTH): the gradient of each hidden position's patch.

    An output meets a hidden position at tap (i, j) where position + pad - tap
    is a multiple of the stride.
    """
    DTYPE: tl.constexpr = patch_ptr.dtype.element_ty
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_m = row < n_rows
    b, t1, f1 = split(row, T1, F1)
    k = tl.arange(0, WIDTH)[None, :]
    offs = row.to(tl.int64)[:, None] * WIDTH + k
    patch = tl.load(patch_ptr + offs, mask=mask_m[:, None], other=0.0)
    dpatch = tl.zeros([BLOCK_M, WIDTH], dtype=tl.float32)
    for c in tl.range(0, C, BLOCK_C, num_stages=1):
        offs_c = c + tl.arange(0, BLOCK_C)
        mask_c = offs_c < C
        weight = _weight_rows(
            weight_ptr, bias_ptr, offs_c, mask_c, K, WIDTH, HAS_BIAS
        ).to(DTYPE)
        dh = tl.zeros([BLOCK_M, BLOCK_C], dtype=tl.float32)
        for tap in tl.range(0, K * K, num_stages=1):
            t = t1 + (PAD_T - tap // K)
            f = f1 + (PAD_F - tap % K)
            met = mask_m & (t >= 0) & (t < T2 * STRIDE) & (t % STRIDE == 0)
            met &= (f >= 0) & (f < F2 * STRIDE) & (f % STRIDE == 0)
            at = (b * T2 + t // STRIDE) * F2 + f // STRIDE
            dy_offs = at.to(tl.int64)[:, None] * C + offs_c[None, :]
            mask = met[:, None] & mask_c[None, :]
            dy = tl.load(dy_ptr + dy_offs, mask=mask, other=0.0).to(tl.float32)
            at = depthwise_ptr + offs_c * (K * K) + tap
            depthwise = tl.load(at, mask=mask_c, other=0.0).to(tl.float32)
            dh += dy * depthwise[None, :]
        alive = _dot(patch, tl.trans(weight), UPCAST) > 0.0
        dh = tl.where(alive, dh, 0.0).to(DTYPE)
        dpatch += _dot(dh, weight, UPCAST)
    tl.store(dpatch_ptr + offs, dpatch, mask=mask_m[:, None])


@triton.jit
def _load_patches(
    patch_ptr, row, mask_m, i, j, T1, F1, T2, F2,
    STRIDE: tl.constexpr, PAD_T: tl.constexpr, PAD_F: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Patches (rows, WIDTH) that meet outputs at tap (i, j), else zeros."""
    b, t2, f2 = split(row, T2, F2)
    t1 = t2 * STRIDE - PAD_T + i
    f1 = f2 * STRIDE - PAD_F + j
    mask = mask_m & (t1 >= 0) & (t1 < T1) & (f1 >= 0) & (f1 < F1)
    at = (b * T1 + t1) * F1 + f1
    k = tl.arange(0, WIDTH)[None, :]
    offs = at.to(tl.int64)[:, None] * WIDTH + k
    return tl.load(patch_ptr + offs, mask=mask[:, None], other=0.0)


@triton.jit
def _weight_rows(
    weight_ptr, bias_ptr, offs_c, mask_c,
    K: tl.constexpr, WIDTH: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """(channels, WIDTH): K * K taps, the bias, zeros; as patches are laid."""
    k = tl.arange(0, WIDTH)[None, :]
    offs = offs_c[:, None] * (K * K) + k
    mask = mask_c[:, None] & (k < K * K)
    weight = tl.load(weight_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + offs_c, mask=mask_c, other=0.0)
        weight += tl.where(k == K * K, bias.to(tl.float32)[:, None], 0.0)
    return weight


@triton.jit
def _transpose(x, UPCAST: tl.constexpr):
    """x turned; halves by a product with ones, which tensor cores read turned.

    Exactly so, and in the layout of a product: in shared memory, turning 64 by
    64 halves takes a third of the kernel's time, for conflicts between banks.
    """
    if x.dtype == tl.float32 or UPCAST:
        return tl.trans(x)
    n = tl.arange(0, x.shape[1])
    ones = (n[:, None] == n[None, :]).to(x.dtype)
    return _dot(ones, tl.trans(x), UPCAST).to(x.dtype)


@triton.jit
def _pass_alive(h, dy, UPCAST: tl.constexpr):
    """dy where h > 0, else 0.

    As a product with 0 or 1: on NVIDIA that is a saturated product and a
    packed one, which take half the time of comparing and selecting.
    """
    if UPCAST:
        return tl.where(h <= 0.0, 0.0, dy)
    alive = tl.minimum(tl.maximum(h * 1e38, 0.0), 1.0)
    return dy * alive.to(dy.dtype)


@triton.jit
def _dot(a, b, UPCAST: tl.constexpr):
    """Product with float32 sums, of float32 without TF32.

    UPCAST is for the interpreter, whose own is wrong in bfloat16.
    """
    if UPCAST:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")
