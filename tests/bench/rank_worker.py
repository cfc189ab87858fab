"""The bench's command in several ranks, on a tiny model and without GPUs.

    torchrun --nproc_per_node 2 rank_worker.py bench --op train_step ...

What needs a GPU is stood in for: the group is gloo's, and the clock says that
rank 1 takes longer and less memory. With FAILING set to an implementation, its
check fails in rank 1 alone.
"""

import faulthandler
import os
import sys
from dataclasses import replace
from unittest import mock

from tiny_step import CHUNKED

from speechbrain_triton import cli
from speechbrain_triton.bench import command, measure, timing
from speechbrain_triton.bench.check import CheckFailed
from speechbrain_triton.bench.ranks import Ranks
from speechbrain_triton.training import TransducerBrain

LIMIT = 60


def main(rank: int) -> int:
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    brains, fit_start = [], TransducerBrain.on_fit_start

    def on_fit_start(brain):
        fit_start(brain)
        brains.append(brain)

    def timer(call, sets):
        for inputs in sets[:2]:
            call(*inputs)
        say("batch", sets[0][0].double().sum().item())
        return timing.Timing(1.0 + rank, 0.5 + rank, 1.5 + rank, 8.0 - rank)

    right = measure.check

    def check(case, impl, device):
        if impl == os.environ.get("FAILING") and rank == 1:
            raise CheckFailed(f"{impl} is wrong in rank 1.")
        right(case, impl, device)

    def say(what, *values):
        # In a line of its own, whatever the other rank is printing.
        figures = " ".join(map(float.hex, values))
        print(f"\n{what} of rank {rank}: {figures}\n", end="", flush=True)

    ranks = replace(Ranks.started(), kind="cpu")
    case = replace(CHUNKED, gpus=ranks.world)
    passes = measure.PASSES["train_step"]
    timed = tuple(replace(one, timer=timer) for one in passes)
    with (
        mock.patch.object(Ranks, "started", lambda: ranks),
        mock.patch.object(command, "_choose", lambda *_: [case]),
        mock.patch.object(command, "_compile_all", lambda chosen: iter(())),
        mock.patch.object(command, "_machine", lambda c: ("CPU", "2", "3", c)),
        mock.patch.object(timing, "MOST_SETS", timing.FEWEST_SETS),
        mock.patch.object(TransducerBrain, "on_fit_start", on_fit_start),
        mock.patch.object(measure, "check", check),
        mock.patch.dict(measure.PASSES, train_step=timed),
    ):
        code = cli.main(sys.argv[1:])
    for brain in brains:
        parameters = brain.modules.parameters()
        say("parameters", sum(p.double().sum().item() for p in parameters))
    return code


if __name__ == "__main__":
    sys.exit(main(int(os.environ["RANK"])))
