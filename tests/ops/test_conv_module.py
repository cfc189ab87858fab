"""The convolution module as one function, against its definition."""

import pytest
import torch
from depthwise_cases import assert_backward_repeats, doubles, oracle, outcome
from tolerance import assert_as_exact_as_stock

from speechbrain_triton.ops import ConvModuleParameters, conv_module
from speechbrain_triton.ops.conv_module import conv_module_reference

KERNELS = {
    "layer_norm_kernel": 2,
    "glu_kernel": 1,
    "conv_kernel": 2,
    "layer_norm_grad_kernel": 2,
    "glu_grad_kernel": 1,
    "weight_grad_kernel": 1,
    "reduce_partials_kernel": 1,
    "sum_partials_kernel": 1,
}


def inputs(B, T, C, K, *, dtype=torch.float32, device="cpu", bias=True):
    tensors = {
        "x": 3 * torch.randn(B, T, C) + 1,
        "layer_norm_weight": torch.randn(C),
        "layer_norm_bias": torch.randn(C),
        "bottleneck_weight": torch.randn(2 * C, C, 1) / C**0.5,
        "conv_weight": torch.randn(C, 1, K),
        "norm_weight": torch.randn(C),
        "norm_bias": torch.randn(C),
        "linear_weight": torch.randn(C, C) / C**0.5,
    }
    if bias:
        tensors |= {
            "bottleneck_bias": torch.randn(2 * C),
            "conv_bias": torch.randn(C),
            "linear_bias": torch.randn(C),
        }
    return {name: t.to(device, dtype) for name, t in tensors.items()}


def call(function):
    """With parameters by name, of which biases may be absent."""

    def named(x, **arguments):
        parameters = {
            name: arguments.pop(name, None)
            for name in ConvModuleParameters._fields
        }
        return function(x, ConvModuleParameters(**parameters), **arguments)

    return named


def normed(x, weight, bias):
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt() * weight + bias


def definition(x, p, **options):
    n = normed(x, p.layer_norm_weight, p.layer_norm_bias)
    h = n @ p.bottleneck_weight[..., 0].mT
    if p.bottleneck_bias is not None:
        h = h + p.bottleneck_bias
    a, b = h.chunk(2, dim=-1)
    u = oracle(a * torch.sigmoid(b), p.conv_weight, p.conv_bias, **options)
    z = normed(u, p.norm_weight, p.norm_bias)
    z = z * torch.sigmoid(z)
    y = z @ p.linear_weight.mT
    return y if p.linear_bias is None else y + p.linear_bias


