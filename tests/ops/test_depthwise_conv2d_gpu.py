"""The kernels on a GPU at real sizes, and what only a GPU can show."""

import pytest
import torch
from depthwise2d_cases import ALL_KERNELS, inputs
from depthwise_cases import doubles, outcome
from tolerance import assert_as_exact_as_stock, relative_error

from speechbrain_triton.ops.depthwise_conv2d import (
    depthwise_conv2d,
    depthwise_conv2d_reference,
)

pytestmark = pytest.mark.gpu

GIB = 2**30


def assert_kernel_is_right(tensors, launches, **options):
    """Against the twin in float64, which has its own tests."""
    y = depthwise_conv2d_reference(**tensors, **options)
    dy = torch.randn_like(y)
    launches.clear()
    ours = outcome(depthwise_conv2d, tensors, dy, backend="auto", **options)
    assert launches == ALL_KERNELS
    stock = outcome(depthwise_conv2d_reference, tensors, dy, **options)
    exact = outcome(
        depthwise_conv2d_reference, doubles(tensors), dy.double(), **options
    )
    assert_as_exact_as_stock(ours, stock, exact)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str
)
@pytest.mark.parametrize("relu", [None, "before", "after"])
def test_kernel_is_right_at_the_size_of_a_training_batch(relu, dtype, launches):
    tensors = inputs(16, 400, 20, 256, dtype=dtype, device="cuda")
    lengths = torch.randint(100, 401, (16,), device="cuda")
    assert_kernel_is_right(
        tensors, launches, stride=2, relu=relu, lengths=lengths
    )


@pytest.mark.parametrize("C", [40, 96, 144, 300, 512])
@pytest.mark.parametrize("T", [401, 1600])
def test_kernel_is_right_for_every_width_and_length(T, C, launches):
    tensors = inputs(4, T, 10, C, dtype=torch.bfloat16, device="cuda")
    assert_kernel_is_right(tensors, launches, stride=2, relu="before")


@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 3), (3, 5), (5, 5)])
@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
def test_kernel_is_right_for_every_kernel_and_stride(
    padding, kernel, stride, launches
):
    tensors = inputs(
        4, 101, 21, 128, kernel, dtype=torch.float16, device="cuda"
    )
    assert_kernel_is_right(
        tensors, launches, stride=stride, padding=padding, relu="before"
    )


@pytest.mark.parametrize("relu", ["before", "after"])
def test_more_than_two_billion_elements_are_addressed(relu, launches):
    """Only the end of the last row is compared; it lies beyond 2**31."""
    if torch.cuda.mem_get_info()[0] < 30 * GIB:
        pytest.skip("needs 30 GiB of free GPU memory")
    B, T, F, C, tail = 2, 110_000, 40, 256, 60
    assert B * T * F * C > 2**31
    weight = torch.randn(C, 1, 3, 3, device="cuda").bfloat16()
    weight.requires_grad_()
    x = torch.zeros(B, T, F, C, dtype=torch.bfloat16, device="cuda")
    x[-1, -tail:].normal_()
    x.requires_grad_()
    y = depthwise_conv2d(x, weight, stride=(1, 2), relu=relu, backend="triton")
    dy = torch.zeros_like(y)
    dy[-1, -tail + 3 :].normal_()
    dx, dweight = torch.autograd.grad(y, (x, weight), dy)
    assert launches == ALL_KERNELS

    end = {"x": x[-1:, -tail:].detach(), "weight": weight.detach()}
    exact = outcome(
        depthwise_conv2d_reference,
        doubles(end),
        dy[-1:, -tail:].double(),
        stride=(1, 2),
        relu=relu,
    )
    # The first frame of the end sees the frame before it as zero, as it is.
    assert relative_error(y[-1:, -tail:].detach(), exact["y"]) < 4e-3
    assert relative_error(dx[-1:, -tail:], exact["dx"]) < 4e-3
    assert relative_error(dweight, exact["dweight"]) < 4e-3
    assert not y[0].any() and not dx[0].any()


def test_weight_gradients_keep_their_precision_over_a_long_batch(launches):
    """128,000 outputs a channel around a mean of 1, with 1e-3 each."""
    tensors = inputs(32, 800, 20, 256, dtype=torch.bfloat16, device="cuda")
    tensors["x"] = (1 + 0.01 * torch.randn_like(tensors["x"])).bfloat16()
    dy = torch.full(
        (32, 400, 10, 256), 1e-3, dtype=torch.bfloat16, device="cuda"
    )
    tensors = {
        n: t if n == "x" else t.float().abs() for n, t in tensors.items()
    }
    with torch.autocast("cuda", torch.bfloat16):
        ours = outcome(depthwise_conv2d, tensors, dy, stride=2, relu="before")
    assert launches == ALL_KERNELS
    exact = outcome(
        depthwise_conv2d_reference,
        doubles(tensors),
        dy.double(),
        stride=2,
        relu="before",
    )
    for name in ("dweight", "dbias", "dinput_bias"):
        assert ours[name].dtype == torch.float32
        assert relative_error(ours[name], exact[name]) < 3e-6


def test_same_bits_on_every_call(launches):
    tensors = inputs(16, 333, 20, 256, dtype=torch.bfloat16, device="cuda")
    dy = torch.randn(16, 167, 10, 256, device="cuda").bfloat16()
    options = dict(stride=2, relu="before", backend="triton")
    first = outcome(depthwise_conv2d, tensors, dy, **options)
    for _ in range(10):
        again = outcome(depthwise_conv2d, tensors, dy, **options)
        for name in first:
            assert torch.equal(first[name], again[name]), name
    assert launches["depthwise_conv2d_grad_kernel"] == 11


def test_memory_is_that_of_the_results(launches):
    """No padded, masked or permuted copy of anything."""
    tensors = inputs(32, 800, 20, 256, dtype=torch.bfloat16, device="cuda")
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    lengths = torch.randint(400, 801, (32,), device="cuda")
    dy = torch.randn(32, 400, 10, 256, device="cuda").bfloat16()

    def run():
        y = depthwise_conv2d(**leaves, stride=2, relu="before", lengths=lengths)
        torch.autograd.grad(y, list(leaves.values()), dy)

    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    results = tensors["x"].nbytes + dy.nbytes
    partial_sums = 528 * 11 * 256 * 4
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < results + 2 * partial_sums
    assert launches["depthwise_conv2d_kernel"] == 2
