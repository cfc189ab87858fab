"""The gate before each timing: is the result as good as PyTorch's?"""

from collections.abc import Callable, Mapping

import torch

from speechbrain_triton.bench.shapes import Measured

# An implementation may be at most this much further from float64 than
# plain PyTorch is in the same dtype, plus a floor for sums that PyTorch happens
# to round exactly.
PLAIN_FACTOR = 2.0
FLOOR = 1e-7


class CheckFailed(RuntimeError):
    """A result is worse than PyTorch's: its time means nothing."""


# That cost one implementation its rows, and the run no more than that.
FAILURES = (CheckFailed, torch.OutOfMemoryError)


def failure_of(
    run: Callable[[], object], case: Measured, impl: str
) -> str | None:
    """Run an implementation of a case; say why it failed, if it did."""
    try:
        run()
    except FAILURES as error:
        return sentence_of(error, case, impl)
    return None


def sentence_of(error: Exception, case: Measured, impl: str) -> str:
    """What one of ``FAILURES`` is to a reader of the tables."""
    if isinstance(error, CheckFailed):
        return str(error)
    return (
        f"{case.op} {case.shape} {case.dtype} {impl}: the GPU has too little "
        "memory; no time is reported."
    )


def relative_error(out: torch.Tensor, exact: torch.Tensor) -> float:
    """‖out − exact‖ / ‖exact‖ in float64.

    Arguments
    ---------
    out : torch.Tensor
        Of any dtype.
    exact : torch.Tensor
        Of the same shape.

    Returns
    -------
    float

    Example
    -------
    >>> relative_error(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0]))
    0.1
    """
    out, exact = out.double(), exact.double()
    return ((out - exact).norm() / exact.norm()).item()


def complaint(
    found: Mapping[str, torch.Tensor],
    plain: Mapping[str, torch.Tensor],
    exact: Mapping[str, torch.Tensor],
    rounding: float = 0.0,
) -> str | None:
    """Say which result is worse than PyTorch's, if one is.

    Arguments
    ---------
    found : mapping of str to torch.Tensor
        The results to be judged, by name.
    plain, exact : mapping of str to torch.Tensor
        Plain PyTorch's in the same dtype, and float64's.
    rounding : float
        Relative error that is allowed on top.

    Returns
    -------
    str or None
        One sentence, or None where all is well.
    """
    for name, reference in exact.items():
        if found[name].shape != reference.shape:
            return (
                f"{name} has shape {tuple(found[name].shape)}, "
                f"PyTorch has {tuple(reference.shape)}"
            )
        error = relative_error(found[name], reference)
        bound = relative_error(plain[name], reference)
        # Written so that NaN fails.
        if not error <= PLAIN_FACTOR * bound + FLOOR + rounding:
            return (
                f"{name} has relative error {error:.1e} against float64, "
                f"PyTorch has {bound:.1e}"
            )
    return None
