"""Train and validate on random batches of a GPU, with kernels launched.

    python launch_worker.py CASE STEPS

Prints how many kernels' variants were compiled, and how many found.
"""

import random
import sys

import speechbrain as sb
import torch
import triton
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig
from warm_recipes import CASES, ON_GPU, arguments

from speechbrain_triton.warmup.compiling import Tally
from speechbrain_triton.warmup.steps import Step, build_brain, run_step


def random_step(rng: random.Random, streaming: bool) -> Step:
    stage = rng.choice((sb.Stage.TRAIN, sb.Stage.TRAIN, sb.Stage.VALID))
    seconds = rng.uniform(1, 16)
    chunks = None
    if streaming and stage == sb.Stage.TRAIN and rng.random() < 0.7:
        chunks = DynChunkTrainConfig(rng.randint(8, 32), rng.randint(2, 32))
    return Step(
        stage,
        rng.randint(1, 12),
        seconds,
        rng.randint(1, max(1, round(14 * seconds))),
        chunks,
    )


def main(case: str, steps: str) -> None:
    recipe, name, more = CASES[case]
    brain = build_brain(arguments(recipe, name, **{**more, **ON_GPU}))
    tally = Tally()
    triton.knobs.compilation.listener = lambda *, cache_hit, **_: tally.add(
        cache_hit
    )
    rng = random.Random(0)
    for _ in range(int(steps)):
        run_step(brain, random_step(rng, brain.hparams.streaming))
    torch.cuda.synchronize()
    print("tally:", tally.compiled, tally.found)


if __name__ == "__main__":
    main(*sys.argv[1:])
