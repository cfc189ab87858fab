"""Layer normalisation and activation against PyTorch in float64."""

import pytest
import torch
from depthwise_cases import doubles, outcome
from tolerance import assert_as_exact_as_stock

from speechbrain_triton.ops import layer_norm
from speechbrain_triton.ops.layer_norm import ACTIVATIONS, layer_norm_reference


def inputs(*shape, dtype=torch.float32, device="cpu"):
    C = shape[-1]
    return {
        "x": (3 * torch.randn(shape) + 1).to(device, dtype),
        "weight": torch.randn(C, device=device),
        "bias": torch.randn(C, device=device),
    }


def assert_kernel_is_right(tensors, launches, **options):
    dtype = options.pop("dtype", tensors["x"].dtype)
    dy = torch.randn(tensors["x"].shape).to(tensors["x"].device, dtype)
    launches.clear()
    ours = outcome(
        layer_norm, tensors, dy, backend="triton", dtype=dtype, **options
    )
    assert launches == {
        "layer_norm_kernel": 1,
        "layer_norm_grad_kernel": 1,
        "sum_partials_kernel": 1,
    }
    assert_as_exact_as_stock(
        ours,
        outcome(layer_norm_reference, tensors, dy, dtype=dtype, **options),
        outcome(layer_norm_reference, doubles(tensors), dy.double(), **options),
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("C", [1, 24, 144, 512, 640, 2048, 2560])
def test_kernel_is_right_for_every_activation_and_width(
    C, activation, device, launches
):
    tensors = inputs(3, 11, C, device=device)
    if C == 1:  # a single channel is always normalised to zero
        leaf = tensors["x"].requires_grad_()
        y = layer_norm(**tensors, activation=activation, backend="triton")
        expected = ACTIVATIONS[activation](tensors["bias"]).expand_as(y)
        torch.testing.assert_close(y, expected)
        (dx,) = torch.autograd.grad(y.sum(), leaf)
        # What is left of the difference of two roundings, over sqrt(eps).
        assert dx.abs().max() <= 1e-6 / 1e-5**0.5 * tensors["weight"].abs()
        return
    assert_kernel_is_right(tensors, launches, activation=activation)


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", [None, torch.float32], ids=str)
def test_kernel_is_right_in_half_precision(dtype, out, device, launches):
    tensors = inputs(4, 9, 144, dtype=dtype or out, device=device)
    assert_kernel_is_right(tensors, launches, activation="swish", dtype=out)


@pytest.mark.parametrize("rows", [1, 2, 600])
def test_kernel_is_right_for_any_number_of_rows(rows, device, launches):
    assert_kernel_is_right(inputs(rows, 40, device=device), launches)


def test_eps_may_be_zero(device, launches):
    """A program's masked rows have no variance at all."""
    assert_kernel_is_right(inputs(3, 7, 24, device=device), launches, eps=0)


def test_strided_input_gives_what_its_copy_gives(device):
    x, weight, bias = inputs(5, 12, 24, device=device).values()
    expected = layer_norm(
        x[:, ::2].transpose(0, 1).contiguous(), weight, bias, backend="triton"
    )
    view = x[:, ::2].transpose(0, 1)
    assert torch.equal(
        layer_norm(view, weight, bias, backend="triton"), expected
    )


def test_repeated_calls_give_the_same_bits(device):
    tensors = inputs(50, 24, device=device)
    dy = torch.randn(50, 24, device=device)
    first, second = (
        outcome(layer_norm, tensors, dy, backend="triton") for _ in range(2)
    )
    for name in first:
        assert torch.equal(first[name], second[name])


def test_double_backward_is_the_twins(device):
    def second(function, dtype, **options):
        torch.manual_seed(1)
        leaves = [
            t.to(dtype).requires_grad_()
            for t in inputs(3, 24, device=device).values()
        ]
        y = function(*leaves, activation="swish", **options)
        dy = torch.linspace(-1, 1, y.numel(), dtype=dtype, device=device)
        (dx,) = torch.autograd.grad(
            y, leaves[0], dy.view_as(y), create_graph=True
        )
        return torch.autograd.grad(dx.pow(2).sum(), leaves[:2])

    ours = second(layer_norm, torch.float32, backend="triton")
    exact = second(layer_norm_reference, torch.float64)
    for a, b in zip(ours, exact, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


def test_empty_input_gives_empty_output_and_zero_gradients(device):
    tensors = inputs(0, 24, device=device)
    dy = torch.empty(0, 24, device=device)
    result = outcome(layer_norm, tensors, dy, backend="triton")
    assert result["y"].shape == (0, 24)
    assert not result["dweight"].any() and not result["dbias"].any()


def test_wrong_arguments_are_named(device):
    x, weight, bias = inputs(2, 3, 24, device=device).values()
    with pytest.raises(ValueError, match=r"weight must be \(24,\) .*\(23,\)"):
        layer_norm(x, weight[:-1], bias)
    with pytest.raises(ValueError, match="activation='tanh' is not one of"):
        layer_norm(x, weight, bias, activation="tanh")
    wide = torch.zeros(1, 8193, device=device)
    with pytest.raises(RuntimeError, match="at most 8192 channels, not 8193"):
        layer_norm(wide, wide[0], wide[0], backend="triton")


@pytest.mark.parametrize("C", [12, 96, 144, 512])
def test_rows_of_equal_channels_become_the_bias(C, device):
    """Not noise, blown up by 1 / sqrt(eps)."""
    x = 3 * torch.randn(20, 1, device=device).expand(-1, C)
    bias = torch.randn(C, device=device)
    weight = torch.ones(C, device=device)
    y = layer_norm(x, weight, bias, backend="triton")
    torch.testing.assert_close(y, bias.expand(20, C), rtol=0, atol=1e-6)
