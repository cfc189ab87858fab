"""The gate before each timing: is the kernel's result as good as stock's?"""

from collections.abc import Sequence

import torch

# A kernel may be at most this much further from float64 than stock is in the
# same dtype, plus a floor for sums that stock happens to round exactly.
STOCK_FACTOR = 2.0
FLOOR = 1e-7


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
    names: Sequence[str],
    ours: Sequence[torch.Tensor],
    stock: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
) -> str | None:
    """Say which result is worse than stock's, if one is.

    Arguments
    ---------
    names : sequence of str
        What the tensors are, for the message.
    ours, stock, exact : sequence of torch.Tensor
        The kernel's results, stock's in the same dtype, and float64's.

    Returns
    -------
    str or None
        One sentence, or None where all is well.
    """
    for name, a, b, c in zip(names, ours, stock, exact, strict=True):
        error, bound = relative_error(a, c), relative_error(b, c)
        # Written so that NaN fails.
        if not error <= STOCK_FACTOR * bound + FLOOR:
            return (
                f"{name} has relative error {error:.1e} against float64, "
                f"stock has {bound:.1e}"
            )
    return None