def assert_module_is_right(tensors, launches, **options):
    dy = torch.randn(tensors["x"].shape).to(tensors["x"])
    launches.clear()
    ours = outcome(call(conv_module), tensors, dy, backend="triton", **options)
    assert launches == KERNELS
    assert_as_exact_as_stock(
        ours,
        outcome(call(conv_module_reference), tensors, dy, **options),
        outcome(call(definition), doubles(tensors), dy.double(), **options),
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk_size", [None, 8, 5])
def test_module_is_right(chunk_size, bias, device, launches):
    tensors = inputs(2, 19, 96, 7, device=device, bias=bias)
    assert_module_is_right(tensors, launches, chunk_size=chunk_size)


@pytest.mark.parametrize("C", [8, 144, 600])
def test_causal_module_is_right_at_any_width(C, device, launches):
    tensors = inputs(2, 9, C, 3, device=device)
    assert_module_is_right(tensors, launches, padding="causal")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("chunk_size", [None, 8])
def test_module_is_right_in_half_precision(chunk_size, dtype, device, launches):
    tensors = inputs(2, 17, 96, 7, dtype=dtype, device=device)
    assert_module_is_right(tensors, launches, chunk_size=chunk_size)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("chunk_size", [None, 8, 17])
def test_module_is_right_at_the_size_of_a_training_batch(
    chunk_size, dtype, launches
):
    tensors = inputs(16, 401, 512, 31, dtype=dtype, device="cuda")
    assert_module_is_right(tensors, launches, chunk_size=chunk_size)


def test_autocast_keeps_float32_gradients_of_parameters(device):
    leaves = {
        name: t.requires_grad_()
        for name, t in inputs(2, 9, 24, 3, device=device).items()
    }
    with torch.autocast(device, torch.float16):
        y = call(conv_module)(**leaves, backend="triton")
    assert y.dtype is torch.float16
    y.float().sum().backward()
    for name, leaf in leaves.items():
        assert leaf.grad.dtype is torch.float32, name


def test_backward_is_the_same_under_another_autocast(device):
    tensors = inputs(2, 9, 24, 3, device=device)
    leaves = [t.requires_grad_() for t in tensors.values()]
    y = call(conv_module)(**tensors, backend="triton")
    dy = torch.randn_like(y)
    plain = torch.autograd.grad(y, leaves, dy, retain_graph=True)
    with torch.autocast(device, torch.bfloat16):
        inside = torch.autograd.grad(y, leaves, dy)
    for a, b in zip(plain, inside, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("frozen", ["conv", "linear", "all"])
def test_frozen_parameters_get_no_gradient(frozen, device, launches):
    tensors = inputs(2, 9, 24, 3, device=device)
    for name, t in tensors.items():
        kept = name.startswith(frozen) or (frozen == "all" and name != "x")
        t.requires_grad_(not kept)
    y = call(conv_module)(**tensors, backend="triton")
    y.sum().backward()
    for name, t in tensors.items():
        assert (t.grad is None) == (not t.requires_grad), name
    assert ("weight_grad_kernel" in launches) == (frozen == "linear")


def test_inputs_are_left_as_they_were_and_backward_repeats(device):
    assert_backward_repeats(
        call(conv_module), inputs(2, 9, 24, 3, device=device)
    )


def test_result_may_be_masked_in_place(device):
    """As SpeechBrain's encoder layer does."""
    leaves = {
        name: t.requires_grad_()
        for name, t in inputs(2, 9, 24, 3, device=device).items()
    }
    padding = torch.zeros(2, 9, 1, dtype=torch.bool, device=device)
    padding[1, 5:] = True
    y = call(conv_module)(**leaves, backend="triton")
    y.masked_fill_(padding, 0.0)
    y.sum().backward()
    expected = 9 + 5
    torch.testing.assert_close(
        leaves["linear_bias"].grad,
        torch.full((24,), float(expected), device=device),
    )


def test_double_backward_is_the_twins(device):
    def second(function, dtype, **options):
        torch.manual_seed(1)
        tensors = inputs(1, 9, 24, 3, dtype=dtype, device=device)
        leaves = [t.requires_grad_() for t in tensors.values()]
        y = call(function)(**tensors, chunk_size=4, **options)
        (dx,) = torch.autograd.grad(
            y.pow(2).sum(), leaves[0], create_graph=True
        )
        return torch.autograd.grad(
            dx.pow(2).sum(), leaves, materialize_grads=True
        )

    ours = second(conv_module, torch.float32, backend="triton")
    exact = second(conv_module_reference, torch.float64)
    for a, b in zip(ours, exact, strict=True):
        assert (a.double() - b).norm() <= 1e-4 * b.norm()


def test_gradcheck_of_the_twin():
    tensors = inputs(1, 5, 4, 3, dtype=torch.float64)
    names = list(tensors)

    def module(*leaves):
        arguments = dict(zip(names, leaves, strict=True))
        return call(conv_module_reference)(**arguments, chunk_size=2)

    leaves = [t.requires_grad_() for t in tensors.values()]
    assert torch.autograd.gradcheck(module, leaves)


def test_empty_batch_gives_zero_gradients(device):
    tensors = inputs(0, 9, 24, 3, device=device)
    dy = torch.empty(0, 9, 24, device=device)
    result = outcome(call(conv_module), tensors, dy, backend="triton")
    assert result["y"].shape == (0, 9, 24)
    assert not any(g.any() for n, g in result.items() if n.startswith("d"))


def test_wrong_arguments_are_named(device):
    t = inputs(2, 9, 24, 3, device=device)
    run = call(conv_module)
    with pytest.raises(ValueError, match=r"x must be \(batch, time, channel\)"):
        run(**{**t, "x": t["x"][0]})
    with pytest.raises(ValueError, match=r"bottleneck_weight must be \(48, 24"):
        run(**{**t, "bottleneck_weight": t["bottleneck_weight"][1:]})
    with pytest.raises(ValueError, match=r"linear_bias must be \(24,\)"):
        run(**{**t, "linear_bias": t["linear_bias"][1:]})
    with pytest.raises(ValueError, match="padding='valid' is not one of"):
        run(**t, padding="valid")
    with pytest.raises(ValueError, match="activation='swiss' is not one of"):
        run(**t, activation="swiss")
    with pytest.raises(TypeError, match="x is torch.float16 and layer_norm_w"):
        run(**{**t, "x": t["x"].half()})


def test_torch_path_is_the_twin():
    t = inputs(2, 9, 24, 3)
    ours = call(conv_module)(**t, chunk_size=4, backend="torch")
    twin = call(conv_module_reference)(**t, chunk_size=4)
    assert torch.equal(ours, twin)


def test_tied_parameters_get_one_gradient_each(device):
    """Under create_graph the twin sees one tensor in two places."""
    tensors = inputs(2, 9, 24, 3, device=device)
    tied = tensors["norm_weight"].requires_grad_()
    tensors["layer_norm_weight"] = tied
    y = call(conv_module)(**tensors, backend="triton")
    loss = y.pow(2).sum()
    (plain,) = torch.autograd.grad(loss, tied, retain_graph=True)
    (with_graph,) = torch.autograd.grad(loss, tied, create_graph=True)
    torch.testing.assert_close(with_graph, plain, rtol=1e-4, atol=1e-4)
