"""The one rule by which results are compared."""

import os
from collections.abc import Mapping

import torch

# Ours may be at most this many times as far from the exact result as stock.
# Two units in the last place of float32 are free: a sum that stock happens to
# round exactly must not become a bound of zero.
FACTOR = 2.0
SLACK = 2.0**-22


def relative_error(value: torch.Tensor, exact: torch.Tensor) -> float:
    """Norm of the difference over the norm of the exact float64 result."""
    assert value.shape == exact.shape, (value.shape, exact.shape)
    difference = (value.double() - exact).norm().item()
    scale = exact.norm().item()
    return difference / scale if scale else difference


def assert_as_exact_as_stock(
    ours: Mapping[str, torch.Tensor],
    stock: Mapping[str, torch.Tensor],
    exact: Mapping[str, torch.Tensor],
    slack: Mapping[str, float] | None = None,
) -> None:
    """Hold each result against stock's own error in the same dtype.

    Arguments
    ---------
    ours, stock : mapping of str to torch.Tensor
        Results by name, such as ``y``, ``dx``, ``dweight``: of one dtype.
    exact : mapping of str to torch.Tensor
        The same in float64, from the same (rounded) inputs.
    slack : mapping of str to float
        Relative error that is free for the results named: those of a few
        numbers, which stock may hit by chance.
    """
    assert ours.keys() == stock.keys() == exact.keys()
    for name in exact:
        assert ours[name].dtype == stock[name].dtype, name
        error = relative_error(ours[name], exact[name])
        allowed = FACTOR * relative_error(stock[name], exact[name]) + SLACK
        if ours[name].dtype == torch.bfloat16 and _interpreted():
            # The interpreter cuts float32 down to bfloat16 where a GPU
            # rounds to nearest: twice the error in the mean square.
            allowed *= 2
        allowed += (slack or {}).get(name, 0.0)
        assert error <= allowed, f"{name}: error {error:.2e} > {allowed:.2e}"


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"
