"""Reflection padding with channels last, against its definition."""

from functools import partial

import pytest
import torch
from depthwise_cases import assert_backward_repeats, doubles, outcome
from tolerance import assert_as_exact_as_stock

from speechbrain_triton.ops.reflection_pad2d import (
    reflection_pad2d,
    reflection_pad2d_reference,
)

HALVES = (torch.bfloat16, torch.float16)


def mirrored(n, pad):
    """Which of n places stands at each of n + 2 pad: 2 1 0 1 2 1 0."""
    inside = list(range(n))
    return inside[1 : pad + 1][::-1] + inside + inside[-1 - pad : -1][::-1]


def definition(x, pad, dtype=None):
    for axis, n in zip((1, 2), pad, strict=True):
        places = torch.tensor(mirrored(x.shape[axis], n), device=x.device)
        x = x.index_select(axis, places)
    return x


def assert_right(x, pad, launches, dtype=None):
    B, T, F, C = x.shape
    shape = B, T + 2 * pad[0], F + 2 * pad[1], C
    dy = torch.randn(shape).to(x.device, dtype or x.dtype)
    launches.clear()
    options = {"pad": pad, "dtype": dtype}
    ours = outcome(reflection_pad2d, {"x": x}, dy, backend="triton", **options)
    assert launches == {"reflect_kernel": 1, "reflect_grad_kernel": 1}
    exact = outcome(definition, doubles({"x": x}), dy.double(), pad=pad)
    stock = outcome(reflection_pad2d_reference, {"x": x}, dy, **options)
    assert_as_exact_as_stock(ours, stock, exact)
    if dtype is None:
        assert torch.equal(ours["y"].double(), exact["y"])
    assert ours["y"].is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_right_in_every_dtype(dtype, device, launches):
    x = torch.randn(2, 7, 5, 20).to(device, dtype)
    assert_right(x, (1, 1), launches)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_casts_on_its_way(dtype, device, launches):
    assert_right(
        torch.randn(2, 7, 5, 1, device=device), (1, 2), launches, dtype
    )


@pytest.mark.parametrize("pad", [(0, 0), (2, 0), (0, 3), (2, 3), (6, 4)])
def test_right_for_every_padding(pad, device, launches):
    assert_right(torch.randn(3, 7, 5, 6, device=device), pad, launches)


@pytest.mark.parametrize(
    "shape", [(1, 2, 2, 1), (1, 3, 70, 64), (2, 2, 300, 1), (1, 2, 9, 600)]
)
def test_right_for_every_size(shape, device, launches):
    assert_right(torch.randn(shape, device=device), (1, 1), launches)


def test_strided_input_gives_what_its_copy_gives(device):
    x = torch.randn(2, 8, 7, 9, device=device).permute(0, 3, 1, 2)
    options = {"pad": (1, 2), "backend": "triton"}
    y = reflection_pad2d(x, **options)
    assert torch.equal(y, reflection_pad2d(x.contiguous(), **options))


def test_derivatives_of_any_order_are_kernels(device, launches):
    x = torch.randn(2, 5, 4, 3, device=device, requires_grad=True)
    results = []
    for function, options in (
        (reflection_pad2d, {"backend": "triton"}),
        (definition, {}),
    ):
        y = function(x, (1, 2), **options)
        (dx,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(dx.pow(2).sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.pow(2).sum(), x)
        results.append((dx, second, third))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert launches["reflect_kernel"] > 1
    assert launches["reflect_grad_kernel"] > 1


def test_backward_repeats_bit_for_bit(device):
    x = torch.randn(2, 9, 8, 16, device=device)
    assert_backward_repeats(partial(reflection_pad2d, pad=(2, 2)), {"x": x})


def test_empty_batch_stays_empty(device, launches):
    x = torch.randn(0, 5, 4, 3, device=device, requires_grad=True)
    y = reflection_pad2d(x, (1, 1), backend="triton")
    assert y.shape == (0, 7, 6, 3)
    (dx,) = torch.autograd.grad(y.sum(), x)
    assert dx.shape == x.shape and not launches


@pytest.mark.parametrize("pad", [(3, 1), (1, 2), (-1, 0)])
def test_padding_without_an_image_is_refused(pad):
    with pytest.raises(ValueError, match=r"pad=\(.*less than the \(3, 2\)"):
        reflection_pad2d(torch.zeros(1, 3, 2, 4), pad)


def test_other_layouts_are_refused():
    with pytest.raises(ValueError, match=r"x must be .*got shape \(1, 3, 2\)"):
        reflection_pad2d(torch.zeros(1, 3, 2), (1, 1))
