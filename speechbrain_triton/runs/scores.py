"""Scoring sides of runs on one test set."""

import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speechbrain_triton.runs.reader import Run
from speechbrain_triton.runs.sides import Side
from speechbrain_triton.runs.statistics import (
    permutation_p_value,
    wer_interval,
)
from speechbrain_triton.runs.wer import Edits, Utterance, sum_edits

SIGNIFICANCE = 0.05

Interval = tuple[float, float] | None
TextPair = tuple[str, str]
Track = Callable[[Sequence[TextPair]], Iterable[TextPair]]


@dataclass(frozen=True)
class Score:
    """One run on one test set.

    Arguments
    ---------
    run : Run
    label : str
        The shortest end of its path that no other run has.
    words : Edits
        Word edits, as SpeechBrain counted them.
    characters : Edits
        Character edits, of words joined by spaces.
    interval : tuple of float, or None
        95% bootstrap interval of the WER in percent.
    """

    run: Run
    label: str
    words: Edits
    characters: Edits
    interval: Interval


@dataclass(frozen=True)
class SideScore:
    """One side on one test set, rates in percent.

    Arguments
    ---------
    label : str
    scores : tuple of Score
        One for each of its runs.
    wer : float
        Mean over its runs.
    cer : float
        Mean over its runs.
    deviation : float or None
        Standard deviation of the runs' WER; None for one run.
    interval : tuple of float, or None
        95% bootstrap interval of the mean WER over utterances.
    """

    label: str
    scores: tuple[Score, ...]
    wer: float
    cer: float
    deviation: float | None
    interval: Interval

    @property
    def spread(self) -> float:
        """Largest minus smallest WER of its runs, in points."""
        rates = [score.words.rate for score in self.scores]
        return max(rates) - min(rates)


@dataclass(frozen=True)
class Difference:
    """A side against the first one on one test set.

    Arguments
    ---------
    first : SideScore
    second : SideScore
    interval : tuple of float, or None
        95% bootstrap interval of ``points`` over utterances.
    p_value : float
        Of the paired permutation test on errors summed over a side's runs.
    utterances : int
        Number of utterances in the test set.
    disagreements : int
        Utterances of which the two sides' runs recognised different words.
    """

    first: SideScore
    second: SideScore
    interval: Interval
    p_value: float
    utterances: int
    disagreements: int

    @property
    def points(self) -> float:
        """WER of the second side minus that of the first."""
        return self.second.wer - self.first.wer

    @property
    def cer_points(self) -> float:
        """CER of the second side minus that of the first."""
        return self.second.cer - self.first.cer

    @property
    def significant(self) -> bool:
        """Whether the p-value is below 0.05."""
        return self.p_value < SIGNIFICANCE


@dataclass(frozen=True)
class SetComparison:
    """All sides on one test set.

    Arguments
    ---------
    name : str
    utterances : int
    words : int
        Reference words.
    sides : tuple of SideScore
    differences : tuple of Difference
        Every further side against the first.
    """

    name: str
    utterances: int
    words: int
    sides: tuple[SideScore, ...]
    differences: tuple[Difference, ...]


def align_characters(
    runs: Sequence[Run], names: Sequence[str], track: Track = iter
) -> dict[TextPair, Edits]:
    """Character edits of all utterances of some test sets.

    Arguments
    ---------
    runs : sequence of Run
        Runs that have these test sets.
    names : sequence of str
        The test sets.
    track : callable
        Wraps the pairs of unequal texts, the long part of the work.

    Returns
    -------
    dict
        (reference, hypothesis), words joined by spaces, to edits.
    """
    pairs = dict.fromkeys(
        _text_pair(utterance)
        for run in runs
        for name in names
        for utterance in run.evaluations[name].utterances
    )
    unequal = [pair for pair in pairs if pair[0] != pair[1]]
    edits = {pair: Edits(0, 0, 0, len(pair[0])) for pair in pairs}
    edits.update((pair, _character_edits(*pair)) for pair in track(unequal))
    return edits


