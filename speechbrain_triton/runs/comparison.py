"""Comparing finished runs, utterance by utterance."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from speechbrain_triton.files import RunError
from speechbrain_triton.runs.reader import Run
from speechbrain_triton.runs.scores import (
    SetComparison,
    Track,
    align_characters,
    compare_set,
)
from speechbrain_triton.runs.settings import (
    Scalar,
    differing_settings,
    shared_settings,
)
from speechbrain_triton.runs.sides import Side, group_runs, run_labels


@dataclass(frozen=True)
class Comparison:
    """The outcome of :func:`compare_runs`.

    Arguments
    ---------
    sides : tuple of Side
    test_sets : tuple of SetComparison
    skipped : tuple of str
        Test sets that some runs lack.
    differing : mapping of str to tuple
        Setting to one value a run, in the order of the sides.
    shared : mapping of str to scalar
        Settings that matter and are the same in all runs.
    """

    sides: tuple[Side, ...]
    test_sets: tuple[SetComparison, ...]
    skipped: tuple[str, ...]
    differing: Mapping[str, tuple[Scalar, ...]]
    shared: Mapping[str, Scalar]

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, side by side."""
        return tuple(run for side in self.sides for run in side.runs)


def compare_runs(
    runs: Sequence[Run],
    group_by: Sequence[str] | None = None,
    *,
    test_sets: Sequence[str] | None = None,
    track: Track = iter,
) -> Comparison:
    """Compares finished runs on the test sets that all of them have.

    Arguments
    ---------
    runs : sequence of Run
        At least two runs, from :func:`read_run`.
    group_by : sequence of str, optional
        Settings that tell the sides apart. By default, runs with the same
        settings but seeds and folders form one side, and exactly two runs are
        two sides.
    test_sets : sequence of str, optional
        Names of the test sets to compare; by default all.
    track : callable
        Wraps the pairs of texts whose characters must be aligned, the long
        part of the work, to show its progress.

    Returns
    -------
    Comparison
        Scores of each run and side, and differences to the first side.

    Raises
    ------
    RunError
        If fewer than two runs, a run twice, an unknown setting or test set is
        given, or the runs' test sets hold other utterances or references.

    Example
    -------
    >>> from pathlib import Path
    >>> from speechbrain_triton.runs import Edits, Evaluation, Utterance
    >>> def run(name, *hypothesis):
    ...     edits = Edits(0, 0, hypothesis != ("two", "one"), 2)
    ...     decoded = Utterance("u1", ("two", "one"), hypothesis, edits)
    ...     test = Evaluation("test", Path(name, "wer_test.txt"), (decoded,))
    ...     return Run(Path(name), {"test": test})
    >>> runs = [run("a", "two", "one"), run("b", "two", "on")]
    >>> comparison = compare_runs(runs)
    >>> comparison.test_sets[0].differences[0].points
    50.0
    """
    _check_runs(runs)
    sides = group_runs(runs, group_by)
    ordered = [run for side in sides for run in side.runs]
    names, skipped = _choose_test_sets(ordered, test_sets)
    for name in names:
        for other in ordered[1:]:
            _check_same_utterances(name, ordered[0], other)
    paths = [run.path for run in ordered]
    labels = dict(zip(paths, run_labels(paths), strict=True))
    characters = align_characters(ordered, names, track)
    settings = [run.settings for run in ordered]
    return Comparison(
        sides=sides,
        test_sets=tuple(
            compare_set(name, sides, labels, characters) for name in names
        ),
        skipped=skipped,
        differing=differing_settings(settings),
        shared=shared_settings(settings),
    )


def _check_runs(runs):
    if len(runs) < 2:
        raise RunError(
            f"A comparison needs at least two runs, but got {len(runs)}."
        )
    folders = Counter(os.path.realpath(run.path) for run in runs)
    folder, times = folders.most_common(1)[0]
    if times > 1:
        raise RunError(f"The run folder '{folder}' is given {times} times.")


def _choose_test_sets(runs, wanted):
    present = dict.fromkeys(chain.from_iterable(r.evaluations for r in runs))
    common = [n for n in present if all(n in r.evaluations for r in runs)]
    for name in wanted or ():
        if name in common:
            continue
        lacking = [r for r in runs if name not in r.evaluations]
        raise RunError(
            f"The run '{lacking[0].path}' has no test set '{name}'; it has "
            f"{_enumerate(lacking[0].evaluations)}."
        )
    if not common:
        other = next(
            r
            for r in runs
            if r.evaluations.keys() != runs[0].evaluations.keys()
        )
        raise RunError(
            f"The runs have no test set in common: '{runs[0].path}' has "
            f"{_enumerate(runs[0].evaluations)}, '{other.path}' has "
            f"{_enumerate(other.evaluations)}."
        )
    if wanted:
        return list(dict.fromkeys(wanted)), ()
    return common, tuple(name for name in present if name not in common)


def _enumerate(names):
    return ", ".join(f"'{name}'" for name in names)


def _check_same_utterances(name, first, second):
    references, others = (
        {u.key: u.reference for u in run.evaluations[name].utterances}
        for run in (first, second)
    )
    missing = [key for key in references if key not in others]
    added = [key for key in others if key not in references]
    if missing or added:
        raise RunError(
            f"The runs decoded different utterances of '{name}': "
            f"'{second.path}' lacks {len(missing)} of '{first.path}' and has "
            f"{len(added)} others, for example '{(missing + added)[0]}'."
        )
    changed = [k for k, text in references.items() if text != others[k]]
    if changed:
        key = changed[0]
        raise RunError(
            f"The runs have different reference texts in '{name}' for "
            f"{len(changed)} of {len(references)} utterances, for example "
            f"'{key}': '{' '.join(references[key])}' in '{first.path}' and "
            f"'{' '.join(others[key])}' in '{second.path}'."
        )
