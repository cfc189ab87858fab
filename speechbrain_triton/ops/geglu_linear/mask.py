"""Dropout's mask in kernels, as ops/dropout.py defines it."""

import triton
import triton.language as tl


@triton.jit
def is_kept(rows, pairs, seed_low, seed_high, threshold):
    """Which elements of pairs of columns are kept.

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
