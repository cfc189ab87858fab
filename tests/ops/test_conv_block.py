"""The convolution block against its definition in float64."""

import pytest
import torch
from depthwise_cases import (
    assert_backward_repeats,
    doubles,
    oracle,
    out_frames,
    outcome,
)
from tolerance import assert_as_exact_as_stock

from speechbrain_triton.ops import conv_block
from speechbrain_triton.ops.conv_block import conv_block_reference

ACTIVATIONS = {
    "none": lambda x: x,
    "swish": lambda x: x * torch.sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
    "relu": lambda x: x.clamp(min=0),
    "leaky_relu": lambda x: torch.where(x > 0, x, 0.01 * x),
}


def inputs(B, T, C, K, *, dtype=torch.float32, device="cpu", bias=True):
    tensors = {
        "h": torch.randn(B, T, 2 * C),
        "weight": torch.randn(C, 1, K),
        "norm_weight": torch.randn(C),
        "norm_bias": torch.randn(C),
    }
    if bias:
        tensors |= {"bias": torch.randn(C), "glu_bias": torch.randn(2 * C)}
    return {name: t.to(device, dtype) for name, t in tensors.items()}


def definition(h, weight, norm_weight, norm_bias, bias=None, glu_bias=None, *,
               activation="swish", **options):  # fmt: skip
    a, b = (h if glu_bias is None else h + glu_bias).chunk(2, dim=-1)
    u = oracle(a * torch.sigmoid(b), weight, bias, **options)
    mean = u.mean(-1, keepdim=True)
    variance = (u - mean).pow(2).mean(-1, keepdim=True)
    normed = (u - mean) / (variance + 1e-5).sqrt() * norm_weight + norm_bias
    return ACTIVATIONS[activation](normed)


def call(function):
    """With bias by name, so that it may be absent."""
    return lambda **t: function(bias=t.pop("bias", None), **t)


