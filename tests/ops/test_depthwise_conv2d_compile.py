"""``torch.compile`` and compiled variants: no length may cost one."""

import random
from collections import defaultdict

import pytest
import torch
from depthwise2d_cases import inputs

from speechbrain_triton.ops.depthwise_conv2d import depthwise_conv2d, kernels
from speechbrain_triton.ops.launcher import Launcher, variant_key

CALLS = 100


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("relu", "biases"),
    [(None, False), ("before", True), ("after", True)],
)
def test_compiled_op_is_the_eager_one_at_every_length(
    relu, biases, device, launches
):
    def op(x, weight, bias, input_bias, lengths):
        # What is around the op shows that it is part of one graph.
        y = depthwise_conv2d(
            x * 2,
            weight,
            bias,
            stride=2,
            relu=relu,
            input_bias=input_bias,
            lengths=lengths,
            backend="triton",
        )
        return y.tanh()

    # Inductor builds C++ on a CPU: there the graphs are enough.
    backend = "inductor" if device == "cuda" else "aot_eager"
    compiled = torch.compile(op, backend=backend, fullgraph=True, dynamic=True)
    for B, T, F in ((2, 9, 6), (3, 12, 5)):
        tensors = inputs(
            B, T, F, 24, device=device, bias=biases, input_bias=biases
        )
        leaves = {n: t.requires_grad_() for n, t in tensors.items()}
        lengths = torch.randint(1, T + 1, (B,), device=device)
        arguments = [
            leaves.get(n) for n in ("x", "weight", "bias", "input_bias")
        ]
        launches.clear()
        y = compiled(*arguments, lengths)
        expected = op(*arguments, lengths)
        assert launches["depthwise_conv2d_kernel"] == 2
        dy = torch.randn_like(y)
        ours, eager = (
            torch.autograd.grad(t, list(leaves.values()), dy)
            for t in (y, expected)
        )
        torch.testing.assert_close(y, expected)
        for a, b in zip(ours, eager, strict=True):
            torch.testing.assert_close(a, b)


def test_fake_tensors_get_the_shape_and_dtype(device):
    """Half a graph is traced without values: under autocast as without."""
    tensors = inputs(2, 9, 6, 24, device=device)

    def op(x, **others):
        with torch.autocast(device, torch.float16):
            return depthwise_conv2d(
                x, **others, padding="valid", stride=(1, 2), backend="triton"
            )

    compiled = torch.compile(op, backend="aot_eager", fullgraph=True)
    y, expected = compiled(**tensors), op(**tensors)
    assert y.dtype == expected.dtype == torch.float16
    assert y.shape == expected.shape == (2, 7, 2, 24)
    torch.testing.assert_close(y, expected)


def step(B, T, F, device):
    tensors = inputs(B, T, F, 256, dtype=torch.bfloat16, device=device)
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    lengths = torch.randint(1, T + 1, (B,), device=device)
    y = depthwise_conv2d(
        **leaves, stride=2, relu="before", lengths=lengths, backend="triton"
    )
    y.backward(torch.ones_like(y))


def training_steps(device, longest):
    """Batches as dynamic batching makes them."""
    rng = random.Random(0)
    for _ in range(CALLS):
        step(
            rng.randint(1, 4),
            rng.randint(1, longest),
            rng.randint(1, 40),
            device,
        )


def test_signatures_stay_few_over_random_training_steps(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("counted in Triton's own caches on a GPU")
    variants = defaultdict(set)

    def note(self, grid, tensors, numbers, constants, num_warps):
        assert all(-(2**31) <= number < 2**31 for number in numbers)
        key = variant_key(tensors, constants, num_warps)
        variants[self.kernel.fn.__name__].add(key)

    monkeypatch.setattr(Launcher, "__call__", note)
    training_steps("cpu", longest=100)
    assert {name: len(keys) for name, keys in variants.items()} == {
        "depthwise_conv2d_kernel": 1,
        "depthwise_conv2d_grad_kernel": 1,
        "sum_partials_kernel": 1,
    }


@pytest.mark.gpu
def test_compiled_variants_stay_few_over_random_training_steps():
    def count():
        return sum(
            len(kernel.device_caches[torch.cuda.current_device()][0])
            for kernel in (
                kernels.depthwise_conv2d_kernel,
                kernels.depthwise_conv2d_grad_kernel,
            )
        )

    step(2, 100, 20, "cuda")
    warm = count()
    training_steps("cuda", longest=1600)
    assert count() == warm
