"""``speechbrain-triton bench``: the tables, on the card at hand."""

import argparse
import csv
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

IMPLS = (
    "stock",
    "eager",
    "channels_last",
    "compile",
    "liger",
    "torchaudio",
    "numba",
    "matmul_only",
    "triton",
    "triton_inplace",
    "limit",
)
OPS = (
    "depthwise_conv1d",
    "conv_module",
    "frontend",
    "geglu_linear",
    "geglu_ffn",
    "geglu_ladder",
    "transducer_loss",
)
# Modules: some take minutes to compile.
COMPILED_IF_ASKED = ("conv_module", "frontend", "geglu_ffn")
# With these the table compares the others.
BASELINES = ("stock", "eager", "torchaudio")
COLUMNS = (
    "op",
    "pass",
    "dtype",
    "shape",
    "impl",
    "median_ms",
    "p20_ms",
    "p80_ms",
    "peak_mib",
    "gpu",
    "torch",
    "triton",
    "commit",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = (
        "Passes: 'fwd' is without autograd, 'fwd_bwd' with the gradients of "
        "all parameters and, but for frontend, of the input. For conv_module, "
        "frontend and geglu_ffn these are wall times of calls issued back to "
        "back, as in training, and 'fwd_gpu' and 'fwd_bwd_gpu' are what the "
        "GPU itself needs; 'step' and 'step_gpu' are the same for a chunk of "
        "a stream. For depthwise_conv1d and geglu_linear 'fwd' and 'fwd_bwd' "
        "are what the GPU itself needs, and 'fwd_wall' and 'fwd_bwd_wall' are "
        "wall times; geglu_ladder has 'fwd' alone, for each step from a "
        "matmul to the whole of geglu_linear. What the GPU needs is measured "
        "by replaying a graph of calls; for transducer_loss, where others wait "
        "for the GPU, 'fwd' and 'fwd_bwd' are times between device events "
        "around single calls. 'limit' copies as many bytes as the op must "
        "move, for the modules after their matmuls, and 'matmul_only' is the "
        "matmuls of geglu_linear by themselves."
    )
    parser.add_argument(
        "--op",
        nargs="+",
        choices=OPS,
        default=OPS,
        help="which tables (default: all)",
    )
    parser.add_argument(
        "--impl",
        nargs="+",
        choices=IMPLS,
        help="which implementations; 'eager' is plain PyTorch where "
        "SpeechBrain has nothing, 'channels_last' is there for frontend, "
        "'liger' (the package liger-kernel, where it is installed) and "
        "'matmul_only' for geglu_linear; 'torchaudio', SpeechBrain's 'numba' "
        "(where they can be imported) and 'triton_inplace' for "
        "transducer_loss; 'compile' takes minutes to build for the modules "
        "(default: all, of modules all but compile)",
    )
    parser.add_argument(
        "--shape",
        metavar="TEXT",
        help="only shapes that contain TEXT, such as C512_K9 or chunk16",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only the first case of each op",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write the rows as CSV"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the rows as JSON"
    )
    parser.add_argument(
        "--commit",
        help="recorded in the rows (default: that of the checkout)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the rows.

    Returns
    -------
    int
        0; 1 where an implementation failed its check, so that its rows are
        missing.

    Raises
    ------
    ValueError
        If there is no GPU, or no such case.
    """
    import torch

    from speechbrain_triton.bench.cases import select

    chosen = select(args.op, args.shape, args.quick)
    if not torch.cuda.is_available():
        raise ValueError("bench needs a GPU, and torch finds none here.")
    missing = _missing(chosen, args.impl)
    rows, failures = _measure_all(chosen, args, missing)

    if args.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
    else:
        _print_table(rows)
    for impl, reason in missing.items():
        print(f"speechbrain-triton: no rows of {impl}{reason}", file=sys.stderr)
    for failure in failures:
        print(f"speechbrain-triton: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _measure_all(chosen, args, missing):
    from rich.console import Console
    from rich.progress import Progress

    machine = _machine(args.commit)
    rows, failures = [], []
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        if args.impl is None or "triton" in args.impl:
            task = bar.add_task("compiling", total=len(chosen))
            for _ in _compile_all(chosen):
                bar.advance(task)
        task = bar.add_task("measuring", total=len(chosen))
        for case in chosen:
            for impl in _impls(case, args.impl):
                if impl in missing:
                    continue
                bar.update(task, description=f"{case.op} {case.shape} {impl}")
                failure = _measure_one(case, impl, machine, rows, console)
                if failure is not None:
                    failures.append(failure)
            if args.output is not None:
                _write_csv(args.output, rows)
            bar.advance(task)
    return rows, failures


def _impls(case, asked):
    """Which implementations of a case are wanted, in their order."""
    from speechbrain_triton.bench.measure import PASSES

    if asked is None:
        skipped = "compile" if case.op in COMPILED_IF_ASKED else None
        asked = [impl for impl in IMPLS if impl != skipped]
    timed = {impl for p in PASSES[case.kind] for impl in p.impls}
    return [impl for impl in IMPLS if impl in asked and impl in timed]


def _missing(chosen, asked) -> dict[str, str]:
    """Implementations that are wanted and not here, and how a note ends."""
    wanted = {impl for case in chosen for impl in _impls(case, asked)}
    obstacles = {impl: _obstacle(impl) for impl in IMPLS if impl in wanted}
    return {impl: why for impl, why in obstacles.items() if why is not None}


def _obstacle(impl: str) -> str | None:
    if impl == "liger" and importlib.util.find_spec("liger_kernel") is None:
        return ", which is not installed (pip install liger-kernel)."
    if impl in ("torchaudio", "numba"):
        from speechbrain_triton.bench.transducer_loss import obstacle

        reason = obstacle(impl)
        return None if reason is None else f", because {reason}."
    return None


def _measure_one(case, impl, machine, rows, console):
    """Append and print an implementation's rows; say why it has none."""
    from speechbrain_triton.bench.check import CheckFailed
    from speechbrain_triton.bench.measure import measure

    try:
        for name, timing in measure(case, impl):
            what = (case.op, name, case.dtype, case.shape, impl)
            figures = [round(value, 5) for value in timing]
            console.out(*what, *figures, highlight=False)
            rows.append(
                dict(zip(COLUMNS, (*what, *figures, *machine), strict=True))
            )
    except CheckFailed as failure:
        return str(failure)
    return None


def _compile_all(chosen):
    """Fill Triton's cache side by side: one after the other takes minutes."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from speechbrain_triton.bench.measure import check

    workers = max(1, min(len(chosen), (os.cpu_count() or 2) - 1, 12))
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
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


def _write_csv(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    with open(draft, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(draft, path)


def _print_table(rows: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(caption=f"x: times faster than {', '.join(BASELINES)}")
    for column in ("op", "pass", "dtype", "shape", "impl"):
        table.add_column(column)
    for column in ("ms", "x", "MiB"):
        table.add_column(column, justify="right")
    keys = ("op", "pass", "dtype", "shape")
    plain = {
        tuple(row[k] for k in keys): row["median_ms"]
        for row in rows
        if row["impl"] in BASELINES
    }
    for row in rows:
        base = plain.get(tuple(row[k] for k in keys))
        table.add_row(
            *(row[k] for k in (*keys, "impl")),
            f"{row['median_ms']:.4f}",
            f"{base / row['median_ms']:.1f}" if base else "",
            f"{row['peak_mib']:.0f}",
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
