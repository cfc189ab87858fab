"""The bench in several processes that torchrun started, a GPU for each."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from speechbrain_triton.bench import measure, train_step
from speechbrain_triton.bench.check import (
    FAILURES,
    CheckFailed,
    failure_of,
    sentence_of,
)
from speechbrain_triton.bench.shapes import TrainingCase
from speechbrain_triton.bench.timing import Timing, rotate


@dataclass(frozen=True)
class Ranks:
    """This process among all that work together.

    Arguments
    ---------
    rank, world : int
        Its number, and how many there are.
    local_rank, local_world : int
        The same of this machine alone.
    kind : str
        Of devices: ``"cuda"``, or ``"cpu"`` for tests.

    Example
    -------
    >>> Ranks().several, Ranks(3, 4, 1, 2).device
    (False, 'cuda:1')
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    kind: str = "cuda"

    @classmethod
    def started(cls) -> "Ranks":
        """Read torchrun's variables; without torchrun there is one process."""
        if not dist.is_torchelastic_launched():
            return cls()
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        return cls(*(int(os.environ[name]) for name in names))

    @property
    def several(self) -> bool:
        return self.world > 1

    @property
    def device(self) -> str:
        """This rank's own."""
        return f"cuda:{self.local_rank}" if self.kind == "cuda" else "cpu"

    def use_device(self) -> None:
        """Make it the one that is meant where none is named."""
        if self.kind == "cuda":
            torch.cuda.set_device(self.local_rank)

    def gather(self, value: object) -> list:
        """What each rank has, in their order; all of them must call it."""
        values = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Be one of a group, in which SpeechBrain trains by DDP.

        A rank that fails leaves without the others, whom torchrun then ends:
        they may be waiting for it.
        """
        if not self.several:
            with alone():
                yield
            return
        # NVLink multicast is for who has a host to himself: on one that is
        # shared NCCL may fail with it, and disturb others.
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        dist.init_process_group("nccl" if self.kind == "cuda" else "gloo")
        yield
        dist.barrier()
        dist.destroy_process_group()


@contextmanager
def alone() -> Iterator[None]:
    """Hide torchrun from SpeechBrain, which would want a group."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    hidden = {n: os.environ.pop(n) for n in names if n in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def check_alone(case: TrainingCase, impl: str, ranks: Ranks) -> str | None:
    """Check a training step before ranks join; say what is wrong, if so.

    In a group a model's statistics are summed over ranks, so that one whose
    check fails halfway would leave the others waiting.
    """
    with alone():
        return failure_of(
            lambda: measure.check(case, impl, ranks.device), case, impl
        )


def measure_together(
    case: TrainingCase, impl: str, ranks: Ranks, problem: str | None
) -> Iterator[tuple[str, Timing]]:
    """Time a training step in all ranks at once.

    Each rank trains on a batch of the case's size, so that with perfect
    scaling a step takes as long as on one GPU.

    Arguments
    ---------
    case : TrainingCase
        What to time.
    impl : str
        One that ``train_step`` has.
    ranks : Ranks
        That have joined.
    problem : str, optional
        What :func:`check_alone` says in this rank.

    Returns
    -------
    iterator of tuple
        The pass's name and its timing.

    Raises
    ------
    CheckFailed
        In all ranks, if there is a problem in one of them.
    ValueError
        If a rank fails while it is timed, which the others do not see.
    """
    problems = [text for text in ranks.gather(problem) if text is not None]
    if problems:
        raise CheckFailed(problems[0])
    device = ranks.device
    variant = train_step.variants(case, device)[impl]
    torch.manual_seed(ranks.rank)
    sets = rotate(lambda: variant.inputs(*train_step.draw(case, device)))
    for timed in measure.PASSES[case.kind]:
        try:
            timing = timed.timer(variant.run_forward, sets)
        except FAILURES as error:
            why = sentence_of(error, case, impl)
            raise ValueError(f"Rank {ranks.rank}: {why}") from error
        timings = ranks.gather(tuple(timing))
        yield timed.name, slowest([Timing(*values) for values in timings])


def slowest(timings: list[Timing]) -> Timing:
    """What a step of several ranks takes.

    Arguments
    ---------
    timings : list of Timing
        Of each rank.

    Returns
    -------
    Timing
        The times of the rank with the greatest median, and the most memory.

    Example
    -------
    >>> slowest([Timing(2.0, 1.0, 3.0, 5.0), Timing(1.0, 1.0, 4.0, 7.0)])
    Timing(median_ms=2.0, p20_ms=1.0, p80_ms=3.0, peak_mib=7.0)
    """
    peak = max(timing.peak_mib for timing in timings)
    return max(timings)._replace(peak_mib=peak)
