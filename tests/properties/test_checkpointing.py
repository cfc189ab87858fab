"""Activation checkpointing: the same bits as without, in either kind."""

import pytest
import torch
from examples import MODULES, example, features, module
from op_table import OPS
from torch.utils.checkpoint import checkpoint


def gradients(function, inputs, others, autocast):
    """y and gradients of inputs and others, with a backward in autocast."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    torch.manual_seed(1)
    device = leaves[0].device.type
    with torch.autocast(device, torch.float16, enabled=autocast):
        y = function(*leaves)
    dy = torch.linspace(0.5, 1.5, y.numel(), device=device, dtype=y.dtype)
    (y * dy.view(y.shape)).sum().backward()
    found = [x.grad for x in (*leaves, *others)]
    for x in others:
        x.grad = None
    return [y.detach(), *found]


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a.dtype is b.dtype and torch.equal(a, b)


@pytest.mark.parametrize("name", list(OPS))
def test_op(name, device, launches):
    case = example(name)
    tensors, integers = case.tensors(device), case.integer_tensors(device)
    # A seed that is drawn must be drawn again.
    options = {k: v for k, v in case.options.items() if k != "seed"}

    def call(*leaves):
        named = dict(zip(tensors, leaves, strict=True))
        return OPS[name].call(**named, **integers, **options, backend="triton")

    def again(*leaves):
        return checkpoint(call, *leaves, use_reentrant=False)

    expected = gradients(call, tensors.values(), (), autocast=True)
    once = launches.total()
    found = gradients(again, tensors.values(), (), autocast=True)
    # Of a linear op nothing is kept, and forward not run again.
    assert launches.total() >= 2 * once
    assert_same(found, expected)


@pytest.mark.parametrize(
    ("use_reentrant", "autocast"), [(False, True), (True, False)]
)
@pytest.mark.parametrize("name", MODULES)
def test_module(name, autocast, use_reentrant, device, launches):
    net, x = module(name, device), features(device)

    def again(x):
        return checkpoint(net, x, use_reentrant=use_reentrant)

    parameters = [p for p in net.parameters() if p.requires_grad]
    expected = gradients(net, [x], parameters, autocast)
    assert launches
    assert_same(gradients(again, [x], parameters, autocast), expected)
