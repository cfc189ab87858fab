"""Whole numbers for launches.

Triton has the same functions, for use inside kernels too; there a call costs
4 us of host time.
"""


def cdiv(a: int, b: int) -> int:
    """Divide positive integers, rounding up.

    Example
    -------
    >>> cdiv(7, 2)
    4
    """
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n, for n >= 1.

    Example
    -------
    >>> next_power_of_2(144)
    256
    """
    return 1 << (n - 1).bit_length()
