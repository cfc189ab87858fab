"""Grouping runs into sides: the same settings, trained from several seeds."""

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from speechbrain_triton.files import RunError
from speechbrain_triton.runs.reader import Run
from speechbrain_triton.runs.settings import Scalar, differing_settings


@dataclass(frozen=True)
class Side:
    """Runs that are compared as one.

    Arguments
    ---------
    label : str
        The value of the setting that tells the sides apart if there is one
        such setting, else the end of the run's path or ``"side 1"``.
    runs : tuple of Run
        One run for each seed.
    """

    label: str
    runs: tuple[Run, ...]


def group_runs(
    runs: Sequence[Run], group_by: Sequence[str] | None = None
) -> tuple[Side, ...]:
    """Groups runs into sides, in the order of their first runs.

    Arguments
    ---------
    runs : sequence of Run
        At least two runs. Exactly two are always two sides.
    group_by : sequence of str, optional
        Settings whose values tell the sides apart. By default, all that
        :func:`differing_settings` counts.

    Returns
    -------
    tuple of Side
        One or more sides.

    Raises
    ------
    RunError
        If no run records a setting of ``group_by``.

    Example
    -------
    >>> runs = [
    ...     Run(Path(f"{conv}/{seed}"), {}, {"conv": conv, "seed": seed})
    ...     for conv in ("torch", "triton")
    ...     for seed in (1, 2)
    ... ]
    >>> [(side.label, len(side.runs)) for side in group_runs(runs)]
    [('torch', 2), ('triton', 2)]
    """
    for name in group_by or ():
        _check_recorded(name, runs)
    groups: list[list[Run]] = []
    for run in runs:
        same = (g for g in groups if not _differ(g[0], run, group_by))
        group = next(same, None)
        if group is None or len(runs) == 2:
            groups.append([run])
        else:
            group.append(run)
    labels = _side_labels(groups, group_by)
    return tuple(
        Side(label, tuple(group))
        for label, group in zip(labels, groups, strict=True)
    )


def run_labels(paths: Sequence[Path]) -> list[str]:
    """Shortest ends of the paths that tell them apart.

    Example
    -------
    >>> run_labels([Path("off/1234"), Path("on/1234")])
    ['off/1234', 'on/1234']
    """
    parts = [Path(os.path.abspath(path)).parts for path in paths]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        ends = [str(Path(*part[-depth:])) for part in parts]
        if len(set(ends)) == len(ends):
            return ends
    return [str(path) for path in paths]


def describe(value: Scalar) -> str:
    """A setting's value as a recipe's YAML spells it.

    Example
    -------
    >>> describe(None), describe(True), describe(0.5)
    ('-', 'True', '0.5')
    """
    return "-" if value is None else str(value)


def _differ(first, second, group_by):
    if group_by:
        return any(
            first.settings.get(name) != second.settings.get(name)
            for name in group_by
        )
    return bool(differing_settings([first.settings, second.settings]))


def _check_recorded(name, runs):
    recorded = sorted({key for run in runs for key in run.settings})
    if name in recorded:
        return
    close = difflib.get_close_matches(name, recorded, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    raise RunError(
        f"Cannot group by '{name}': no run records a setting of that name{hint}"
    )


def _side_labels(groups, group_by):
    firsts = [group[0] for group in groups]
    names = group_by
    if not names:
        differing = differing_settings([run.settings for run in firsts])
        names = list(differing) if len(differing) == 1 else []
    labels = [
        ", ".join(_label(name, run.settings.get(name)) for name in names)
        for run in firsts
    ]
    if all(labels) and len(set(labels)) == len(labels):
        return labels
    if all(len(group) == 1 for group in groups):
        return run_labels([run.path for run in firsts])
    return [f"side {number}" for number in range(1, len(groups) + 1)]


def _label(name, value):
    # "triton" speaks for itself, "True" or "16" does not.
    if isinstance(value, str):
        return value
    return f"{name}={describe(value)}"
