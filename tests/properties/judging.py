"""How a case is run and judged: as exact as stock, by the one rule."""

from collections.abc import Sequence

import torch
from op_table import OPS
from property_cases import Case
from tolerance import SLACK, assert_as_exact_as_stock, relative_error

Results = dict[str, torch.Tensor]

# Made of fewer numbers, a result of the twin may be exact by chance. So many
# units in the last place are free there.
FEW = 64
UNITS = 4
# Of rounding, whose effect on a single number may be small by chance.
DRAWS = 2


def run(
    case: Case,
    tensors: Results,
    integers: Results,
    backend: str,
    dy: torch.Tensor | None = None,
) -> Results:
    """The result ``y``, and of what is not frozen the gradients."""
    leaves = {
        name: t.detach().requires_grad_(name not in case.frozen)
        for name, t in tensors.items()
    }
    device = next(iter(leaves.values())).device.type
    with case.autocast(device):
        y = OPS[case.op].call(
            **leaves, **integers, **case.options, backend=backend
        )
    wanted = {name: t for name, t in leaves.items() if t.requires_grad}
    if not wanted:
        return {"y": y}
    dy = case.upstream(y) if dy is None else dy.to(y.dtype)
    grads = torch.autograd.grad(
        y, list(wanted.values()), dy, materialize_grads=True
    )
    names = (f"d{name}" for name in wanted)
    return {"y": y.detach(), **dict(zip(names, grads, strict=True))}


def judge(case: Case, device: str) -> tuple[Results, Results, Results, dict]:
    """Run a case on the kernels, in stock, and in float64.

    Arguments
    ---------
    case : Case
    device : str
        Where.

    Returns
    -------
    tuple of dict
        Our results, stock's, the exact ones, and the error that is free; but
        for results that float16 cannot hold.
    """
    torch.manual_seed(case.seed)
    tensors = case.tensors(device)
    integers = case.integer_tensors(device)
    before = {n: t.clone() for n, t in (tensors | integers).items()}
    ours = run(case, tensors, integers, "triton")
    for name, t in (tensors | integers).items():
        assert torch.equal(t, before[name]), f"{name} was written to"
    stock = run(case, tensors, integers, "torch")
    doubles = {name: t.double() for name, t in tensors.items()}
    dy = case.upstream(stock["y"]).double()
    exact = run(case, doubles, integers, "torch", dy)
    nearby = [
        run(case, _moved(doubles, case), integers, "torch", _moved(dy, case))
        for _ in range(DRAWS)
    ]
    for name in _overflown(stock):
        del ours[name], stock[name], exact[name]
    return ours, stock, exact, _free(exact, nearby, stock)


def _overflown(results: Results) -> list[str]:
    return [
        name
        for name, x in results.items()
        if x.dtype is torch.float16 and not x.isfinite().all()
    ]


def _moved(x, case: Case):
    """x, each number elsewhere within a unit in the last place."""
    if isinstance(x, dict):
        return {name: _moved(t, case) for name, t in x.items()}
    return x + x * (2 * torch.rand_like(x) - 1) * torch.finfo(case.dtype).eps


def _free(
    exact: Results, nearby: Sequence[Results], stock: Results
) -> dict[str, float]:
    """Error that is free because the twin's own says too little.

    Of a few numbers it may be none by chance. In float32 it may be below what
    rounding the inputs once more would change, where terms cancel or where a
    kink of an activation is closer than a rounding.
    """
    free = {}
    for name in exact:
        dtype = stock[name].dtype
        few = _numbers(exact[name]) < FEW
        if few or dtype is torch.float32:
            free[name] = few * UNITS * torch.finfo(dtype).eps + max(
                relative_error(other[name], exact[name]) for other in nearby
            )
    return free


def _numbers(x: torch.Tensor) -> float:
    """How many numbers a result's norm is made of: all, if they are alike."""
    squares = x.float().unique().double().square()
    fourth = squares.square().sum().item()
    return squares.sum().item() ** 2 / fourth if fourth else 0.0


def assert_right(case: Case, device: str) -> None:
    """Values and every gradient are as exact as stock's."""
    ours, stock, exact, free = judge(case, device)
    assert_as_exact_as_stock(ours, stock, exact, free)


def relative_to_twin(
    ours: Results, stock: Results, exact: Results, free: dict[str, float]
) -> dict[str, tuple[float, float, float]]:
    """For each result our error over stock's, and the two of them.

    Stock's counts as no smaller than what is free.
    """
    ratios = {}
    for name in exact:
        own = relative_error(ours[name], exact[name])
        other = relative_error(stock[name], exact[name])
        floor = SLACK + free.get(name, 0.0)
        ratios[name] = own / max(other, floor), own, other
    return ratios
