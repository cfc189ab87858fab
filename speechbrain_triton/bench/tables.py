"""Rows and profiles as tables to read."""

import sys
from collections.abc import Iterable, Mapping
from typing import TextIO

from rich.console import Console
from rich.table import Table

from speechbrain_triton.bench.shapes import TrainingCase

# With these the table compares the others.
BASELINES = ("stock", "eager", "torchaudio")


def print_rows(rows: Iterable[Mapping]) -> None:
    """Print rows on standard output, with their factor against a baseline.

    Arguments
    ---------
    rows : iterable of mapping
        As they are written to a file.
    """
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
    _console(sys.stdout).print(table)


def print_profiles(
    profiles: Iterable[tuple[TrainingCase, str, Mapping[str, float]]],
    file: TextIO,
) -> None:
    """Print what the GPU's time of training steps goes to.

    Arguments
    ---------
    profiles : iterable of tuple
        Case, implementation, and milliseconds a step by part.
    file : TextIO
        Where.
    """
    table = Table(caption="what the GPU works in a step, idle time left out")
    for column in ("dtype", "shape", "impl", "part"):
        table.add_column(column)
    for column in ("ms", "share"):
        table.add_column(column, justify="right")
    for case, impl, times in profiles:
        total = sum(times.values())
        for part, ms in {**times, "all": total}.items():
            table.add_row(
                *(case.dtype, case.shape, impl, part, f"{ms:.2f}"),
                f"{ms / total:.1%}",
                end_section=part == "all",
            )
    _console(file).print(table)


def _console(file: TextIO) -> Console:
    return Console(file=file, width=None if file.isatty() else 120)
