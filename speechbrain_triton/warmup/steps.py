"""Steps that launch all kernels that a recipe's training will launch."""

import json
import math
import re
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import speechbrain as sb
import torch
from hyperpyyaml import load_hyperpyyaml
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig

from speechbrain_triton.bench.train_step import (
    NO_FILES,
    Batch,
    make_batch,
    run_backward,
)
from speechbrain_triton.ops.depthwise_conv1d.launch import TILE
from speechbrain_triton.training import TransducerBrain

Stage = sb.Stage

# What has nothing to do with kernels, or reads or writes files.
UNUSED = {**NO_FILES, "test_beam_search": False}
# What a step, and the plan, ask of a recipe.
KEYS = (
    "modules",
    "streaming",
    "sample_rate",
    "output_neurons",
    "transducer_cost",
    "dynchunktrain_config_sampler",
)

# Kernels of the transducer loss have variants by powers of two of the labels
# and a blank; more than these are rare.
LABELS = (20, 50, 100, 200, 400)
# Seconds of an utterance. By rule some kernels are for batches that fill a GPU,
# and others for those that do not.
SHORT, LONG = 2.0, 15.0
DRAWN_CONFIGS = 200


@dataclass(frozen=True)
class Step:
    """A batch as kernels see it.

    Arguments
    ---------
    stage : sb.Stage
        Training computes gradients; validation and test do not, and have
        another precision.
    B, labels : int
        Utterances, and labels of each.
    seconds : float
        Of each.
    chunks : DynChunkTrainConfig, optional
        The encoder's context; all of it by default.
    """

    stage: Stage
    B: int
    seconds: float
    labels: int
    chunks: DynChunkTrainConfig | None = None


def build_brain(arguments: list[str]) -> TransducerBrain:
    """Build what a recipe's train.py trains; nothing is read but the YAML.

    Arguments
    ---------
    arguments : list of str
        Those of train.py: the YAML file, overrides of its keys, and
        SpeechBrain's options.

    Returns
    -------
    TransducerBrain
        On the device that train.py would take.

    Raises
    ------
    ValueError
        If the YAML is not of a recipe of this package, or an override or flag
        is wrong.
    OSError
        If it cannot be read.
    """
    yaml_path, run_opts, overrides = sb.parse_arguments(arguments)
    text = Path(yaml_path).read_text(encoding="utf-8")
    for name, value in UNUSED.items():
        if _sets(text, name) and not _sets(overrides, name):
            # JSON's scalars are YAML's.
            overrides += f"\n{name}: {json.dumps(value)}"
    try:
        hparams = load_hyperpyyaml(text, overrides.strip())
    except KeyError as error:
        # str() of a KeyError is the repr of its message.
        raise ValueError(f"{yaml_path}: {error.args[0]}") from error
    for key in KEYS:
        if key not in hparams:
            raise ValueError(
                f"{yaml_path} has no key {key!r}, which this package's "
                "recipes have; their train.py would not run it either."
            )
    brain = TransducerBrain(
        tokenizer=None,
        modules=hparams["modules"],
        hparams=hparams,
        run_opts=run_opts,
    )
    # No kernel is launched to recognize.
    brain.hparams.greedy_searcher = lambda *_: []
    brain.metrics = {}
    return brain


def _sets(text: str, name: str) -> bool:
    return re.search(rf"^{name}:", text, re.MULTILINE) is not None


def plan_steps(brain: TransducerBrain) -> list[Step]:
    """Choose steps that have all variants of the kernels among them.

    Arguments
    ---------
    brain : TransducerBrain
        From :func:`build_brain`.

    Returns
    -------
    list of Step
        Of each stage long batches, down to one utterance, and short ones.
    """
    steps = []
    for stage in Stage:
        configs = _chunk_configs(brain.hparams, stage)
        batches = [(1, SHORT, labels) for labels in LABELS]
        B = _batch_size(brain.hparams, stage)
        while B > 0:
            batches.append((B, LONG, LABELS[0]))
            B //= 2
        count = max(len(configs), len(batches))
        pairs = zip(range(count), cycle(batches), cycle(configs), strict=False)
        steps += [Step(stage, *batch, config) for _, batch, config in pairs]
    return steps


def _batch_size(hparams, stage: Stage) -> int:
    """Utterances of LONG seconds that the recipe puts into a batch."""
    if stage != Stage.TRAIN:
        options = getattr(hparams, f"{stage.name.lower()}_dataloader_opts", {})
        return options.get("batch_size", 1)
    if getattr(hparams, "dynamic_batching", False):
        most = min(hparams.max_batch_len // LONG, hparams.max_batch_ex)
        return max(1, int(most))
    return hparams.batch_size


def _chunk_configs(hparams, stage: Stage) -> list[DynChunkTrainConfig | None]:
    """One of each kind that the convolution has a variant for."""
    if not hparams.streaming:
        return [None]
    sampler = hparams.dynchunktrain_config_sampler
    if stage == Stage.TEST:
        return [None, sampler.test_config]
    drawn = [sampler(stage) for _ in range(DRAWN_CONFIGS)]
    kinds = {
        config and math.gcd(config.chunk_size, TILE): config for config in drawn
    }
    return list(kinds.values())


def run_step(brain: TransducerBrain, step: Step) -> None:
    """Do what the Brain does with a batch, but for the optimizer's step.

    Arguments
    ---------
    brain : TransducerBrain
        From :func:`build_brain`.
    step : Step
        One of :func:`plan_steps`.
    """
    batch = _draw(brain, step)
    sampler = brain.hparams.dynchunktrain_config_sampler
    brain.hparams.dynchunktrain_config_sampler = lambda stage: step.chunks
    brain.test_config = step.chunks
    try:
        if step.stage == Stage.TRAIN:
            brain.modules.train()
            run_backward(brain, batch)
            brain.modules.zero_grad()
        else:
            brain.modules.eval()
            with torch.no_grad():
                brain.evaluate_batch(batch, step.stage)
    finally:
        brain.hparams.dynchunktrain_config_sampler = sampler


def _draw(brain: TransducerBrain, step: Step) -> Batch:
    samples = round(step.seconds * brain.hparams.sample_rate)
    device = brain.device
    audio = 0.1 * torch.randn(step.B, samples, device=device)
    vocabulary = brain.hparams.output_neurons
    shape = step.B, step.labels
    tokens = torch.randint(1, vocabulary, shape, device=device)
    return make_batch(audio, tokens, torch.ones(step.B, device=device))
