"""Speech lengths vary from batch to batch: no call may compile anew."""

import random
from collections import defaultdict

import pytest
import torch
from depthwise_cases import inputs

from speechbrain_triton.ops import depthwise_conv1d
from speechbrain_triton.ops.depthwise_conv1d import kernels
from speechbrain_triton.ops.launcher import Launcher, variant_key

CALLS = 200


def step(B, T, C, chunk_size, device, dtype=torch.bfloat16):
    tensors = inputs(B, T, C, 31, dtype=dtype, device=device)
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    y = depthwise_conv1d(**leaves, chunk_size=chunk_size, backend="triton")
    y.backward(torch.ones_like(y))


def training_steps(C, device, longest):
    """Batches as dynamic batching and dynamic chunk training make them."""
    rng = random.Random(0)
    for _ in range(CALLS):
        chunk_size = rng.choice((None, rng.randint(8, 32)))
        T = rng.randint(1, longest)
        step(rng.randint(1, 4), T, C, chunk_size, device)


@pytest.mark.parametrize("C", [512, 144, 100])
def test_signatures_stay_few_over_random_training_steps(C, monkeypatch):
    """Full context and three grains of chunks, forward and transposed."""
    if torch.cuda.is_available():
        pytest.skip("counted in Triton's own caches on a GPU")
    variants = defaultdict(set)

    def note(self, grid, tensors, numbers, constants, num_warps):
        assert all(-(2**31) <= number < 2**31 for number in numbers)
        key = variant_key(tensors, constants, num_warps)
        variants[self.kernel.fn.__name__].add(key)

    monkeypatch.setattr(Launcher, "__call__", note)
    training_steps(C, "cpu", longest=120)
    assert {name: len(keys) for name, keys in variants.items()} == {
        "conv_kernel": 8,
        "weight_grad_kernel": 4,
        "reduce_partials_kernel": 1,
    }


@pytest.mark.gpu
def test_compiled_variants_stay_few_over_random_training_steps():
    def count():
        return sum(
            len(kernel.device_caches[torch.cuda.current_device()][0])
            for kernel in (
                kernels.conv_kernel,
                kernels.weight_grad_kernel,
                kernels.reduce_partials_kernel,
            )
        )

    for chunk_size in (None, 8, 12, 9):
        step(2, 100, 512, chunk_size, "cuda")
    warm = count()
    training_steps(512, "cuda", longest=1600)
    assert count() == warm
