"""A bias and ReLU against their definition."""

import pytest
import torch
from depthwise_cases import assert_backward_repeats, doubles, outcome
from tolerance import assert_as_exact_as_stock

from speechbrain_triton.ops.bias_relu import bias_relu, bias_relu_reference

HALVES = (torch.bfloat16, torch.float16)


def inputs(*shape, dtype=torch.float32, device="cpu"):
    return {
        "x": torch.randn(shape).to(device, dtype),
        "bias": torch.randn(shape[-1]).to(device, dtype),
    }


def definition(x, bias, lengths=None):
    y = (x + bias).clamp(min=0)
    if lengths is None:
        return y
    rows = [
        torch.cat((row[:n], 0 * row[n:]))
        for row, n in zip(y, lengths.tolist(), strict=True)
    ]
    return torch.stack(rows)


def assert_right(tensors, launches, **options):
    dy = torch.randn_like(tensors["x"])
    launches.clear()
    ours = outcome(bias_relu, tensors, dy, backend="triton", **options)
    assert launches == {
        "bias_relu_kernel": 1,
        "bias_relu_grad_kernel": 1,
        "sum_partials_kernel": 1,
    }
    assert_as_exact_as_stock(
        ours,
        outcome(bias_relu_reference, tensors, dy, **options),
        outcome(definition, doubles(tensors), dy.double(), **options),
    )


@pytest.mark.parametrize("lengths", [None, (9, 0, 4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_right_in_every_dtype(dtype, lengths, device, launches):
    if lengths is not None:
        lengths = torch.tensor(lengths, device=device)
    tensors = inputs(3, 9, 5, 40, dtype=dtype, device=device)
    assert_right(tensors, launches, lengths=lengths)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (2, 7, 3, 300), (1, 70, 9, 64)]
)
def test_right_for_every_size(shape, device, launches):
    assert_right(inputs(*shape, device=device), launches)


def test_any_strides_are_read(device, launches):
    tensors = inputs(2, 6, 5, 16, device=device)
    x = tensors["x"]
    for view in (x.transpose(1, 2), x[:, ::2], x[:1].expand(3, -1, -1, -1)):
        assert_right(dict(tensors, x=view), launches)


def test_zero_has_no_slope_and_nan_stays(device):
    x = torch.tensor([0.0, -1.0, float("nan")], device=device)
    leaf = x.view(1, 1, 1, 3).requires_grad_()
    y = bias_relu(leaf, torch.zeros(3, device=device), backend="triton")
    y.sum().backward()
    assert y[0, 0, 0, :2].eq(0).all() and y[0, 0, 0, 2].isnan()
    assert leaf.grad[0, 0, 0, :2].eq(0).all()


def test_bias_may_be_float32_beside_halves(device):
    tensors = inputs(2, 5, 3, 16, dtype=torch.float16, device=device)
    tensors["bias"] = tensors["bias"].float()
    leaves = {n: t.requires_grad_() for n, t in tensors.items()}
    y = bias_relu(**leaves, backend="triton")
    y.float().sum().backward()
    assert y.dtype is leaves["x"].grad.dtype is torch.float16
    assert leaves["bias"].grad.dtype is torch.float32


def test_inputs_are_left_as_they_were_and_backward_repeats(device):
    assert_backward_repeats(bias_relu, inputs(2, 5, 3, 16, device=device))


def test_double_backward_is_the_twins(device):
    def second(function, **options):
        torch.manual_seed(1)
        tensors = inputs(2, 5, 3, 8, device=device)
        leaves = [t.requires_grad_() for t in tensors.values()]
        y = function(**tensors, **options)
        grads = torch.autograd.grad(y.pow(3).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.pow(2).sum() for g in grads), leaves)

    ours = second(bias_relu, backend="triton")
    for a, b in zip(ours, second(bias_relu_reference), strict=True):
        torch.testing.assert_close(a, b)


def test_gradcheck_of_the_twin():
    tensors = inputs(2, 5, 3, 4, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in tensors.values()]
    lengths = torch.tensor([5, 2])
    assert torch.autograd.gradcheck(
        lambda x, bias: bias_relu_reference(x, bias, lengths), leaves
    )


def test_empty_batch_gives_zero_gradients(device):
    tensors = inputs(0, 5, 3, 16, device=device)
    result = outcome(
        bias_relu, tensors, torch.empty_like(tensors["x"]), backend="triton"
    )
    assert result["y"].shape == (0, 5, 3, 16) and not result["dbias"].any()


def test_it_compiles_without_a_break(device):
    torch.compiler.reset()
    compiled = torch.compile(bias_relu, backend="aot_eager", fullgraph=True)
    tensors = inputs(2, 5, 3, 16, device=device)
    dy = torch.randn_like(tensors["x"])
    found = outcome(compiled, tensors, dy, backend="triton")
    for name, value in outcome(bias_relu_reference, tensors, dy).items():
        torch.testing.assert_close(found[name], value)


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("x", torch.zeros(2, 5, 16), r"x must be \(batch, time, feature, ch"),
        ("bias", torch.zeros(15), r"bias must be \(16,\)"),
        ("lengths", torch.ones(3).long(), r"lengths must be \(2,\), one for"),
        ("backend", "cuda", "backend='cuda'"),
    ],
)
def test_wrong_arguments_are_named(name, value, message):
    with pytest.raises(ValueError, match=message):
        bias_relu(**{**inputs(2, 5, 3, 16), name: value})


def test_lengths_are_frames_and_not_fractions():
    with pytest.raises(TypeError, match="whole numbers of frames"):
        bias_relu(**inputs(2, 5, 3, 16), lengths=torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_lengths_may_be_of_any_integer_dtype(dtype, device):
    tensors = inputs(2, 5, 3, 16, device=device)
    lengths = torch.tensor([5, 2], device=device, dtype=dtype)
    y = bias_relu(**tensors, lengths=lengths, backend="triton")
    assert torch.equal(y, bias_relu_reference(**tensors, lengths=lengths))


def test_lengths_may_have_any_strides(device):
    tensors = inputs(3, 7, 3, 16, device=device)
    lengths = torch.tensor([4], device=device).expand(3)
    y = bias_relu(**tensors, lengths=lengths, backend="triton")
    assert torch.equal(y, bias_relu_reference(**tensors, lengths=lengths))
