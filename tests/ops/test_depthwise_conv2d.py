"""The kernels against the definition: values, gradients, memory."""

import math

import pytest
import torch
from depthwise2d_cases import (
    ALL_KERNELS,
    assert_kernel_is_right,
    inputs,
    oracle,
)
from depthwise_cases import doubles, outcome
from tolerance import relative_error

from speechbrain_triton.ops.depthwise_conv2d import (
    depthwise_conv2d,
    depthwise_conv2d_reference,
    launch,
)

PADDINGS = ("same", "causal", "valid")
RELUS = (None, "before", "after")
STRIDES = ((1, 1), (2, 2), (2, 1), (1, 2))


@pytest.mark.parametrize("relu", RELUS)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(
    ("kernel", "stride"),
    [*(((3, 3), stride) for stride in STRIDES), ((5, 5), (2, 2))],
)
def test_kernel_is_right_for_every_option(
    kernel, stride, padding, relu, device, launches
):
    tensors = inputs(2, 7, 6, 24, kernel, device=device)
    assert_kernel_is_right(
        tensors,
        launches,
        stride=stride,
        padding=padding,
        relu=relu,
        lengths=torch.tensor([7, 4], device=device),
    )


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("stride", [(1, 1), (1, 2)])
@pytest.mark.parametrize("kernel", [(1, 1), (1, 3), (3, 1), (5, 3), (5, 5)])
def test_kernel_is_right_for_every_kernel_size(
    kernel, stride, padding, device, launches
):
    tensors = inputs(2, 7, 5, 24, kernel, device=device)
    assert_kernel_is_right(
        tensors, launches, stride=stride, padding=padding, relu="before"
    )


@pytest.mark.parametrize("padding", ["same", "causal"])
@pytest.mark.parametrize("kernel", [(3, 3), (5, 5)])
@pytest.mark.parametrize(
    ("T", "F"), [(1, 1), (1, 5), (2, 1), (2, 2), (3, 4), (17, 2), (4, 19)]
)
def test_kernel_is_right_for_every_size(
    T, F, kernel, padding, device, launches
):
    tensors = inputs(2, T, F, 24, kernel, device=device)
    assert_kernel_is_right(
        tensors, launches, stride=(2, 2), padding=padding, relu="before"
    )


@pytest.mark.parametrize("size", [3, 4, 5, 6])
def test_kernel_is_right_for_small_valid_sizes(size, device, launches):
    tensors = inputs(2, size, size, 40, device=device)
    assert_kernel_is_right(tensors, launches, stride=(2, 2), padding="valid")


