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
from speechbrain_triton.ops.launcher import Launcher

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


@pytest.mark.parametrize(("K", "chunk_size"), [(33, None), (65, 4), (80, 4)])
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


@pytest.mark.parametrize(
    ("B", "T", "warps", "chunk_size"),
    [
        (1, 75, 2, None),  # two spans, of three tiles and of two
        (2, 37, 4, 5),
        (1, 37, 1000, 8),  # a span for every tile
        (5, 21, 2, None),  # three utterances a program, then two
        (5, 21, 2, 8),
        (7, 3, 1, 2),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernel_is_right_however_the_batch_is_split(
    B, T, warps, chunk_size, dtype, device, launches, monkeypatch
):
    monkeypatch.setattr(launch, "WARPS", warps)
    tensors = inputs(B, T, 24, 7, dtype=dtype, device=device)
    assert_kernel_is_right(tensors, launches, chunk_size=chunk_size)


@pytest.mark.parametrize("B", [1, 3, 40, 700, 5000])
@pytest.mark.parametrize("T", [1, 16, 17, 400, 4001])
@pytest.mark.parametrize("n_blocks", [1, 3, 8])
def test_split_covers_the_batch_with_about_as_many_warps_as_asked(
    n_blocks, T, B
):
    split = launch._split(B, T, n_blocks, launch.TILE)
    frames = split.frames_per_span
    assert frames % launch.TILE == 0
    assert (split.spans_per_row - 1) * frames < T
    assert split.spans_per_row * frames >= T
    assert split.spans_per_program == 1 or split.spans_per_row == 1
    programs = B * split.spans_per_row / split.spans_per_program
    assert programs * n_blocks <= 1.5 * launch.WARPS
    if split.spans_per_program > 1:
        assert programs * n_blocks >= 0.6 * launch.WARPS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("C", "aligned"), [(24, True), (24, False), (25, True), (25, False)]
)
def test_kernel_is_right_for_words_that_are_not_aligned(
    C, aligned, dtype, device, launches, monkeypatch
):
    """Channels are loaded two at a time only where all tensors allow it."""
    tensors = inputs(2, 19, C, 7, dtype=dtype, device=device)
    if not aligned:
        tensors["x"] = shifted_by_an_element(tensors["x"])
    packs = []
    start = Launcher.__call__

    def note(self, grid, pointers, numbers, constants, *args):
        if self.kernel.fn.__name__ != "reduce_partials_kernel":
            packs.append(constants[4])
        start(self, grid, pointers, numbers, constants, *args)

    monkeypatch.setattr(Launcher, "__call__", note)
    assert_kernel_is_right(tensors, launches, chunk_size=8)
    # Forward, the gradient of x (of dy alone), and that of weight.
    assert packs == [
        2 if C == 24 and a else 1 for a in (aligned, True, aligned)
    ]


def shifted_by_an_element(tensor):
    """The same values, off the alignment by one element."""
    buffer = tensor.new_zeros(tensor.numel() + 1)
    return buffer[1:].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("T", "K", "frames", "padding", "chunk_size"),
    [
        (T, K, frames, padding, chunk_size)
        for T, K, frames in (
            *((4, 7, frames) for frames in (1, 3, 9)),
            (5, 6, 2),
            (33, 31, 5),
        )
        for padding, chunk_size in (
            ("same", None),
            ("same", 3),
            ("same", 8),
            ("causal", None),
        )
    ],
)
def test_left_context_is_read_in_place_where_no_gradient_is_needed(
    T, K, frames, padding, chunk_size, dtype, device, launches, monkeypatch
):
    tensors = inputs(
        2, T, 24, K, dtype=dtype, device=device, left_context=frames
    )
    options = dict(padding=padding, chunk_size=chunk_size)
    leaf = tensors["weight"].clone().requires_grad_()
    copied = depthwise_conv1d(
        **{**tensors, "weight": leaf}, backend="triton", **options
    )

    def no_copy(*args, **kwargs):
        raise AssertionError("the left context was copied")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "cat", no_copy)
        y = depthwise_conv1d(**tensors, backend="triton", **options)
        with torch.no_grad():
            again = depthwise_conv1d(
                **{**tensors, "weight": leaf}, backend="triton", **options
            )
    assert launches == {"conv_kernel": 3}
    assert torch.equal(y, again)
    # Tiles begin elsewhere than in the copy, the order of a sum is the same.
    assert torch.equal(y, copied)
    assert_as_exact_as_stock(
        {"y": y},
        {"y": depthwise_conv1d_reference(**tensors, **options)},
        {"y": oracle(**doubles(tensors), **options)},
    )


def test_left_context_may_be_the_end_of_a_longer_buffer(device, launches):
    """As a streaming state, of any strides and off the alignment."""
    tensors = inputs(2, 5, 24, 7, dtype=torch.float16, device=device)
    buffer = torch.randn(2, 11, 24, device=device).half()
    whole = torch.cat((buffer, tensors["x"]), dim=1)
    exact = oracle(**{**doubles(tensors), "x": whole.double()})[:, 11:]
    for context in (
        buffer,
        buffer[:, -4:],
        buffer[:, -3:].mT.contiguous().mT,
        shifted_by_an_element(buffer),
    ):
        y = depthwise_conv1d(**tensors, left_context=context, backend="triton")
        assert relative_error(y, exact) < 1e-3
    assert launches == {"conv_kernel": 4}


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
