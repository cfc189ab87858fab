"""Utterances that the sides of a comparison recognised most differently."""

import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from speechbrain_triton.runs.comparison import Comparison
from speechbrain_triton.runs.tables import labelled_runs
from speechbrain_triton.runs.wer import Utterance

CORRECT, SUBSTITUTED, INSERTED, DELETED, ABSENT = "=", "S", "I", "D", ""


@dataclass(frozen=True)
class Cell:
    """One run's share of one column of an alignment.

    Arguments
    ---------
    edit : str
        ``"="``, ``"S"``, ``"I"`` or ``"D"`` as in SpeechBrain's WER files;
        ``""`` where only other runs inserted a word.
    word : str
        What was recognised; of a deletion, the reference word.
    """

    edit: str
    word: str


@dataclass(frozen=True)
class Hypothesis:
    """What some runs recognised.

    Arguments
    ---------
    runs : tuple of str
        Labels of all runs that recognised just these words.
    errors : int
        Word errors.
    cells : tuple of Cell
        One for each column of the alignment.
    """

    runs: tuple[str, ...]
    errors: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class AlignedUtterance:
    """An utterance with the words of all runs aligned to its reference.

    Arguments
    ---------
    key : str
    words : int
        Reference words.
    reference : tuple of str
        One text a column, empty where a run inserted a word.
    hypotheses : tuple of Hypothesis
    """

    key: str
    words: int
    reference: tuple[str, ...]
    hypotheses: tuple[Hypothesis, ...]


def differing_utterances(
    comparison: Comparison, name: str, limit: int
) -> tuple[list[AlignedUtterance], int]:
    """Chooses and aligns the utterances that the sides differ most in.

    Arguments
    ---------
    comparison : Comparison
    name : str
        Test set.
    limit : int
        How many utterances to align at most.

    Returns
    -------
    chosen : list of AlignedUtterance
        By the largest difference between two sides' mean numbers of errors,
        then in the order of the test set.
    total : int
        Number of utterances of which not all runs recognised the same words.

    Example
    -------
    >>> from pathlib import Path
    >>> from speechbrain_triton.runs import (
    ...     Edits, Evaluation, Run, Utterance, compare_runs
    ... )
    >>> def run(name, *hypothesis):
    ...     edits = Edits(0, 0, hypothesis != ("two", "one"), 2)
    ...     decoded = Utterance("u1", ("two", "one"), hypothesis, edits)
    ...     test = Evaluation("test", Path(name, "wer_test.txt"), (decoded,))
    ...     return Run(Path(name), {"test": test})
    >>> comparison = compare_runs([run("a", "two", "one"), run("b", "two")])
    >>> (utterance,), total = differing_utterances(comparison, "test", limit=5)
    >>> utterance.hypotheses[1].cells[1]
    Cell(edit='D', word='one')
    """
    decoded = {
        label: {u.key: u for u in run.evaluations[name].utterances}
        for label, run in labelled_runs(comparison)
    }
    keys = next(iter(decoded.values()))
    differing = [
        key
        for key in keys
        if len({_words(run[key].hypothesis) for run in decoded.values()}) > 1
    ]
    sizes = [len(side.runs) for side in comparison.sides]
    differing.sort(
        key=lambda key: -_spread([r[key] for r in decoded.values()], sizes)
    )
    chosen = [
        _align({label: run[key] for label, run in decoded.items()})
        for key in differing[:limit]
    ]
    return chosen, len(differing)


def _words(tokens: Sequence[str]) -> tuple[str, ...]:
    # An empty text is one empty token in a WER file.
    return tuple(filter(None, tokens))


def _spread(utterances: Sequence[Utterance], sizes: Sequence[int]) -> float:
    """Largest minus smallest mean number of errors of a side."""
    errors = iter(utterance.edits.total for utterance in utterances)
    means = [
        statistics.fmean(next(errors) for _ in range(size)) for size in sizes
    ]
    return max(means) - min(means)


def _align(utterances: Mapping[str, Utterance]) -> AlignedUtterance:
    first = next(iter(utterances.values()))
    reference = _words(first.reference)
    runs: dict[tuple[str, ...], list[str]] = {}
    for label, utterance in utterances.items():
        runs.setdefault(_words(utterance.hypothesis), []).append(label)
    gaps = [_fill_gaps(reference, hypothesis) for hypothesis in runs]
    # A gap is as wide as the longest insertion of any run.
    widths = [
        max(len(g[i].inserted) for g in gaps) for i in range(len(gaps[0]))
    ]
    return AlignedUtterance(
        key=first.key,
        words=len(reference),
        reference=tuple(_reference_row(reference, widths)),
        hypotheses=tuple(
            Hypothesis(
                runs=tuple(labels),
                errors=utterances[labels[0]].edits.total,
                cells=tuple(_row(filled, widths)),
            )
            for labels, filled in zip(runs.values(), gaps, strict=True)
        ),
    )


@dataclass(frozen=True)
class _Gap:
    """Words inserted before a reference word, and what became of that word."""

    inserted: tuple[Cell, ...]
    word: Cell | None


def _fill_gaps(reference, hypothesis):
    # SpeechBrain brings in torch: seconds, which no reader of runs needs.
    from speechbrain.utils.edit_distance import alignment, op_table

    # As SpeechBrain aligned them when it wrote the WER file.
    edits = alignment(op_table(reference, hypothesis, operator.eq))
    gaps, inserted = [], []
    for edit, place, spoken in edits:
        if edit == INSERTED:
            inserted.append(Cell(INSERTED, hypothesis[spoken]))
            continue
        word = reference[place] if spoken is None else hypothesis[spoken]
        gaps.append(_Gap(tuple(inserted), Cell(edit, word)))
        inserted = []
    return [*gaps, _Gap(tuple(inserted), None)]


def _reference_row(reference, widths):
    for word, width in zip([*reference, None], widths, strict=True):
        yield from [""] * width
        if word is not None:
            yield word


def _row(gaps, widths):
    for gap, width in zip(gaps, widths, strict=True):
        yield from gap.inserted
        yield from [Cell(ABSENT, "")] * (width - len(gap.inserted))
        if gap.word is not None:
            yield gap.word