def _text_pair(utterance: Utterance) -> TextPair:
    return " ".join(utterance.reference), " ".join(utterance.hypothesis)


def _character_edits(reference, hypothesis):
    # SpeechBrain brings in torch: seconds, which no reader of runs needs.
    from speechbrain.utils.edit_distance import count_ops, op_table

    counts = count_ops(op_table(reference, hypothesis, operator.eq))
    return Edits(
        insertions=counts["insertions"],
        deletions=counts["deletions"],
        substitutions=counts["substitutions"],
        length=len(reference),
    )


def compare_set(
    name: str,
    sides: Sequence[Side],
    labels: Mapping[Path, str],
    characters: Mapping[TextPair, Edits],
) -> SetComparison:
    """Scores all sides on a test set, and the further ones against the first.

    Arguments
    ---------
    name : str
        A test set that all runs have, with the same utterances.
    sides : sequence of Side
        At least one side.
    labels : mapping of Path to str
        A run's path to its label.
    characters : mapping
        From :func:`align_characters`.

    Returns
    -------
    SetComparison
        Scores and differences.
    """
    utterances = sides[0].runs[0].evaluations[name].utterances
    keys = [utterance.key for utterance in utterances]
    words = np.array([utterance.edits.length for utterance in utterances])
    decoded = [[_by_key(run, name, keys) for run in s.runs] for s in sides]
    errors = [
        np.array([[u.edits.total for u in run] for run in runs])
        for runs in decoded
    ]
    scores = [
        _score_side(side, labels, runs, counts, words, characters)
        for side, runs, counts in zip(sides, decoded, errors, strict=True)
    ]
    return SetComparison(
        name=name,
        utterances=len(keys),
        words=int(words.sum()),
        sides=tuple(scores),
        differences=tuple(
            Difference(
                first=scores[0],
                second=scores[i],
                interval=wer_interval(
                    errors[i].mean(0) - errors[0].mean(0), words
                ),
                p_value=_p_value(errors[0], errors[i]),
                utterances=len(keys),
                disagreements=_disagreements(decoded[0], decoded[i]),
            )
            for i in range(1, len(sides))
        ),
    )


def _by_key(run, name, keys):
    decoded = {u.key: u for u in run.evaluations[name].utterances}
    return [decoded[key] for key in keys]


def _score_side(side, labels, decoded, errors, words, characters):
    scores = tuple(
        Score(
            run=run,
            label=labels[run.path],
            words=sum_edits(u.edits for u in utterances),
            characters=sum_edits(characters[_text_pair(u)] for u in utterances),
            interval=wer_interval(counts, words),
        )
        for run, utterances, counts in zip(
            side.runs, decoded, errors, strict=True
        )
    )
    rates = [score.words.rate for score in scores]
    return SideScore(
        label=side.label,
        scores=scores,
        wer=statistics.fmean(rates),
        cer=statistics.fmean(score.characters.rate for score in scores),
        deviation=statistics.stdev(rates) if len(rates) > 1 else None,
        interval=wer_interval(errors.mean(0), words),
    )


def _p_value(first, second):
    # Means over runs, made whole numbers by the number of runs of the other
    # side, so that sums are exact and equal ones are equal.
    return permutation_p_value(
        first.sum(0) * len(second), second.sum(0) * len(first)
    )


def _disagreements(first, second):
    count = 0
    for utterances in zip(*first, *second, strict=True):
        # As often as the other side has runs: two runs and three can agree.
        ours = _hypotheses(utterances[: len(first)]) * len(second)
        theirs = _hypotheses(utterances[len(first) :]) * len(first)
        count += sorted(ours) != sorted(theirs)
    return count


def _hypotheses(utterances):
    return [[word for word in u.hypothesis if word] for u in utterances]
