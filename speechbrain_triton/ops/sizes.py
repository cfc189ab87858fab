"""Whole numbers for launches.

Triton has the first two, for use inside kernels too; there a call costs 4 us
of host time.
"""

from typing import TypeVar

import torch

Length = TypeVar("Length", int, torch.Tensor)


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


def out_length(
    length: Length, kernel: int, stride: int, padding: str
) -> Length:
    """Frames (or bins) that a strided convolution makes of so many.

    Arguments
    ---------
    length : int or torch.Tensor
        Whole numbers, at least 0.
    kernel : int
        Taps, odd.
    stride : int
        Frames from one output to the next.
    padding : str
        ``"same"`` or ``"causal"`` (kernel - 1 zeros in all), or ``"valid"``.

    Returns
    -------
    int or torch.Tensor
        At least 1 for a length that the kernel fits into.

    Example
    -------
    >>> out_length(9, 3, 2, "same"), out_length(9, 3, 2, "valid")
    (5, 4)
    """
    if padding == "valid":
        length = length - (kernel - 1)
    return (length - 1) // stride + 1
