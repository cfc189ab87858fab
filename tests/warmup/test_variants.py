"""No length, batch or chunk size makes a variant that is new for ever.

Variants are told apart by signature, as launchers do; no kernel runs.
"""

import random
from collections import defaultdict

import pytest
import speechbrain as sb
import torch
from speechbrain.dataio.batch import PaddedData
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig
from warm_recipes import CASES, arguments

from speechbrain_triton.bench.train_step import make_batch, run_backward
from speechbrain_triton.ops.geglu_linear import launch
from speechbrain_triton.ops.launcher import variant_key
from speechbrain_triton.warmup.compiling import launched_by
from speechbrain_triton.warmup.steps import (
    build_brain,
    plan_steps,
    run_step,
)

DRAWS = 200
MOST = 16
Stage = sb.Stage

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the models of these tests are on a CPU"
)


class Variants(defaultdict):
    """Kernels' variants by name."""

    def __init__(self):
        super().__init__(set)

    def note(self, launcher, grid, tensors, numbers, constants, num_warps):
        # Triton has another variant for longer integers.
        assert all(-(2**31) <= number < 2**31 for number in numbers)
        key = variant_key(tensors, constants, num_warps)
        self[launcher.kernel.fn.__name__].add(key)


def random_steps(brain):
    """Batches as dynamic batching and dynamic chunk training make them."""
    rng = random.Random(0)
    streaming = brain.hparams.streaming
    for _ in range(DRAWS):
        training = rng.random() < 0.8
        chunks = None
        if streaming and training and rng.random() < 0.8:
            left = rng.choice((None, rng.randint(2, 32)))
            chunks = DynChunkTrainConfig(rng.randint(8, 32), left)
        brain.hparams.dynchunktrain_config_sampler = lambda _, c=chunks: c
        B, frames = rng.randint(1, 4), rng.randint(100, 1600)
        labels = rng.randint(1, frames // 7)
        shape = B, labels
        tokens = torch.randint(1, brain.hparams.output_neurons, shape)
        lens = torch.tensor([1.0, *(rng.uniform(0.3, 1) for _ in range(B - 1))])
        batch = make_batch(torch.randn(B, 160 * frames), tokens, lens)
        batch.sig = PaddedData(batch.sig.data, lens)
        if training:
            brain.modules.train()
            run_backward(brain, batch)
        else:
            brain.modules.eval()
            with torch.no_grad():
                brain.evaluate_batch(batch, Stage.VALID)


@pytest.mark.parametrize("case", CASES)
def test_variants_are_few_and_warmed_up(case):
    recipe, name, more = CASES[case]
    brain = build_brain(arguments(recipe, name, output_neurons=29, **more))
    assert brain.device == "cpu"
    warm, drawn = Variants(), Variants()
    steps = plan_steps(brain)
    with launched_by(warm.note):
        for step in steps:
            run_step(brain, step)
    with launched_by(drawn.note):
        random_steps(brain)
    counts = {kernel: len(keys) for kernel, keys in drawn.items()}
    assert max(counts.values()) <= MOST, counts
    missed = {
        kernel: keys - warm[kernel]
        for kernel, keys in drawn.items()
        if keys - warm[kernel]
    }
    assert not missed
    # All kinds of kernels were asked for, and validation by other variants.
    assert counts["conv_kernel"] == (8 if brain.hparams.streaming else 2)
    assert counts["paths_kernel"] > 2


def test_variants_of_the_fused_gate_are_few(monkeypatch):
    """Those of Hopper, of which a CPU has none by itself."""
    monkeypatch.setattr(launch, "interpreted", lambda: False)
    monkeypatch.setattr(launch, "_hopper_multiprocessors", lambda device: 132)
    # Its result is not looked at.
    monkeypatch.setattr(
        launch.F, "linear", lambda x, *_: x.new_empty(len(x), 2 * 2048)
    )
    weight = torch.zeros(2 * 2048, 512, dtype=torch.bfloat16)
    rng, variants = random.Random(0), Variants()
    with launched_by(variants.note):
        for _ in range(DRAWS):
            x = weight.new_empty(rng.randint(1, 4) * rng.randint(25, 1600), 512)
            gating = launch.Gating.of("none", 0.1, rng.getrandbits(60))
            keep = rng.random() < 0.8
            launch.launch_geglu_linear(x, weight, None, gating, keep)
    counts = {kernel: len(keys) for kernel, keys in variants.items()}
    assert counts == {"geglu_linear_hopper_kernel": 2, "geglu_kernel": 1}
