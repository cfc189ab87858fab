"""The kernels against the definition: values, gradients, memory."""

import pytest
import torch
from depthwise_cases import (
    doubles,
    inputs,
    kernel_chunk_edges,
    oracle,
    out_frames,
    outcome,
)
from tolerance import assert_as_exact_as_stock, relative_error

from speechbrain_triton.ops import depthwise_conv1d
from speechbrain_triton.ops.depthwise_conv1d import (
    depthwise_conv1d_reference,
    launch,
)

ALL_KERNELS = {
    "conv_kernel": 2,  # forward and transposed
    "weight_grad_kernel": 1,
    "reduce_partials_kernel": 1,
}


def assert_kernel_is_right(tensors, launches, **options):
    x = tensors["x"]
    frames = out_frames(
        x.shape[1], tensors["weight"].shape[2], options.get("padding", "same")
    )
    dy = torch.randn(x.shape[0], frames, x.shape[2]).to(x)
    launches.clear()
    ours = outcome(depthwise_conv1d, tensors, dy, backend="triton", **options)
    assert launches == ALL_KERNELS
    assert_as_exact_as_stock(
        ours,
        outcome(depthwise_conv1d_reference, tensors, dy, **options),
        outcome(oracle, doubles(tensors), dy.double(), **options),
    )


