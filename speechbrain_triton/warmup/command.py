"""``speechbrain-triton warmup``: compile before a training, not in it."""

import argparse
import functools
import os
import time

# Each has half a GiB of the GPU for itself.
MOST_WORKERS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.usage = "%(prog)s [-h] hparams [--KEY=VALUE ...]"
    parser.epilog = (
        "Give the arguments of train.py, as in 'warmup "
        "hparams/conformer_transducer.yaml --streaming=True': flags, sizes and "
        "precision decide what is compiled. The corpus is not needed. It "
        "compiles for the GPU at hand and this installation, into the cache "
        "that trainings read (TRITON_CACHE_DIR, by default ~/.triton/cache); a "
        "training starts the same with or without it, only sooner."
    )
    parser.add_argument(
        "hparams", help="a YAML file of one of this package's recipes"
    )
    parser.add_argument(
        "overrides",
        nargs=argparse.REMAINDER,
        metavar="--KEY=VALUE",
        help="keys of the YAML, and options of SpeechBrain such as --device",
    )


def run(args: argparse.Namespace) -> int:
    """Compile the kernels, and say how many there were.

    Returns
    -------
    int
        0.

    Raises
    ------
    ValueError
        If there is no GPU, or the recipe or a flag is wrong.
    OSError
        If the YAML cannot be read.
    """
    import torch

    from speechbrain_triton.backend import interpreted, triton_obstacle

    if not torch.cuda.is_available():
        raise ValueError("warmup needs a GPU, and torch finds none here.")
    if interpreted():
        raise ValueError("With TRITON_INTERPRET=1 there is nothing to compile.")
    started = time.perf_counter()
    from speechbrain_triton.warmup.steps import build_brain

    brain = build_brain([args.hparams, *args.overrides])
    device = torch.device(brain.device)
    obstacle = triton_obstacle(device)
    if obstacle is not None:
        raise ValueError(
            f"warmup has nothing to compile on device={brain.device}, because "
            f"{obstacle}."
        )
    tally = _compile_all(brain, device)
    seconds = time.perf_counter() - started
    if tally.wanted == 0:
        print("No kernels: by its flags this recipe launches none.")
    else:
        print(
            f"{tally.wanted} kernels: {tally.compiled} compiled, {tally.found} "
            f"found in the cache, {seconds:.1f} s."
        )
    return 0


def _compile_all(brain, device):
    """Take all steps, with kernels compiled in place of launched."""
    import torch
    from rich.console import Console
    from rich.progress import Progress

    from speechbrain_triton.warmup.compiling import Tally, compiling
    from speechbrain_triton.warmup.steps import plan_steps, run_step

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("compiling", total=None)

        class Shown(Tally):
            def add(self, cache_hit):
                super().add(cache_hit)
                bar.update(
                    task,
                    total=self.wanted,
                    completed=self.compiled + self.found,
                )

        tally = Shown()
        workers = min(len(os.sched_getaffinity(0)), MOST_WORKERS)
        prepare = functools.partial(torch.cuda.set_device, device)
        with compiling(workers, prepare, tally):
            for step in plan_steps(brain):
                run_step(brain, step)
    return tally
