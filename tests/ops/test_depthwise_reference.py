"""The plain torch twin against the definition, in float64."""

import pytest
import torch
from depthwise_cases import chunk_edges, inputs, oracle, out_frames, outcome

from speechbrain_triton.ops.depthwise_conv1d import depthwise_conv1d_reference

EXACT = dict(rtol=1e-12, atol=1e-12)


def assert_is_the_oracle(tensors, **options):
    x, weight = tensors["x"], tensors["weight"]
    frames = out_frames(
        x.shape[1], weight.shape[2], options.get("padding", "same")
    )
    dy = x.new_ones(x.shape[0], frames, x.shape[2]).normal_()
    ours = outcome(depthwise_conv1d_reference, tensors, dy, **options)
    torch.testing.assert_close(
        ours, outcome(oracle, tensors, dy, **options), **EXACT
    )


@pytest.mark.parametrize(("T", "chunk_size"), chunk_edges())
def test_twin_is_the_oracle_at_chunk_edges(T, chunk_size):
    tensors = inputs(2, T, 3, 31, dtype=torch.float64)
    assert_is_the_oracle(tensors, chunk_size=chunk_size)


@pytest.mark.parametrize(
    ("T", "padding", "K"),
    [
        (T, padding, K)
        for T in (1, 7, 31, 32, 40)
        for padding in ("same", "causal", "valid")
        for K in (1, 2, 3, 30, 31, 32)
        if padding != "valid" or T >= K
    ],
)
def test_twin_is_the_oracle_for_every_kernel_size(T, padding, K):
    tensors = inputs(2, T, 3, K, dtype=torch.float64, bias=K % 2 == 1)
    assert_is_the_oracle(tensors, padding=padding)


@pytest.mark.parametrize("K", [1, 4, 5, 31])
@pytest.mark.parametrize("frames", [1, 2, 15, 40])
@pytest.mark.parametrize(
    ("padding", "chunk_size"),
    [("same", None), ("same", 1), ("same", 8), ("same", 99), ("causal", None)],
)
def test_twin_is_the_oracle_with_left_context(padding, chunk_size, frames, K):
    tensors = inputs(2, 20, 3, K, dtype=torch.float64, left_context=frames)
    assert_is_the_oracle(tensors, padding=padding, chunk_size=chunk_size)


@pytest.mark.parametrize("K", [4, 5])
@pytest.mark.parametrize("chunk_size", [None, 1, 3, 7])
@pytest.mark.parametrize("frames", [0, 1, 6])
def test_twin_passes_gradcheck_and_gradgradcheck(frames, chunk_size, K):
    tensors = inputs(2, 7, 2, K, dtype=torch.float64, left_context=frames)
    leaves = [tensor.requires_grad_() for tensor in tensors.values()]

    def function(*leaves):
        named = dict(zip(tensors, leaves, strict=True))
        return depthwise_conv1d_reference(**named, chunk_size=chunk_size)

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


@pytest.mark.parametrize("chunk_size", [None, 16])
def test_oracle_sees_the_frames_that_the_definition_names(chunk_size):
    """At T=48, chunks of 16 and 31 taps; a hand-written check of the check."""
    weight = torch.ones(1, 1, 31, dtype=torch.float64)

    def reached_from(frame):
        x = torch.zeros(1, 48, 1, dtype=torch.float64)
        x[0, frame] = 1.0
        y = oracle(x, weight, chunk_size=chunk_size)
        return y[0, :, 0].nonzero().flatten().tolist()

    if chunk_size is None:
        assert reached_from(31) == list(range(16, 47))
        assert reached_from(32) == list(range(17, 48))
    else:
        assert reached_from(31) == list(range(16, 47))
        assert reached_from(32) == list(range(32, 48))
        assert reached_from(15) == list(range(0, 31))
