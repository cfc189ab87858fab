"""``speechbrain-triton bench``: the tables, on the card at hand."""

import argparse
import csv
import json
import os
import subprocess
import sys
from pathlib import Path

IMPLS = ("stock", "channels_last", "compile", "triton", "limit")
OPS = ("depthwise_conv1d", "conv_module", "frontend")
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
        "all parameters and, but for frontend, of the input. For conv_module "
        "and frontend these are wall times of calls issued back to back, as "
        "in training, and 'fwd_gpu' and 'fwd_bwd_gpu' are what the GPU itself "
        "needs; 'step' and "
        "'step_gpu' are the same for a chunk of a stream. For "
        "depthwise_conv1d 'fwd' and 'fwd_bwd' are what the GPU itself needs, "
        "and 'fwd_wall' and 'fwd_bwd_wall' are wall times. What the GPU needs "
        "is measured by replaying a graph of calls; 'limit' copies as many "
        "bytes as the op must move, for the modules after their matmuls."
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
        default=("stock", "channels_last", "triton", "limit"),
        help="which implementations; 'compile' (modules only) takes minutes "
        "to build, 'channels_last' is there for frontend (default: all but "
        "compile)",
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
    rows, failures = _measure_all(chosen, args)

    if args.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
    else:
        _print_table(rows)
    for failure in failures:
        print(f"speechbrain-triton: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _measure_all(chosen, args):
    from rich.console import Console
    from rich.progress import Progress

    machine = _machine(args.commit)
    rows, failures = [], []
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        if "triton" in args.impl:
            task = bar.add_task("compiling", total=len(chosen))
            for _ in _compile_all(chosen):
                bar.advance(task)
        task = bar.add_task("measuring", total=len(chosen))
        for case in chosen:
            for impl in (impl for impl in IMPLS if impl in args.impl):
                bar.update(task, description=f"{case.op} {case.shape} {impl}")
                failure = _measure_one(case, impl, machine, rows)
                if failure is not None:
                    failures.append(failure)
            if args.output is not None:
                _write_csv(args.output, rows)
            bar.advance(task)
    return rows, failures


def _measure_one(case, impl, machine, rows):
    """Append an implementation's rows; say why where it has none."""
    from speechbrain_triton.bench.check import CheckFailed
    from speechbrain_triton.bench.measure import measure

    try:
        for name, timing in measure(case, impl):
            what = (case.op, name, case.dtype, case.shape, impl)
            figures = (round(value, 5) for value in timing)
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

    table = Table(caption="x: times faster than stock")
    for column in ("op", "pass", "dtype", "shape", "impl"):
        table.add_column(column)
    for column in ("ms", "x", "MiB"):
        table.add_column(column, justify="right")
    keys = ("op", "pass", "dtype", "shape")
    stock = {
        tuple(row[k] for k in keys): row["median_ms"]
        for row in rows
        if row["impl"] == "stock"
    }
    for row in rows:
        base = stock.get(tuple(row[k] for k in keys))
        table.add_row(
            *(row[k] for k in (*keys, "impl")),
            f"{row['median_ms']:.4f}",
            f"{base / row['median_ms']:.1f}" if base else "",
            f"{row['peak_mib']:.0f}",
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
