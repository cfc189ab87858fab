"""What the kernels of both passes compute for each element."""

import triton
import triton.language as tl


@triton.jit
def gelu_cdf(z, TANH: tl.constexpr):
    """gelu(z) / z, and gelu'(z)."""
    if TANH:
        # Far beyond where tanh is 1, so that the slope stays finite.
        square = tl.minimum(z * z, 1e4)
        # sigmoid(2 u) = (1 + tanh(u)) / 2
        exponent = -2.302208198 - 0.1029432396 * square
        cdf = 1.0 / (1.0 + tl.exp2(exponent * z))
        du = 1.5957691216057308 * (1.0 + 0.134145 * square)
        return cdf, cdf + z * du * cdf * (1.0 - cdf)
    density = tl.exp2(-0.7213475204444817 * z * z)
    tail = tail_over_density(1.0 / (1.0 + 0.3 * tl.abs(z))) * density
    cdf = tl.where(z > 0.0, 1.0 - tail, tail)
    return cdf, cdf + 0.3989422804014327 * z * density


@triton.jit
def tail_over_density(t):
    """The normal distribution's tail behind |z| over exp(-z * z / 2).

    In t = 1 / (1 + 0.3 |z|): a minimax fit of the relative error, which is
    below 1.5e-7 up to |z| = 14, where the density leaves float32. At about
    half of erf's instructions it is right in the tail too, where 1 + erf
    cancels, and the density that gelu' needs comes with it.
    """
    tail = 0.03567477 * t - 0.15720308
    tail = tail * t + 0.2063535
    tail = tail * t - 0.05368364
    tail = tail * t + 0.12856163
    tail = tail * t + 0.09991349
    tail = tail * t + 0.12075396
    tail = tail * t + 0.1196293
    return tail * t


@triton.jit
def is_kept(rows, pairs, seed_low, seed_high, threshold):
    """Dropout's mask of pairs of columns, as ops/dropout.py defines it.

    Arguments
    ---------
    rows, pairs
        [ROWS, 1] and [1, BLOCK / 2].

    Returns
    -------
    tuple
        Of the first and the second column of each pair, [ROWS, BLOCK / 2].
    """
    low = seed_low.to(tl.uint32, bitcast=True)
    high = seed_high.to(tl.uint32, bitcast=True)
    least = threshold.to(tl.uint32, bitcast=True)
    key = mixed(mixed(rows.to(tl.uint32) ^ low) ^ high)
    word = mixed(key ^ (pairs.to(tl.uint32) * 0x9E3779B9))
    return (word << 16) >= least, word >= least


@triton.jit
def mixed(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def dropout_factor(
    rows, block, seed_low, seed_high, threshold, scale, BLOCK: tl.constexpr
):
    """What dropout multiplies by: the scale or 0.

    Of rows [ROWS, 1], and of the columns of one block, [ROWS, BLOCK].
    """
    pairs = block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
    even, odd = is_kept(rows, pairs, seed_low, seed_high, threshold)
    kept = tl.join(even, odd).reshape(rows.shape[0], BLOCK)
    return tl.where(kept, scale, 0.0)