@pytest.mark.parametrize("C", [1, 2, 45, 96, 128, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_kernel_is_right_across_channel_blocks(C, dtype, device, launches):
    tensors = inputs(2, 5, 4, C, dtype=dtype, device=device)
    assert_kernel_is_right(tensors, launches, stride=(2, 2), relu="before")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("relu", RELUS)
@pytest.mark.parametrize(
    ("kernel", "stride"), [((3, 3), (2, 2)), ((5, 5), (1, 1))]
)
def test_kernel_is_right_in_half_precision(
    kernel, stride, relu, dtype, device, launches
):
    tensors = inputs(2, 9, 6, 40, kernel, dtype=dtype, device=device)
    assert_kernel_is_right(
        tensors,
        launches,
        stride=stride,
        relu=relu,
        lengths=torch.tensor([5, 9], device=device),
    )


@pytest.mark.parametrize("relu", RELUS)
@pytest.mark.parametrize("input_bias", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_biases_may_be_absent(dtype, bias, input_bias, relu, device, launches):
    tensors = inputs(
        2,
        5,
        4,
        24,
        dtype=dtype,
        device=device,
        bias=bias,
        input_bias=input_bias,
    )
    assert_kernel_is_right(tensors, launches, stride=(2, 2), relu=relu)


@pytest.mark.parametrize("integer", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("relu", RELUS)
def test_lengths_below_and_above_the_frames(relu, integer, device, launches):
    tensors = inputs(5, 8, 4, 40, device=device)
    lengths = torch.tensor([0, 1, 5, 8, 200], dtype=integer, device=device)
    assert_kernel_is_right(
        tensors, launches, stride=(2, 2), relu=relu, lengths=lengths
    )


@pytest.mark.parametrize(("B", "programs"), [(1, 1), (7, 2), (7, 5), (3, 999)])
def test_kernel_is_right_however_the_rows_are_shared_out(
    B, programs, device, launches, monkeypatch
):
    for name in ("FORWARD", "BACKWARD"):
        config = getattr(launch, name)._replace(programs=programs)
        monkeypatch.setattr(launch, name, config)
    tensors = inputs(B, 11, 4, 130, device=device)
    assert_kernel_is_right(tensors, launches, stride=(2, 2), relu="before")


@pytest.mark.parametrize("channels", [1, 2, 4, 8])
@pytest.mark.parametrize("warps", [1, 4])
def test_kernel_is_right_however_many_channels_a_thread_has(
    warps, channels, device, launches, monkeypatch
):
    for name in ("FORWARD", "BACKWARD"):
        config = getattr(launch, name)._replace(
            channels=channels, warps=warps, values=999
        )
        monkeypatch.setattr(launch, name, config)
    tensors = inputs(2, 6, 5, 72, dtype=torch.float16, device=device)
    assert_kernel_is_right(tensors, launches, stride=(2, 2), relu="before")


@pytest.mark.parametrize("relu", [None, "before"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_padded_frames_are_never_read(value, relu, device, launches):
    tensors = inputs(2, 9, 4, 24, device=device)
    lengths = torch.tensor([4, 7], device=device)
    options = dict(stride=2, relu=relu, lengths=lengths, backend="triton")
    dy = torch.randn(2, 5, 2, 24, device=device)
    expected = outcome(depthwise_conv2d, tensors, dy, **options)
    for b, length in enumerate(lengths):
        tensors["x"][b, length:] = value
    ours = outcome(depthwise_conv2d, tensors, dy, **options)
    assert launches["depthwise_conv2d_grad_kernel"] == 2
    for name in expected:
        assert torch.equal(ours[name], expected[name]), name
    for b, length in enumerate(lengths):
        assert not ours["dx"][b, length:].any()


@pytest.mark.parametrize("relu", RELUS)
def test_nan_spoils_the_outputs_that_see_it_and_no_other(
    relu, device, launches
):
    tensors = inputs(1, 9, 8, 24, device=device)
    for t, f in ((0, 0), (3, 4), (8, 7)):
        bad = {n: tensor.clone() for n, tensor in tensors.items()}
        bad["x"][0, t, f] = math.nan
        y = depthwise_conv2d(**bad, stride=2, relu=relu, backend="triton")
        stock = depthwise_conv2d_reference(**bad, stride=2, relu=relu)
        assert torch.equal(y.isnan(), stock.isnan())
    assert launches["depthwise_conv2d_kernel"] == 3


def test_row_of_a_batch_is_the_row_alone(device, launches):
    options = dict(stride=2, relu="before", backend="triton")
    tensors = inputs(3, 9, 6, 40, device=device)
    dy = torch.randn(3, 5, 3, 40, device=device)
    batch = outcome(depthwise_conv2d, tensors, dy, **options)
    rows = [
        outcome(
            depthwise_conv2d,
            {**tensors, "x": tensors["x"][b : b + 1]},
            dy[b : b + 1],
            **options,
        )
        for b in range(3)
    ]
    assert launches["depthwise_conv2d_kernel"] == 4
    for name in ("y", "dx"):
        assert torch.equal(batch[name], torch.cat([r[name] for r in rows]))
    for name in ("dweight", "dbias", "dinput_bias"):
        total = sum(row[name].double() for row in rows)
        assert relative_error(batch[name], total) < 1e-6


def test_padded_row_is_the_row_alone(device):
    """In every frame up to its own output length."""
    tensors = inputs(1, 7, 6, 40, device=device)
    longer = torch.randn(1, 12, 6, 40, device=device)
    longer[:, :7] = tensors["x"]
    options = dict(stride=2, relu="before", backend="triton")
    alone = depthwise_conv2d(**tensors, **options)
    padded = depthwise_conv2d(
        **{**tensors, "x": longer},
        lengths=torch.tensor([7], device=device),
        **options,
    )
    assert torch.equal(padded[:, :4], alone)


def test_gradients_of_float32_weights_are_summed_in_float32(device, launches):
    """As under autocast, from values of which a sum in bfloat16 is lost."""
    tensors = inputs(4, 64, 8, 24, device=device)
    noise = torch.randn(4, 64, 8, 24, device=device)
    tensors["x"] = (1 + 0.01 * noise).bfloat16()
    tensors["input_bias"] = torch.rand(24, device=device)
    dy = torch.full((4, 32, 4, 24), 1e-3, device=device).bfloat16()
    with torch.autocast(device, torch.bfloat16):
        ours = outcome(
            depthwise_conv2d,
            tensors,
            dy,
            stride=2,
            relu="before",
            backend="triton",
        )
    assert launches == ALL_KERNELS
    exact = outcome(
        oracle, doubles(tensors), dy.double(), stride=(2, 2), relu="before"
    )
    for name in ("dweight", "dbias", "dinput_bias"):
        assert ours[name].dtype == torch.float32
        assert relative_error(ours[name], exact[name]) < 1e-6


def test_same_bits_on_every_call(device, launches):
    tensors = inputs(3, 21, 6, 40, device=device)
    dy = torch.randn(3, 11, 3, 40, device=device)
    options = dict(stride=2, relu="before", backend="triton")
    first, again = (
        outcome(depthwise_conv2d, tensors, dy, **options) for _ in range(2)
    )
    assert launches["depthwise_conv2d_grad_kernel"] == 2
    for name in first:
        assert torch.equal(first[name], again[name])


@pytest.mark.parametrize("relu", RELUS)
def test_second_backward_repeats_the_first_and_inputs_stay(
    relu, device, launches
):
    tensors = inputs(2, 7, 6, 24, device=device)
    leaves = {n: t.clone().requires_grad_() for n, t in tensors.items()}
    y = depthwise_conv2d(**leaves, stride=2, relu=relu, backend="triton")
    kept = y.detach().clone()
    args = y, list(leaves.values()), torch.randn_like(y)
    first = torch.autograd.grad(*args, retain_graph=True)
    again = torch.autograd.grad(*args)
    assert launches["depthwise_conv2d_grad_kernel"] == 2
    for one, two in zip(first, again, strict=True):
        assert torch.equal(one, two)
    for name, tensor in tensors.items():
        assert torch.equal(leaves[name], tensor), f"{name} was written to"
    assert torch.equal(y, kept)


def second_order(function, tensors, **options):
    """Gradients of a function of the first gradients, for every tensor."""
    leaves = {n: t.detach().requires_grad_() for n, t in tensors.items()}
    y = function(**leaves, **options)
    generator = torch.Generator().manual_seed(1)
    dy = torch.randn(y.shape, generator=generator).to(y).requires_grad_()
    grads = torch.autograd.grad(y, list(leaves.values()), dy, create_graph=True)
    loss = sum((grad**2).sum() + grad.sum() for grad in grads) + (y**2).sum()
    wanted = {"dy": dy, **leaves}
    grads = torch.autograd.grad(
        loss, list(wanted.values()), materialize_grads=True
    )
    return dict(zip(wanted, grads, strict=True))


@pytest.mark.parametrize("relu", RELUS)
@pytest.mark.parametrize("biases", [True, False])
def test_double_backward_is_right(biases, relu, device, launches):
    tensors = inputs(2, 7, 6, 24, device=device, bias=biases, input_bias=biases)
    options = dict(
        stride=(2, 1),
        padding="causal",
        relu=relu,
        lengths=torch.tensor([4, 7], device=device),
    )
    ours = second_order(depthwise_conv2d, tensors, backend="triton", **options)
    assert launches["depthwise_conv2d_kernel"] == 1
    exact = second_order(oracle, doubles(tensors), **options)
    for name in exact:
        assert relative_error(ours[name], exact[name]) < 1e-5, name


@pytest.mark.parametrize("which", ["x", "weight", "input_bias"])
def test_input_changed_before_backward_raises(which, device, launches):
    tensors = inputs(1, 5, 4, 24, device=device)
    leaves = {n: t.requires_grad_() for n, t in tensors.items()}
    inner = {n: t * 1.0 for n, t in leaves.items()}
    y = depthwise_conv2d(**inner, backend="triton")
    assert launches["depthwise_conv2d_kernel"] == 1
    with torch.no_grad():
        inner[which].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
