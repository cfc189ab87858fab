"""``speechbrain-triton bench``: the tables, on the card at hand."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from speechbrain_triton.bench.rows import (
    COLUMNS,
    DTYPES,
    IMPLS,
    OPS,
    read_rows,
    select_rows,
    write_rows,
)

# Modules: some take minutes to compile.
COMPILED_IF_ASKED = (
    "conv_module",
    "frontend",
    "convolution_frontend",
    "geglu_ffn",
)
# Takes minutes, and tens of GiB where stock is timed.
ONLY_IF_ASKED = ("train_step",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = (
        "Passes: 'fwd' is without autograd, 'fwd_bwd' with the gradients of "
        "all parameters and, but for front ends, of the input. For modules "
        "(conv_module, frontend, convolution_frontend, geglu_ffn) these are "
        "wall times of calls issued back to back, as in training, and "
        "'fwd_gpu' and 'fwd_bwd_gpu' are what the GPU itself needs; 'step' and "
        "'step_gpu' are the same for a chunk of a stream. For depthwise_conv1d "
        "and geglu_linear 'fwd' and 'fwd_bwd' are what the GPU itself needs, "
        "and 'fwd_wall' and 'fwd_bwd_wall' are wall times; geglu_ladder has "
        "'fwd' alone, for each step from a matmul to the whole of "
        "geglu_linear. What the GPU needs is measured by replaying a graph of "
        "calls; for the two losses, where others wait for the GPU, 'fwd' and "
        "'fwd_bwd' are times between device events around single calls. "
        "'limit' copies as many bytes as the op must move, for modules after "
        "their matmuls, and is the matmuls alone for geglu_ffn and "
        "transducer_joint_loss; 'matmul_only' is the matmuls of geglu_linear "
        "by themselves. For train_step, a training "
        "step of the LibriSpeech recipe on random audio from its features to "
        "the optimizer, 'step' is wall time of steps issued back to back, and "
        "MiB all that is allocated at the peak; under torchrun it trains with "
        "a batch of the shape's size on each GPU, and the shape of N > 1 GPUs "
        "ends in _Ngpus."
    )
    parser.add_argument(
        "--op",
        nargs="+",
        choices=OPS,
        metavar="OP",
        help=f"which tables: {', '.join(OPS)} (default: all but train_step, "
        "which takes minutes and, where stock is timed, tens of GiB)",
    )
    parser.add_argument(
        "--impl",
        nargs="+",
        choices=IMPLS,
        metavar="IMPL",
        help=f"which implementations: {', '.join(IMPLS)}; 'eager' is plain "
        "PyTorch where "
        "SpeechBrain has nothing, 'channels_last' is there for front ends, "
        "'liger' (the package liger-kernel, where it is installed) and "
        "'matmul_only' for geglu_linear; 'torchaudio' and SpeechBrain's "
        "'numba' (where they run) for the losses, 'triton_inplace' for "
        "transducer_loss and 'triton_fused_joint', with the joint network in "
        "the loss, for transducer_joint_loss; for train_step 'torchaudio' and "
        "'numba' are stock with these losses, and 'triton' and "
        "'triton_fused_joint' all kernels; 'compile' takes minutes to build "
        "for the modules (default: all, of modules all but compile)",
    )
    parser.add_argument(
        "--shape",
        metavar="TEXT",
        help="only shapes that contain TEXT, such as C512_K9 or chunk16",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="only cases of this dtype (of modules: of autocast)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only the first case of each op",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="for each row of train_step, print what the GPU's time goes to",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write the rows as CSV"
    )
    parser.add_argument(
        "--png",
        type=Path,
        metavar="FOLDER",
        help="draw the rows as PNG files in FOLDER: for each op bars of time "
        "and peak memory, depthwise_conv1d over frames and channels, and a "
        "roofline (needs matplotlib)",
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE",
        help="take the rows from FILE, which --output has written, instead of "
        "measuring: it needs no GPU, and --op, --impl, --shape and --dtype "
        "choose some of them (default: all)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the rows as JSON"
    )
    parser.add_argument(
        "--commit",
        help="recorded in the rows (default: that of the checkout)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure or read the rows; print, write and draw them.

    Returns
    -------
    int
        0; 1 where an implementation failed its check, so that its rows are
        missing.

    Raises
    ------
    ValueError
        If there is no GPU, or no such case, the rows cannot be read, or what
        draws them is missing.
    """
    from speechbrain_triton.bench.ranks import Ranks

    _check_folder(args.png)
    if args.source is not None:
        _report(args, _read(args))
        return 0
    if args.op is None:
        args.op = [op for op in OPS if op not in ONLY_IF_ASKED]
    ranks = Ranks.started()
    try:
        chosen = _choose(args, ranks)
    except ValueError:
        if ranks.rank > 0:
            # It is the same in all ranks, and the first one says it.
            return 0
        raise
    missing = _missing(chosen, args.impl)
    chosen = [case for case in chosen if case.op not in missing]
    rows, profiles, failures = _measure_all(chosen, args, missing, ranks)
    if ranks.rank == 0:
        _report(args, rows, profiles, missing, failures)
    return 1 if failures else 0