def assert_block_is_right(tensors, launches, **options):
    B, T, width = tensors["h"].shape
    K, padding = tensors["weight"].shape[2], options.get("padding", "same")
    dy = torch.randn(B, out_frames(T, K, padding), width // 2)
    dy = dy.to(tensors["h"])
    launches.clear()
    ours = outcome(call(conv_block), tensors, dy, backend="triton", **options)
    assert launches == {
        "glu_kernel": 1,
        "glu_grad_kernel": 1,
        "conv_kernel": 2,
        "weight_grad_kernel": 1,
        "reduce_partials_kernel": 1,
        "layer_norm_kernel": 1,
        "layer_norm_grad_kernel": 1,
        "sum_partials_kernel": 1,
    }
    assert_as_exact_as_stock(
        ours,
        outcome(call(conv_block_reference), tensors, dy, **options),
        outcome(call(definition), doubles(tensors), dy.double(), **options),
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("chunk_size", [None, 8])
def test_block_is_right_for_every_activation(
    chunk_size, activation, device, launches
):
    tensors = inputs(2, 19, 96, 7, device=device)
    assert_block_is_right(
        tensors, launches, chunk_size=chunk_size, activation=activation
    )


@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
def test_block_is_right_without_biases_for_every_padding(
    padding, device, launches
):
    tensors = inputs(2, 17, 40, 5, device=device, bias=False)
    assert_block_is_right(tensors, launches, padding=padding)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("chunk_size", [None, 5])
def test_block_is_right_in_half_precision(chunk_size, dtype, device, launches):
    tensors = inputs(2, 17, 96, 7, dtype=dtype, device=device)
    assert_block_is_right(tensors, launches, chunk_size=chunk_size)


@pytest.mark.parametrize("C", [1, 144, 600])
def test_block_is_right_across_channel_blocks(C, device, launches):
    tensors = inputs(2, 9, C, 3, device=device)
    if C == 1:  # one channel is normalised to zero: no gradient to compare
        y = call(conv_block)(**tensors, backend="triton")
        expected = ACTIVATIONS["swish"](tensors["norm_bias"]).expand_as(y)
        torch.testing.assert_close(y, expected)
        return
    assert_block_is_right(tensors, launches)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("chunk_size", [None, 8, 17])
def test_block_is_right_at_the_size_of_a_training_batch(
    chunk_size, dtype, launches
):
    tensors = inputs(16, 401, 512, 31, dtype=dtype, device="cuda")
    assert_block_is_right(tensors, launches, chunk_size=chunk_size)


def test_autocast_reads_float32_parameters_and_returns_half(device):
    tensors = inputs(2, 9, 24, 3, device=device)
    leaves = {n: t.requires_grad_() for n, t in tensors.items()}
    with torch.autocast(device, torch.float16):
        y = conv_block(**leaves, backend="triton")
    assert y.dtype is torch.float16
    y.float().sum().backward()
    assert all(t.grad.dtype is torch.float32 for t in leaves.values())


def test_only_wanted_gradients_are_computed(device, launches):
    tensors = inputs(2, 9, 24, 3, device=device)
    tensors["h"].requires_grad_()
    y = conv_block(**tensors, backend="triton")
    y.sum().backward()
    assert tensors["h"].grad is not None
    assert "weight_grad_kernel" not in launches


def test_inputs_are_left_as_they_were_and_backward_repeats(device):
    assert_backward_repeats(conv_block, inputs(2, 9, 24, 3, device=device))


def test_double_backward_is_the_twins(device):
    def second(function, dtype, **options):
        torch.manual_seed(1)
        tensors = inputs(1, 9, 24, 3, dtype=dtype, device=device)
        leaves = [t.requires_grad_() for t in tensors.values()]
        y = function(**tensors, chunk_size=4, **options)
        (dh,) = torch.autograd.grad(
            y.pow(2).sum(), leaves[0], create_graph=True
        )
        return torch.autograd.grad(dh.pow(2).sum(), leaves)

    ours = second(conv_block, torch.float32, backend="triton")
    exact = second(conv_block_reference, torch.float64)
    for a, b in zip(ours, exact, strict=True):
        assert (a.double() - b).norm() <= 1e-4 * b.norm()


def test_double_backward_keeps_the_history_of_a_strided_input(device):
    """A copy made on the way would have none."""

    def second(function, **options):
        torch.manual_seed(1)
        tensors = inputs(1, 9, 24, 3, device=device)
        h = tensors.pop("h").mT.contiguous().mT.requires_grad_()
        y = function(h, **tensors, **options)
        (dh,) = torch.autograd.grad(y.pow(2).sum(), h, create_graph=True)
        return torch.autograd.grad(dh.pow(2).sum(), h)[0]

    ours = second(conv_block, backend="triton")
    expected = second(conv_block_reference)
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)


def test_gradcheck_of_the_twin():
    torch.manual_seed(0)
    tensors = inputs(1, 5, 3, 3, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in tensors.values()]

    def block(h, weight, norm_weight, norm_bias, bias, glu_bias):
        return conv_block_reference(
            h, weight, bias, norm_weight, norm_bias, glu_bias, chunk_size=2
        )

    assert torch.autograd.gradcheck(block, leaves)


def test_empty_batch_gives_zero_gradients(device):
    tensors = inputs(0, 9, 24, 3, device=device)
    dy = torch.empty(0, 9, 24, device=device)
    result = outcome(conv_block, tensors, dy, backend="triton")
    assert result["y"].shape == (0, 9, 24)
    assert not any(g.any() for n, g in result.items() if n.startswith("d"))


def test_wrong_arguments_are_named(device):
    t = inputs(2, 9, 24, 3, device=device)
    with pytest.raises(ValueError, match=r"even last dimension.*\(2, 9, 47\)"):
        conv_block(**{**t, "h": t["h"][..., :-1]})
    with pytest.raises(ValueError, match=r"norm_bias must be \(24,\)"):
        conv_block(**{**t, "norm_bias": t["norm_bias"][1:]})
    with pytest.raises(ValueError, match=r"glu_bias must be \(48,\)"):
        conv_block(**{**t, "glu_bias": t["bias"]})
    elsewhere = t["norm_weight"].to("meta")
    with pytest.raises(ValueError, match="norm_weight is on meta and the"):
        conv_block(**{**t, "norm_weight": elsewhere})
    with pytest.raises(ValueError, match="activation='swiss' is not one of"):
        conv_block(**t, activation="swiss")
    with pytest.raises(TypeError, match="h is torch.float16 and weight is"):
        conv_block(**{**t, "h": t["h"].half()})


def test_torch_path_is_the_twin():
    t = inputs(2, 9, 24, 3)
    ours = conv_block(**t, chunk_size=4, backend="torch")
    assert torch.equal(ours, conv_block_reference(**t, chunk_size=4))
