"""The plain torch twin against the definition, in float64."""

import pytest
import torch
from depthwise2d_cases import inputs, oracle
from depthwise_cases import outcome

from speechbrain_triton.ops.depthwise_conv2d import depthwise_conv2d_reference


@pytest.mark.parametrize("relu", [None, "before", "after"])
@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (2, 1), (1, 2)])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 5), (3, 5), (5, 1)])
@pytest.mark.parametrize("size", [(5, 6), (8, 5)])
def test_twin_is_the_oracle(size, kernel, stride, padding, relu):
    tensors = inputs(2, *size, 3, kernel, dtype=torch.float64)
    options = dict(
        stride=stride,
        padding=padding,
        relu=relu,
        lengths=torch.tensor([size[0], 2]),
    )
    y = oracle(**tensors, **options)
    dy = torch.randn_like(y)
    ours = outcome(depthwise_conv2d_reference, tensors, dy, **options)
    exact = outcome(oracle, tensors, dy, **options)
    torch.testing.assert_close(ours, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("relu", [None, "before", "after"])
@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
def test_twin_passes_gradcheck_and_gradgradcheck(padding, relu):
    tensors = inputs(2, 5, 4, 2, dtype=torch.float64)
    leaves = [tensor.requires_grad_() for tensor in tensors.values()]

    def function(*leaves):
        named = dict(zip(tensors, leaves, strict=True))
        return depthwise_conv2d_reference(
            **named,
            stride=2,
            padding=padding,
            relu=relu,
            lengths=torch.tensor([5, 3]),
        )

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_oracle_reads_what_the_definition_names():
    """At stride 2, from one input; a hand-written check of the check."""
    weight = torch.ones(1, 1, 3, 3, dtype=torch.float64)

    def reached_from(t, f, padding):
        x = torch.zeros(1, 8, 8, 1, dtype=torch.float64)
        x[0, t, f] = 1.0
        y = oracle(x, weight, stride=(2, 2), padding=padding)
        return y[0, :, :, 0].nonzero().tolist()

    assert reached_from(4, 4, "same") == [[2, 2]]
    assert reached_from(3, 4, "same") == [[1, 2], [2, 2]]
    assert reached_from(4, 4, "causal") == [[2, 2], [3, 2]]
    assert reached_from(7, 1, "causal") == []  # a frame later would see it
    assert reached_from(4, 4, "valid") == [[1, 1], [1, 2], [2, 1], [2, 2]]
