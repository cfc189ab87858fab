"""Kernels that a new length does not compile anew."""

from collections.abc import Callable, Sequence

import triton


def jit_for_any(lengths: Sequence[str]) -> Callable[[Callable], object]:
    """Make a decorator like ``triton.jit`` for kernels with these arguments.

    Speech lengths vary from batch to batch. Triton would compile a variant
    for each integer argument that is 1, or a multiple of 16, by chance.

    Arguments
    ---------
    lengths : sequence of str
        Names of arguments; a kernel need not have all of them.

    Returns
    -------
    callable
    """

    def decorate(function):
        own = [n for n in lengths if n in function.__code__.co_varnames]
        return triton.jit(do_not_specialize=own)(function)

    return decorate
