"""Autocast inside of autocast, and gradients that are infinite."""

import math

import pytest
import torch
from examples import MODULES, example, features, module
from judging import run
from op_table import OPS

# The interpreter's, of such numbers.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value")

CASTING = [name for name, op in OPS.items() if "autocast" in op.modes]


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype is value.dtype, name
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("name", CASTING)
@pytest.mark.parametrize("mode", ["float32", "autocast"])
def test_inner_autocast_counts_alone(name, mode, device):
    """The inner one, on (in float16) or off, decides forward and backward."""
    case = example(name, 1, 5, mode)
    arguments = case.tensors(device), case.integer_tensors(device), "triton"
    expected = run(case, *arguments)
    with torch.autocast(device, torch.bfloat16):
        found = run(case, *arguments)
    assert_same_bits(found, expected)


@pytest.mark.parametrize(
    ("number", "mode"), [(math.inf, "float16"), (math.nan, "float32")]
)
@pytest.mark.parametrize("name", list(OPS))
def test_infinite_gradient_is_seen_where_stock_shows_it(
    name, number, mode, device
):
    """Or a scaler would take a step that stock skips, and the reverse."""
    case = example(name, mode=mode)
    tensors, integers = case.tensors(device), case.integer_tensors(device)
    y = run(case, tensors, integers, "torch")["y"]
    dy = case.upstream(y)
    dy[(len(dy) - 1,) + (0,) * (dy.dim() - 1)] = number
    ours = run(case, tensors, integers, "triton", dy)
    stock = run(case, tensors, integers, "torch", dy)
    finite = {name: all_finite(grad) for name, grad in stock.items()}
    assert {name: all_finite(grad) for name, grad in ours.items()} == finite
    assert finite["y"] and not all(finite.values())


@pytest.mark.parametrize("name", list(OPS))
def test_nan_of_an_input_is_where_stock_has_it(name, device):
    """A bad utterance is seen, and leaves the others alone."""
    case = example(name)
    tensors, integers = case.tensors(device), case.integer_tensors(device)
    first = next(iter(tensors.values()))
    first[(0, 1) + (0,) * (first.dim() - 2)] = math.nan
    ours, stock = (
        run(case, tensors, integers, backend)["y"]
        for backend in ("triton", "torch")
    )
    assert torch.equal(ours.isnan(), stock.isnan())
    assert stock[0].isnan().any() and not stock[1:].isnan().any()


def all_finite(x):
    return bool(torch.isfinite(x).all())


def train(net, x, scaler, optimizer):
    """A step of mixed precision; whether parameters changed."""
    before = [p.detach().clone() for p in net.parameters()]
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.float16):
        loss = net(x).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    changed = [
        not torch.equal(a, b)
        for a, b in zip(before, net.parameters(), strict=True)
    ]
    return any(changed)


@pytest.mark.parametrize("name", MODULES)
def test_scaler_skips_steps_that_overflow(name, device, launches):
    net, x = module(name, device), features(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**40)
    assert not train(net, x, scaler, optimizer)
    assert scaler.get_scale() == 2.0**39
    scaler.update(2.0**8)
    assert train(net, x, scaler, optimizer)
    assert all(torch.isfinite(p).all() for p in net.parameters())
    assert launches
