"""Intervals and tests of word error rates over utterances."""

import numpy as np
from scipy import stats

_SEED = 0
_RESAMPLES = 9999
# Resampled values held in memory at once.
_BATCH_VALUES = 2**22


def wer_interval(
    errors: np.ndarray, words: np.ndarray
) -> tuple[float, float] | None:
    """95% percentile bootstrap interval of a corpus word error rate.

    Utterances are drawn with replacement and the rate is the ratio of summed
    errors to summed words, as in Bisani and Ney, "Bootstrap estimates for
    confidence intervals in ASR performance evaluation", ICASSP 2004. The
    seed is fixed: the same counts give the same interval.

    Arguments
    ---------
    errors : array of shape (utterances,)
        Word errors of each utterance; differences may be negative.
    words : array of shape (utterances,)
        Reference words of each utterance.

    Returns
    -------
    tuple of float, or None
        Lower and upper end in percent; None for fewer than two utterances.

    Example
    -------
    >>> wer_interval(np.array([0, 0, 0]), np.array([4, 5, 6]))
    (0.0, 0.0)
    """
    if len(errors) < 2:
        return None
    interval = stats.bootstrap(
        (np.asarray(errors, float), np.asarray(words, float)),
        _rate,
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=_RESAMPLES,
        batch=_batch(len(errors)),
        random_state=np.random.default_rng(_SEED),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def permutation_p_value(first: np.ndarray, second: np.ndarray) -> float:
    """Two-sided p-value of a paired permutation test on word errors.

    Null hypothesis: for each utterance it is a toss of a coin which of the two
    systems made which number of errors. So the two numbers are swapped, one
    utterance at a time, and the statistic is the difference of the sums; as
    both systems have the same references, that is a test of the difference
    in WER. All swaps are enumerated where they are at most 9999, else as many
    are drawn with a fixed seed.

    Arguments
    ---------
    first : array of int of shape (utterances,)
        Word errors of one system.
    second : array of int of shape (utterances,)
        Word errors of the other, in the same order.

    Returns
    -------
    float
        Between 0 and 1.

    Example
    -------
    >>> permutation_p_value(np.array([1, 1, 1, 1]), np.array([0, 0, 0, 0]))
    0.125
    """
    # A swap of two equal numbers changes nothing. Without them, few
    # disagreements among many utterances are still tested exactly; a single one
    # is as likely either way.
    disagree = first != second
    if disagree.sum() < 2:
        return 1.0
    result = stats.permutation_test(
        (first[disagree], second[disagree]),
        _difference,
        permutation_type="samples",
        vectorized=True,
        n_resamples=_RESAMPLES,
        batch=_batch(int(disagree.sum())),
        random_state=np.random.default_rng(_SEED),
    )
    return float(result.pvalue)


def _rate(errors, words, axis):
    # A resample may draw nothing but utterances without a reference word.
    return 100 * errors.sum(axis) / np.maximum(words.sum(axis), 1)


def _difference(first, second, axis):
    return second.sum(axis) - first.sum(axis)


def _batch(utterances):
    return max(1, _BATCH_VALUES // utterances)
