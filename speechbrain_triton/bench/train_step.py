"""A whole training step of the LibriSpeech recipe, kernels off and on."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import speechbrain as sb
import torch
from hyperpyyaml import load_hyperpyyaml
from speechbrain.dataio.batch import PaddedData
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig

from speechbrain_triton.bench.check import CheckFailed
from speechbrain_triton.bench.shapes import TrainingCase
from speechbrain_triton.bench.timing import Inputs
from speechbrain_triton.demo import find_recipe
from speechbrain_triton.training import TransducerBrain

RECIPE = Path("LibriSpeech", "ASR", "transducer")
# Flags of the recipe. Stock is SpeechBrain's modules with another's loss.
STOCK = {
    "conv_backend": "torch",
    "frontend_backend": "torch",
    "ffn_backend": "torch",
}
KERNELS = {
    "conv_backend": "triton",
    "frontend_backend": "triton",
    "loss_backend": "triton",
}
FLAGS = {
    "torchaudio": {**STOCK, "loss_backend": "torchaudio"},
    "numba": {**STOCK, "loss_backend": "numba"},
    "triton": KERNELS,
    "triton_fused_joint": {**KERNELS, "fused_joint": True},
    "twin": {**STOCK, "loss_backend": "torch"},
}
TIMED = ("torchaudio", "numba", "triton", "triton_fused_joint")
# Of a recipe what reads or writes files, or augments what it has read.
NO_FILES = {
    "data_folder": "unused",
    "checkpointer": None,
    "wav_augment": None,
    "fea_augment": None,
}
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
# Tried in turn where gradients overflow, as GradScaler does step by step.
LOSS_SCALES = tuple(2.0**power for power in range(16, -1, -2))


def obstacle() -> str | None:
    """Say why there is no such step to time, if there is none."""
    try:
        find_recipe(RECIPE)
    except FileNotFoundError as error:
        return str(error)
    return None


def build_brain(
    case: TrainingCase, device: str, flags: dict, dropout: bool
) -> TransducerBrain:
    """Build the recipe's model and what trains it, from the recipe's YAML.

    Arguments
    ---------
    case : TrainingCase
        Which model and chunks, and autocast's dtype.
    device : str
        Where.
    flags : dict
        Backends, as the YAML calls them.
    dropout : bool
        Whether dropout is what the recipe says, or 0 everywhere.

    Returns
    -------
    TransducerBrain
        The same parameters for all flags. Nothing of it reads or writes a
        file, waveforms are not augmented, and SpecAugment is off.
    """
    overrides = {
        **NO_FILES,
        "grad_accumulation_factor": 1,
        "precision": PRECISIONS[case.dtype],
        "streaming": case.chunk > 0,
        "output_neurons": case.V,
        **dict(case.sizes),
        **flags,
    }
    if not dropout:
        overrides |= dict.fromkeys(
            ("dropout", "dec_emb_dropout", "dec_dropout"), 0.0
        )
        if not case.fast:
            overrides["frontend_dropout"] = 0.0
    name = "fast_conformer" if case.fast else "conformer"
    path = find_recipe(RECIPE) / "hparams" / f"{name}_transducer.yaml"
    # What they say about flags is in the rows: no lines for each model.
    with path.open(encoding="utf-8") as file, redirect_stderr(io.StringIO()):
        hparams = load_hyperpyyaml(file, overrides)
        config = DynChunkTrainConfig(case.chunk) if case.chunk else None
        hparams["dynchunktrain_config_sampler"] = lambda stage: config
        return TransducerBrain(
            tokenizer=None,
            modules=hparams["modules"],
            opt_class=hparams["opt_class"],
            hparams=hparams,
            run_opts={
                "device": device,
                # Of ranks, where there are several.
                "distributed_backend": "gloo" if device == "cpu" else "nccl",
            },
        )


@dataclass
class Batch:
    """What the Brain reads of a batch.

    Arguments
    ---------
    sig, tokens, tokens_bos : PaddedData
        Audio, labels, and these behind a blank, with relative lengths.
    wrd : sequence of str
        What was said; nothing, since nothing is recognized.
    """

    sig: PaddedData
    tokens: PaddedData
    tokens_bos: PaddedData
    wrd: Sequence[str] = ()

    def to(self, device: str) -> "Batch":
        """Stay, since all is on the device already."""
        return self


def make_batch(
    audio: torch.Tensor, tokens: torch.Tensor, token_lens: torch.Tensor
) -> Batch:
    """Make the Brain's batch of what :func:`draw` returns."""
    # The lengths of tokens_bos are not read.
    return Batch(
        PaddedData(audio, torch.ones_like(token_lens)),
        PaddedData(tokens, token_lens),
        PaddedData(torch.nn.functional.pad(tokens, (1, 0)), token_lens),
    )


