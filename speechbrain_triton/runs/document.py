"""A comparison as one JSON document."""

import json
import math
import os

from speechbrain_triton import __version__
from speechbrain_triton.runs.comparison import Comparison
from speechbrain_triton.runs.report import conclusions


def comparison_to_json(comparison: Comparison) -> str:
    """Writes a comparison as JSON. Rates are in percent, absent values null.

    Arguments
    ---------
    comparison : Comparison
        From :func:`speechbrain_triton.runs.compare_runs`.

    Returns
    -------
    str
        An object with these keys:

        * ``speechbrain_triton``: version of this package.
        * ``runs``: one object a run with ``path``, ``side`` (its label),
          ``seed``, ``training`` (``epochs``, ``epoch_loaded``,
          ``seconds_per_epoch``, ``peak_mib``, ``train_loss``,
          ``valid_loss``) and ``versions``.
        * ``settings``: ``different`` (name to one value a run, in the order
          of ``runs``) and ``shared`` (name to value).
        * ``test_sets``: one object a test set with ``name``, ``utterances``,
          ``words``, ``runs``, ``sides`` and ``differences``.
          A run's object has ``path``, ``side``, ``wer`` and ``cer``, each of
          which holds ``rate``, ``insertions``, ``deletions``,
          ``substitutions`` and ``reference_length``; ``wer`` also its 95%
          ``interval``.
          A side's object has ``label``, ``runs`` (their number),
          ``wer_mean``, ``wer_min``, ``wer_max``, ``wer_std``,
          ``wer_interval`` and ``cer_mean``.
          A difference's object has ``first`` and ``second`` (labels),
          ``wer_points`` (second minus first), ``wer_interval``, ``p_value``,
          ``significant`` (p below 0.05), ``cer_points`` and
          ``utterances_with_different_words``.
        * ``skipped_test_sets``: names of test sets that some runs lack.
        * ``conclusions``: the closing sentences.

    Example
    -------
    >>> from speechbrain_triton.runs import Comparison
    >>> text = comparison_to_json(Comparison((), (), (), {}, {}))
    >>> sorted(json.loads(text))[:3]
    ['conclusions', 'runs', 'settings']
    """
    document = {
        "speechbrain_triton": __version__,
        "runs": [
            _run(run, side.label)
            for side in comparison.sides
            for run in side.runs
        ],
        "settings": {
            "different": comparison.differing,
            "shared": comparison.shared,
        },
        "test_sets": [_test_set(s) for s in comparison.test_sets],
        "skipped_test_sets": comparison.skipped,
        "conclusions": conclusions(comparison),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _run(run, side):
    training = {
        name: _finite(value) for name, value in vars(run.training).items()
    }
    return {
        "path": os.fspath(run.path),
        "side": side,
        "seed": run.settings.get("seed"),
        "training": training,
        "versions": run.versions,
    }


def _test_set(test_set):
    return {
        "name": test_set.name,
        "utterances": test_set.utterances,
        "words": test_set.words,
        "runs": [
            _score(score, side.label)
            for side in test_set.sides
            for score in side.scores
        ],
        "sides": [_side(side) for side in test_set.sides],
        "differences": [_difference(d) for d in test_set.differences],
    }


def _score(score, side):
    return {
        "path": os.fspath(score.run.path),
        "side": side,
        "wer": _edits(score.words) | {"interval": score.interval},
        "cer": _edits(score.characters),
    }


def _edits(edits):
    return {
        "rate": edits.rate,
        "insertions": edits.insertions,
        "deletions": edits.deletions,
        "substitutions": edits.substitutions,
        "reference_length": edits.length,
    }


def _side(side):
    rates = [score.words.rate for score in side.scores]
    return {
        "label": side.label,
        "runs": len(side.scores),
        "wer_mean": side.wer,
        "wer_min": min(rates),
        "wer_max": max(rates),
        "wer_std": side.deviation,
        "wer_interval": side.interval,
        "cer_mean": side.cer,
    }


def _difference(difference):
    return {
        "first": difference.first.label,
        "second": difference.second.label,
        "wer_points": difference.points,
        "wer_interval": difference.interval,
        "p_value": difference.p_value,
        "significant": difference.significant,
        "cer_points": difference.cer_points,
        "utterances_with_different_words": difference.disagreements,
    }


def _finite(value):
    """JSON knows no nan, which is what the loss of a diverged run is."""
    return value if value is None or math.isfinite(value) else None