def _check_folder(folder):
    """Refuse what would fail only after all measurements."""
    if folder is None:
        return
    if folder.suffix.lower() == ".png" or folder.is_file():
        raise ValueError(
            f"--png takes a folder, for there is more than one picture, but "
            f"'{folder}' names a file."
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--png needs matplotlib: pip install matplotlib.")
    folder.mkdir(parents=True, exist_ok=True)


def _read(args):
    """The rows of --from that are asked for."""
    for option in ("quick", "profile", "output", "commit"):
        if getattr(args, option):
            raise ValueError(
                f"--{option} is of rows that are measured; leave it out or "
                "--from."
            )
    rows = read_rows(args.source)
    rows = select_rows(rows, args.op, args.impl, args.shape, args.dtype)
    if not rows:
        raise ValueError(f"'{args.source}' has no such rows.")
    return rows


def _choose(args, ranks):
    """The cases, if this machine can run them."""
    import torch

    from speechbrain_triton.bench.cases import select

    if args.profile and "train_step" not in args.op:
        raise ValueError("--profile is of train_step; add --op train_step.")
    if ranks.several and (args.profile or args.op != ["train_step"]):
        what = "--profile is of" if args.profile else "Ops are timed on"
        raise ValueError(
            f"{what} one GPU, and torchrun started {ranks.world} processes; "
            "start bench without it, or with --op train_step alone."
        )
    chosen = select(args.op, args.shape, args.quick, args.dtype)
    if not torch.cuda.is_available():
        raise ValueError("bench needs a GPU, and torch finds none here.")
    if not ranks.several:
        return chosen
    gpus = torch.cuda.device_count()
    if ranks.local_world > gpus:
        raise ValueError(
            f"torchrun started {ranks.local_world} processes here, where torch "
            f"finds {gpus} GPU{'' if gpus == 1 else 's'}; each needs its own."
        )
    return [replace(case, gpus=ranks.world) for case in chosen]


def _report(args, rows, profiles=(), missing=None, failures=()):
    from speechbrain_triton.bench import tables

    if args.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
    else:
        tables.print_rows(rows)
    if profiles:
        # Standard output is the rows' alone where a program reads it.
        tables.print_profiles(profiles, sys.stderr if args.json else sys.stdout)
    for what, reason in (missing or {}).items():
        print(f"speechbrain-triton: no rows of {what}{reason}", file=sys.stderr)
    for failure in failures:
        print(f"speechbrain-triton: {failure}", file=sys.stderr)
    if args.png is not None:
        _draw(rows, args.png)


def _draw(rows, folder):
    from speechbrain_triton.bench.pictures import write_pictures

    names = [path.name for path in write_pictures(rows, folder)]
    drawn = ", ".join(names) if names else "no picture shows these rows"
    print(f"speechbrain-triton: in '{folder}': {drawn}", file=sys.stderr)


def _measure_all(chosen, args, missing, ranks):
    from rich.console import Console
    from rich.progress import Progress

    machine = _machine(args.commit)
    todo = [
        (case, impl)
        for case in chosen
        for impl in _impls(case, args.impl, missing)
    ]
    rows, profiles, failures = [], [], []
    console = Console(stderr=True, quiet=ranks.rank > 0)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        compiling = args.impl is None or "triton" in args.impl
        # The ranks of a machine have one cache.
        if compiling and ranks.local_rank == 0:
            task = bar.add_task("compiling", total=len(chosen))
            for _ in _compile_all(chosen):
                bar.advance(task)
        measure = _how_to_measure(todo, ranks, bar)
        task = bar.add_task("measuring", total=len(todo))
        with ranks.joined():
            for case, impl in todo:
                what = f"{case.op} {case.shape} {impl}"
                bar.update(task, description=what)
                failure = _measure_one(
                    measure, case, impl, machine, rows, console
                )
                if args.profile and not failure and case.op == "train_step":
                    failure = _profile_one(case, impl, profiles)
                if failure is not None:
                    failures.append(failure)
                if args.output is not None and ranks.rank == 0:
                    write_rows(args.output, rows)
                bar.advance(task)
    return rows, profiles, failures


def _impls(case, asked, missing=()):
    """Which implementations of a case are to be timed, in their order."""
    from speechbrain_triton.bench.measure import PASSES

    if asked is None:
        skipped = "compile" if case.op in COMPILED_IF_ASKED else None
        asked = [impl for impl in IMPLS if impl != skipped]
    timed = {impl for p in PASSES[case.kind] for impl in p.impls}
    timed -= set(missing)
    return [impl for impl in IMPLS if impl in asked and impl in timed]


def _missing(chosen, asked) -> dict[str, str]:
    """What is wanted and cannot be timed here, and how a note ends.

    These are implementations, and ``"train_step"`` where there is no recipe.
    """
    wanted = {impl for case in chosen for impl in _impls(case, asked)}
    wanted |= {case.op for case in chosen if case.op == "train_step"}
    obstacles = {
        what: _obstacle(what) for what in (*OPS, *IMPLS) if what in wanted
    }
    return {what: why for what, why in obstacles.items() if why is not None}


def _obstacle(what: str) -> str | None:
    if what == "train_step":
        from speechbrain_triton.bench.train_step import obstacle

        reason = obstacle()
        return None if reason is None else f": {reason}"
    if what == "liger" and importlib.util.find_spec("liger_kernel") is None:
        return ", which is not installed (pip install liger-kernel)."
    if what in ("torchaudio", "numba"):
        from speechbrain_triton.bench.transducer_loss import obstacle

        reason = obstacle(what)
        return None if reason is None else f", because {reason}."
    return None


def _how_to_measure(todo, ranks, bar):
    """What measures an implementation of a case, when ranks have joined."""
    from speechbrain_triton.bench.measure import measure
    from speechbrain_triton.bench.ranks import check_alone, measure_together

    if not ranks.several:
        return measure
    ranks.use_device()
    problems = {}
    task = bar.add_task("checking", total=len(todo))
    for case, impl in todo:
        problems[case, impl] = check_alone(case, impl, ranks)
        bar.advance(task)

    return lambda case, impl: measure_together(
        case, impl, ranks, problems[case, impl]
    )


def _measure_one(measure, case, impl, machine, rows, console):
    """Append and print an implementation's rows; say why it has none."""
    from speechbrain_triton.bench.check import failure_of

    def measured():
        for name, timing in measure(case, impl):
            what = (case.op, name, case.dtype, case.shape, impl)
            figures = [round(value, 5) for value in timing]
            console.out(*what, *figures, highlight=False)
            rows.append(
                dict(zip(COLUMNS, (*what, *figures, *machine), strict=True))
            )

    return failure_of(measured, case, impl)


def _profile_one(case, impl, profiles):
    """Append what a step's time goes to; say why it is not known."""
    from speechbrain_triton.bench.check import failure_of
    from speechbrain_triton.bench.step_profile import profile_step

    def profiled():
        profiles.append((case, impl, profile_step(case, impl)))

    return failure_of(profiled, case, impl)


def _compile_all(chosen):
    """Fill Triton's cache side by side: one after the other takes minutes."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from speechbrain_triton.bench.measure import check
    from speechbrain_triton.bench.ranks import alone

    workers = max(1, min(len(chosen), (os.cpu_count() or 2) - 1, 12))
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    with alone(), pool:
        jobs = [pool.submit(check, case) for case in chosen]
        # A failed check comes up again, and is reported, when it is timed.
        for job in as_completed(jobs):
            yield job.exception()


def _machine(commit: str | None) -> tuple[str, str, str, str]:
    import torch
    import triton

    gpu = torch.cuda.get_device_name()
    return gpu, torch.__version__, triton.__version__, commit or _commit()


def _commit() -> str:
    """The checkout's commit, or the package's version where it is none."""
    here = Path(__file__).parent
    git = subprocess.run(
        ["git", "-C", here, "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
    )
    if git.returncode == 0:
        return git.stdout.strip()
    from speechbrain_triton import __version__

    return __version__
