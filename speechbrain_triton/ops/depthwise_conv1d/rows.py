"""Loading rows and taps into registers, as tuples of channel vectors."""

import triton
import triton.language as tl


@triton.jit
def load_weight(
    weight_ptr,
    offs_c,
    mask_c,
    K: tl.constexpr,
    REVERSED: tl.constexpr,
):
    """The taps of weight (C, K) as float32, K filled up to a power of 2."""
    k = tl.arange(0, triton.next_power_of_2(K))[None, :]
    mask = mask_c[:, None] & (k < K)
    if REVERSED:
        k = K - 1 - k
    weight = tl.load(weight_ptr + offs_c[:, None] * K + k, mask=mask, other=0.0)
    return weight.to(tl.float32)


@triton.constexpr_function
def _log2(n):
    return n.bit_length() - 1


@triton.jit
def columns(matrix):
    """Split (M, N), N a power of 2, into a tuple of its columns."""
    M: tl.constexpr = matrix.shape[0]
    N: tl.constexpr = matrix.shape[1]
    parts = (matrix,)
    for level in tl.static_range(1, _log2(N) + 1):
        evens = ()
        odds = ()
        for p in tl.static_range(len(parts)):
            even, odd = tl.split(tl.reshape(parts[p], [M, N >> level, 2]))
            evens = evens + (even,)
            odds = odds + (odd,)
        parts = evens + odds
    columns = ()
    for n in tl.static_range(N):
        columns = columns + (tl.reshape(parts[n], [M]),)
    return columns


@triton.jit
def words(ptr, PACK: tl.constexpr):
    """The same address, of words of PACK channels."""
    if PACK == 2:
        ptr = ptr.to(tl.pointer_type(tl.int32))
    return ptr


@triton.jit
def load_rows(
    row_ptr,
    row,
    stop,
    FIRST: tl.constexpr,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """COUNT rows, zero outside of 0...stop.

    row_ptr is at ``row``, FIRST rows before the first one wanted.
    """
    rows = ()
    for r in tl.static_range(FIRST, FIRST + COUNT):
        mask = _within(row + r, stop)
        rows = rows + (tl.load(row_ptr + r * WIDTH, mask=mask, other=0.0),)
    return rows


@triton.jit
def unpack(word, DTYPE: tl.constexpr, PACK: tl.constexpr):
    """The channels of words, as float32."""
    if PACK == 1:
        return word.to(tl.float32)
    elif DTYPE == tl.bfloat16:
        # The upper half of a float32 is a bfloat16.
        low = (word << 16).to(tl.float32, bitcast=True)
        high = (word & -65536).to(tl.float32, bitcast=True)
        return tl.interleave(low, high)
    else:
        low = word.to(tl.int16).to(DTYPE, bitcast=True)
        high = (word >> 16).to(tl.int16).to(DTYPE, bitcast=True)
        return tl.interleave(low.to(tl.float32), high.to(tl.float32))


@triton.jit
def _within(row, count):
    """0 <= row < count, by one unsigned comparison."""
    return row.to(tl.uint32) < count.to(tl.uint32)