@dataclass(frozen=True)
class StepVariant:
    """A training step with some flags.

    Arguments
    ---------
    build : callable
        Takes whether there is dropout, and returns a new Brain.
    against : tuple of str
        Names of the variants that it is compared with: what it may be twice
        as far off as, and float32's. The first of them is not checked itself.
    """

    build: Callable[[bool], TransducerBrain]
    against: tuple[str, str] = ("twin", "exact")

    @cached_property
    def brain(self) -> TransducerBrain:
        """The Brain that trains, from step to step."""
        brain = self.build(True)
        brain.on_fit_start()
        # As fit() does.
        brain.nonfinite_count = 0
        return brain

    def inputs(self, *drawn: torch.Tensor) -> Inputs:
        """Leave the batch as it is."""
        return drawn

    def run_forward(self, *inputs: torch.Tensor) -> None:
        """Train on a batch, from its audio to the optimizer's step.

        Raises
        ------
        CheckFailed
            If the loss of the step before was not finite, or if its gradients
            were not, so that the optimizer skipped it. In float16 it may,
            while the loss's scale is sought.
        """
        brain = self.brain
        brain.step += 1
        # It hears of the step before: nobody waits for this one.
        brain.update_average(brain.fit_batch(make_batch(*inputs)), 0.0)
        if brain.nonfinite_count:
            raise CheckFailed("train_step: the loss is not finite.")
        if brain.skipped_steps:
            raise CheckFailed("train_step: gradients are not finite.")

    def outcome(self, *drawn: torch.Tensor) -> dict[str, torch.Tensor]:
        """Compute what the check compares, without dropout.

        Returns
        -------
        dict of torch.Tensor
            The loss, and the gradients of each of the Brain's modules.
        """
        brain, batch = self.build(False), make_batch(*drawn)
        scales = LOSS_SCALES if brain.precision == "fp16" else (1.0,)
        for scale in scales:
            loss = run_backward(brain, batch, scale)
            grads = _gradients(brain, scale)
            if all(grad.isfinite().all() for grad in grads.values()):
                break
        return {"the loss": loss, **grads}


def run_backward(
    brain: TransducerBrain, batch: Batch, scale: float = 1.0
) -> torch.Tensor:
    """Compute gradients as the Brain does, and take no step with them.

    Arguments
    ---------
    brain : TransducerBrain
        Whose modules get the gradients.
    batch : Batch
        Audio and labels.
    scale : float
        Of the loss, before the backward pass.

    Returns
    -------
    torch.Tensor
        The loss, without the scale.
    """
    brain.modules.zero_grad()
    with brain.training_ctx:
        outputs = brain.compute_forward(batch, sb.Stage.TRAIN)
        loss = brain.compute_objectives(outputs, batch, sb.Stage.TRAIN)
    with torch.autograd.set_multithreading_enabled(False):
        (loss * scale).backward()
    return loss.detach()


def _gradients(brain, scale):
    """Unscaled, in a vector for each module that has some."""
    grads = {}
    for name, module in brain.modules.items():
        parts = [p.grad for p in module.parameters() if p.grad is not None]
        if parts:
            vector = torch.cat([part.flatten() for part in parts])
            grads[f"the gradient of {name}"] = vector / scale
    return grads


def variants(case: TrainingCase, device: str) -> dict[str, StepVariant]:
    """Build the steps; each Brain is built when it is needed.

    Arguments
    ---------
    case : TrainingCase
        Model, batch, and autocast's dtype.
    device : str
        Where.

    Returns
    -------
    dict of StepVariant
        ``"torchaudio"`` and ``"numba"``, which are SpeechBrain's modules with
        these losses and are not checked, ``"triton"``,
        ``"triton_fused_joint"``, ``"twin"``, which has plain PyTorch's loss,
        and that in float32, ``"exact"``.
    """
    variants = {
        impl: StepVariant(partial(build_brain, case, device, flags))
        for impl, flags in FLAGS.items()
    }
    for impl in ("torchaudio", "numba"):
        variants[impl] = StepVariant(variants[impl].build, (impl, "exact"))
    flags = {**FLAGS["twin"], "precision": "fp32"}
    variants["exact"] = ExactVariant(partial(build_brain, case, device, flags))
    return variants


@dataclass(frozen=True)
class ExactVariant(StepVariant):
    """A step in float32, without TF32."""

    def outcome(self, *drawn: torch.Tensor) -> dict[str, torch.Tensor]:
        with _without_tf32():
            return super().outcome(*drawn)


@contextmanager
def _without_tf32() -> Iterator[None]:
    # SpeechBrain turns it on when it is imported.
    places = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    try:
        for place in places:
            place.allow_tf32 = False
        yield
    finally:
        for place, allowed in zip(places, before, strict=True):
            place.allow_tf32 = allowed


def draw(case: TrainingCase, device: str) -> Inputs:
    """Draw audio (B, samples), labels (B, U) and their relative lengths (B,).

    Arguments
    ---------
    case : TrainingCase
        Shape.
    device : str
        Where.

    Returns
    -------
    tuple of torch.Tensor
        float32, int64 and float32. All utterances last as long; the number
        of labels is between 3/4 and 5/4 of the case's, and the first
        utterance has the most.
    """
    samples = round(case.seconds * 16000)
    most = round(case.labels * 5 / 4)
    counts = torch.randint(round(case.labels * 3 / 4), most + 1, (case.B,))
    counts[0] = most
    tokens = torch.randint(1, case.V, (case.B, most), device=device)
    audio = 0.1 * torch.randn(case.B, samples, device=device)
    return audio, tokens, (counts / most).to(device)
