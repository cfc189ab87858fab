"""The tests' interpreter notices what a kernel touches beside its tensors."""

import os

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="kernels run on a GPU here",
)


@triton.jit
def twice(x):
    return x + x


@triton.jit
def double_kernel(x_ptr, y_ptr, first, n, BLOCK: tl.constexpr):
    offsets = first + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=tl.arange(0, BLOCK) < n, other=0.0)
    tl.store(y_ptr + tl.arange(0, BLOCK), twice(x), mask=offsets < first + n)


def double(x, first, n, size=8):
    y = torch.empty(size)
    double_kernel[(1,)](x, y, first, n, BLOCK=8)
    return y


def test_what_is_inside_runs():
    x = torch.randn(10)
    assert torch.equal(double(x, first=2, n=8), 2 * x[2:])


def test_masked_lanes_may_point_anywhere():
    x = torch.randn(10)
    assert torch.equal(double(x, first=6, n=4, size=4), 2 * x[6:])


@pytest.mark.parametrize("first", [-1, 3])
def test_a_load_outside_raises(first):
    with pytest.raises(InterpreterError, match="masked_load"):
        double(torch.randn(10), first, n=8)


def test_a_store_outside_raises():
    with pytest.raises(InterpreterError, match="masked_store"):
        double(torch.randn(10), first=0, n=8, size=7)


def test_the_neighbours_of_a_view_are_outside():
    x = torch.randn(30)
    assert torch.equal(double(x[10:18], first=0, n=8), 2 * x[10:18])
    for first in (-1, 1):
        with pytest.raises(InterpreterError, match="masked_load"):
            double(x[10:18], first, n=8)
