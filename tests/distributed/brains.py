"""The Brain of the AN4 recipes on random speech, and what a run of it shows."""

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import torch
from hyperpyyaml import load_hyperpyyaml
from speechbrain.dataio.batch import PaddedData

from speechbrain_triton.demo import find_recipe
from speechbrain_triton.ops.launcher import Launcher
from speechbrain_triton.training import TransducerBrain

RATE = 16000
# What makes two runs comparable, and leaves the disk alone.
FIXED = {
    "data_folder": "unused",
    "checkpointer": None,
    "wav_augment": None,
    "fea_augment": None,
    "dropout": 0.0,
    "streaming": True,
    "log_steps": 0,
}
STOCK = {
    "conv_backend": "torch",
    "frontend_backend": "torch",
    "ffn_backend": "torch",
    "loss_backend": "torch",
}
KERNELS = dict.fromkeys(STOCK, "triton")


@dataclass
class Batch:
    """What the Brain reads of a batch, on the device already."""

    sig: PaddedData
    tokens: PaddedData
    tokens_bos: PaddedData

    def to(self, device: str) -> "Batch":
        return self


@dataclass(frozen=True)
class Case:
    """How a Brain is trained.

    Arguments
    ---------
    name : str
        Of the results.
    recipe : str
        ``"conformer"`` or ``"fast_conformer"``.
    kernels : bool
        Whether all flags are on, or all are off.
    settings : dict
        Of the recipe.
    steps : int
        Of the optimizer.
    accumulation : int
        Batches for each of them.
    layerdrop : float
        Probability that a layer is left out of a pass, each rank drawing
        its own.
    find_unused : bool
        Whether DDP looks for parameters that a pass leaves out.
    seconds : float
        Of the audio, about.
    """

    name: str
    recipe: str
    kernels: bool
    settings: dict
    steps: int
    accumulation: int = 1
    layerdrop: float = 0.0
    find_unused: bool = False
    seconds: float = 0.4


@dataclass
class Record:
    """What a rank saw; lists have an entry for each batch.

    ``convolutions`` counts the launches so far.
    """

    losses: list[float] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    without_gradient: list[str] = field(default_factory=list)
    gradient: torch.Tensor | None = None
    launches: dict[str, int] = field(default_factory=dict)
    convolutions: list[int] = field(default_factory=list)
    parameters: str = ""
    moved: bool = False


class RecordingBrain(TransducerBrain):
    """Keeps the gradient of the first step, as the ranks have averaged it."""

    record: Record

    def optimizers_step(self):
        if self.record.gradient is None:
            # Wrapped by DDP, or not.
            named = {
                name.replace(".module.", "."): p
                for name, p in self.modules.named_parameters()
            }
            self.record.without_gradient = [
                name for name, p in named.items() if p.grad is None
            ]
            self.record.gradient = torch.cat(
                [
                    torch.zeros_like(p).flatten()
                    if p.grad is None
                    else p.grad.flatten()
                    for p in named.values()
                ]
            ).cpu()
        super().optimizers_step()


def build(case: Case, device: str, distributed_backend: str) -> RecordingBrain:
    """The same parameters in all ranks, with kernels and without."""
    path = find_recipe("AN4/ASR/transducer") / "hparams"
    overrides = {
        **FIXED,
        "ffn": "geglu",
        "grad_accumulation_factor": case.accumulation,
        **case.settings,
        **(KERNELS if case.kernels else STOCK),
        "fused_joint": case.kernels,
    }
    with open(path / f"{case.recipe}_transducer.yaml") as file:
        hparams = load_hyperpyyaml(file, overrides)
    hparams["Transformer"].encoder.layerdrop_prob = case.layerdrop
    brain = RecordingBrain(
        tokenizer=None,
        modules=hparams["modules"],
        opt_class=hparams["opt_class"],
        hparams=hparams,
        run_opts={
            "device": device,
            "distributed_backend": distributed_backend,
            "find_unused_parameters": case.find_unused,
        },
    )
    brain.record = Record()
    brain.on_fit_start()
    # As fit() does.
    brain.nonfinite_count = 0
    return brain


def draw(case: Case, rank: int, number: int, device: str) -> Batch:
    """A batch of this rank's own length, which varies from one to the next."""
    random = torch.Generator().manual_seed(1000 * rank + number)
    stretch = 1 + 0.5 * rank + 0.1 * (number % 4)
    samples = round(case.seconds * stretch * RATE)
    size = case.settings["batch_size"]
    audio = 0.1 * torch.randn(size, samples, generator=random)
    lens = 0.6 + 0.4 * torch.rand(size, generator=random)
    lens[0] = 1.0
    most = max(2, round(3 * case.seconds))
    labels = case.settings.get("output_neurons", 32)
    tokens = torch.randint(1, labels, (size, most), generator=random)
    counts = torch.randint(1, most + 1, (size,), generator=random)
    counts[0] = most
    audio, lens, tokens, counts = (
        t.to(device) for t in (audio, lens, tokens, counts / most)
    )
    bos = torch.nn.functional.pad(tokens, (1, 0))
    return Batch(
        PaddedData(audio, lens),
        PaddedData(tokens, counts),
        PaddedData(bos, counts),
    )


def train(
    case: Case, rank: int, device: str, distributed_backend: str
) -> Record:
    """Train on random batches."""
    brain = build(case, device, distributed_backend)
    record = brain.record
    before = digest(brain)
    torch.manual_seed(rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with counted_launches() as launches:
            # An accumulation ends with the step that it divides.
            for number in range(1, case.steps * case.accumulation + 1):
                brain.step = number
                batch = draw(case, rank, number, device)
                record.frames.append(batch.sig.data.shape[1])
                record.losses.append(float(brain.fit_batch(batch)))
                record.convolutions.append(launches["conv_kernel"])
    assert brain.optimizer_step == case.steps, brain.optimizer_step
    record.warnings = [str(warning.message) for warning in caught]
    record.launches = dict(launches)
    record.parameters = digest(brain)
    record.moved = record.parameters != before
    return record


def digest(brain: TransducerBrain) -> str:
    """Of all bits of all parameters."""
    hashed = hashlib.sha256()
    for parameter in brain.modules.parameters():
        hashed.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()


@contextmanager
def counted_launches() -> Iterator[Counter]:
    """Count kernels that are started, by name."""
    launches, start = Counter(), Launcher.__call__

    def counted(launcher, *args):
        launches[launcher.kernel.fn.__name__] += 1
        start(launcher, *args)

    with mock.patch.object(Launcher, "__call__", counted):
        yield launches