@pytest.mark.parametrize(("T", "chunk_size"), kernel_chunk_edges())
def test_kernel_is_right_at_chunk_edges(T, chunk_size, device, launches):
    tensors = inputs(1, T, 24, 31, device=device)
    assert_kernel_is_right(tensors, launches, chunk_size=chunk_size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("chunk_size", [None, 8])
@pytest.mark.parametrize("K", [1, 6, 31])
def test_kernel_is_right_in_half_precision(
    K, chunk_size, dtype, device, launches
):
    tensors = inputs(1, 17, 24, K, dtype=dtype, device=device)
    assert_kernel_is_right(tensors, launches, chunk_size=chunk_size)


@pytest.mark.parametrize(
    ("T", "padding", "K"),
    [
        (T, padding, K)
        for T in (4, 17)
        for padding in ("same", "causal", "valid")
        for K in (1, 2, 3, 4, 7)
        if padding != "valid" or T >= K
    ]
    + [(33, padding, 30) for padding in ("same", "causal", "valid")]
    + [(5, "causal", 31), (31, "valid", 31), (9, "same", 32)],
)
def test_kernel_is_right_for_every_kernel_size(T, padding, K, device, launches):
    tensors = inputs(1, T, 24, K, device=device, bias=K % 2 == 1)
    assert_kernel_is_right(tensors, launches, padding=padding)


@pytest.mark.parametrize(("K", "chunk_size"), [(33, None), (65, 4), (128, 4)])
def test_kernel_is_right_with_many_taps(K, chunk_size, device, launches):
    tensors = inputs(1, 9, 40, K, device=device)
    assert_kernel_is_right(tensors, launches, chunk_size=chunk_size)


@pytest.mark.parametrize(
    ("K", "frames", "padding", "chunk_size"),
    [
        (7, frames, padding, chunk_size)
        for frames in (1, 3, 9)
        for padding, chunk_size in (
            ("same", None),
            ("same", 1),
            ("same", 8),
            ("same", 99),
            ("causal", None),
        )
    ]
    + [(4, 9, "same", 8), (4, 2, "causal", None), (1, 2, "same", 8)],
)
def test_kernel_is_right_with_left_context(
    K, frames, padding, chunk_size, device, launches
):
    tensors = inputs(1, 17, 24, K, device=device, left_context=frames)
    assert_kernel_is_right(
        tensors, launches, padding=padding, chunk_size=chunk_size
    )


@pytest.mark.parametrize(("C", "K"), [(1, 31), (65, 2), (257, 2), (600, 2)])
def test_kernel_is_right_across_channel_blocks(C, K, device, launches):
    tensors = inputs(2, 9, C, K, device=device)
    assert_kernel_is_right(tensors, launches, chunk_size=4)


@pytest.mark.parametrize("warps", [1, 8])
@pytest.mark.parametrize("chunk_size", [None, 5])
def test_kernel_is_right_with_several_tiles_a_program(
    chunk_size, warps, device, launches, monkeypatch
):
    monkeypatch.setattr(launch, "CONV_WARPS", warps)
    monkeypatch.setattr(launch, "GRAD_WARPS", warps)
    tensors = inputs(3, 21, 24, 3, device=device)
    assert_kernel_is_right(tensors, launches, chunk_size=chunk_size)


def test_reduction_is_right_over_more_partial_sums_than_a_block(
    device, launches
):
    """35 partial sums, in blocks of 32."""
    tensors = inputs(35, 2, 24, 1, device=device)
    assert_kernel_is_right(tensors, launches)


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_row_of_a_batch_is_the_row_alone(chunk_size, device, launches):
    options = dict(chunk_size=chunk_size, backend="triton")
    tensors = inputs(3, 19, 24, 7, device=device)
    dy = torch.randn_like(tensors["x"])
    batch = outcome(depthwise_conv1d, tensors, dy, **options)
    rows = [
        outcome(
            depthwise_conv1d,
            {**tensors, "x": tensors["x"][b : b + 1]},
            dy[b : b + 1],
            **options,
        )
        for b in range(3)
    ]
    assert launches["conv_kernel"] == 8
    for name in ("y", "dx"):
        assert torch.equal(batch[name], torch.cat([r[name] for r in rows]))
    for name in ("dweight", "dbias"):
        total = sum(row[name].double() for row in rows)
        assert relative_error(batch[name], total) < 1e-6


def test_gradients_of_float32_weights_are_summed_in_float32(device, launches):
    """As under autocast, from values of which a sum in bfloat16 is lost."""
    tensors = inputs(
        4,
        64,
        24,
        3,
        dtype=torch.bfloat16,
        weight_dtype=torch.float32,
        device=device,
    )
    noise = torch.randn(4, 64, 24, device=device)
    tensors["x"] = (1 + 0.01 * noise).bfloat16()
    dy = torch.full_like(tensors["x"], 1e-3)
    with torch.autocast(device, torch.bfloat16):
        ours = outcome(depthwise_conv1d, tensors, dy, backend="triton")
    assert launches == ALL_KERNELS
    exact = outcome(oracle, doubles(tensors), dy.double())
    for name in ("dweight", "dbias"):
        assert ours[name].dtype == torch.float32
        assert relative_error(ours[name], exact[name]) < 1e-6


def second_order(function, tensors, **options):
    """Gradients of a function of the first gradients, for every tensor."""
    leaves = {n: t.detach().requires_grad_() for n, t in tensors.items()}
    y = function(**leaves, **options)
    generator = torch.Generator().manual_seed(1)
    dy = torch.randn(y.shape, generator=generator).to(y).requires_grad_()
    grads = torch.autograd.grad(y, list(leaves.values()), dy, create_graph=True)
    loss = sum((grad**3).sum() + grad.sum() for grad in grads) + (y**2).sum()
    wanted = {"dy": dy, **leaves}
    grads = torch.autograd.grad(
        loss, list(wanted.values()), materialize_grads=True
    )
    return dict(zip(wanted, grads, strict=True))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize(("K", "frames"), [(5, 0), (4, 0), (5, 3)])
def test_double_backward_is_right(
    K, frames, chunk_size, bias, device, launches
):
    tensors = inputs(2, 9, 24, K, device=device, bias=bias, left_context=frames)
    options = dict(chunk_size=chunk_size)
    ours = second_order(depthwise_conv1d, tensors, backend="triton", **options)
    assert launches["conv_kernel"] > 2 and launches["weight_grad_kernel"] > 1
    assert_as_exact_as_stock(
        ours,
        second_order(depthwise_conv1d_reference, tensors, **options),
        second_order(oracle, doubles(tensors), **options),
    )


def test_third_derivative_is_right(device, launches):
    def third(function, tensors, **options):
        x, weight = (
            tensors[name].detach().requires_grad_() for name in ("x", "weight")
        )
        loss = (function(x, weight, **options) ** 4).sum()
        for leaf in (x, weight):
            (grad,) = torch.autograd.grad(loss, leaf, create_graph=True)
            loss = (grad**2).sum()
        return {"dx": torch.autograd.grad(loss, x)[0]}

    tensors = inputs(1, 5, 24, 3, device=device, bias=False)
    ours = third(depthwise_conv1d, tensors, backend="triton")
    assert launches["conv_kernel"] > 4
    assert_as_exact_as_stock(
        ours,
        third(depthwise_conv1d_reference, tensors),
        third(oracle, doubles(tensors)),
    )


def test_same_bits_on_every_call(device, launches):
    tensors = inputs(2, 37, 24, 5, device=device)
    dy = torch.randn_like(tensors["x"])
    first, again = (
        outcome(depthwise_conv1d, tensors, dy, chunk_size=8, backend="triton")
        for _ in range(2)
    )
    assert launches["conv_kernel"] == 4
    for name in first:
        assert torch.equal(first[name], again[name])


def test_second_backward_over_a_retained_graph_repeats_the_first(
    device, launches
):
    tensors = inputs(2, 9, 24, 5, device=device)
    leaves = {n: t.clone().requires_grad_() for n, t in tensors.items()}
    y = depthwise_conv1d(**leaves, backend="triton")
    args = y, list(leaves.values()), torch.randn_like(y)
    first = torch.autograd.grad(*args, retain_graph=True)
    again = torch.autograd.grad(*args)
    assert launches["weight_grad_kernel"] == 2
    for one, two in zip(first, again, strict=True):
        assert torch.equal(one, two)
    for name, tensor in tensors.items():
        assert torch.equal(leaves[name], tensor), f"{name} was written to"


@pytest.mark.parametrize("which", ["x", "weight"])
def test_input_changed_before_backward_raises(which, device, launches):
    tensors = inputs(1, 5, 24, 3, device=device)
    leaves = {n: t.requires_grad_() for n, t in tensors.items()}
    inner = {n: t * 1.0 for n, t in leaves.items()}
    y = depthwise_conv1d(**inner, backend="triton")
    assert launches["conv_kernel"] == 1
    with torch.no_grad():
        inner[which].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_output_may_be_changed_in_place(device, launches):
    tensors = inputs(2, 9, 24, 5, device=device)
    leaves = {n: t.requires_grad_() for n, t in tensors.items()}
    y = depthwise_conv1d(**leaves, backend="triton")
    assert launches["conv_kernel"] == 1
    y.add_(1.0)
    y[:, 7:] = 0.0
    y.sum().backward()
    dy = torch.ones_like(y)
    dy[:, 7:] = 0.0
    exact = outcome(oracle, doubles(tensors), dy.double())
    for name, leaf in leaves.items():
        assert relative_error(leaf.grad, exact["d" + name]) < 1e-6
