"""Each number is checked against a closed form or a full enumeration."""

import itertools

import numpy as np
import pytest
from scipy.stats import binom, norm

from speechbrain_triton.runs.statistics import (
    permutation_p_value,
    wer_interval,
)


@pytest.mark.parametrize("wrong", [3, 30, 50])
def test_interval_of_one_word_utterances_is_binomial(wrong):
    # The errors of a resample of 100 one-word utterances are binomial.
    errors = np.arange(100) < wrong
    interval = wer_interval(errors, np.ones(100))
    assert interval == tuple(binom.ppf([0.025, 0.975], 100, wrong / 100))


def test_interval_of_a_ratio_by_enumeration():
    errors, words = np.array([0, 1, 3, 2, 0]), np.array([7, 2, 4, 11, 5])
    draws = np.array(list(itertools.product(range(5), repeat=5)))
    rates = 100 * errors[draws].sum(1) / words[draws].sum(1)
    expected = np.quantile(rates, [0.025, 0.975])
    # 3125 resamples against 9999 draws of them.
    assert wer_interval(errors, words) == pytest.approx(expected, abs=1.0)
    # The mean of rates has another interval: the ratio is what is taken.
    means = np.quantile(100 * (errors / words)[draws].mean(1), [0.025, 0.975])
    assert abs(means[1] - expected[1]) > 3


def test_interval_is_reproducible_and_tightens_with_data():
    errors, words = np.array([0, 1, 3, 2, 0] * 8), np.array([7, 2, 4, 9, 5] * 8)
    low, high = wer_interval(errors, words)
    assert (low, high) == wer_interval(errors, words)
    assert low < 100 * 6 / 27 < high
    low_of_more, high_of_more = wer_interval(
        np.tile(errors, 16), np.tile(words, 16)
    )
    # A quarter of the width for sixteen times the data.
    ratio = (high_of_more - low_of_more) / (high - low)
    assert ratio == pytest.approx(0.25, abs=0.03)


def test_interval_of_degenerate_counts():
    assert wer_interval(np.array([1]), np.array([4])) is None
    assert wer_interval(np.zeros(9), np.ones(9)) == (0, 0)
    low, high = wer_interval(np.array([0, 1]), np.array([0, 1]))
    assert (low, high) == (0, 100)


@pytest.mark.parametrize(
    "first, second, expected",
    [
        # All four worse: of 16 swaps, one is as large and one as small.
        ([0, 0, 0, 0], [1, 1, 1, 1], 2 / 16),
        # Differences 3, 1, 1, -1 sum to 4. Sums of +-3 +-1 +-1 +-1 that are
        # at least 4: 6 once, 4 three times.
        ([0, 0, 0, 1], [3, 1, 1, 0], 2 * 4 / 16),
        # The same, among utterances on which both agree.
        ([0, 5, 0, 0, 1, 2], [3, 5, 1, 1, 0, 2], 2 * 4 / 16),
        # 2 - 2: the middle of the distribution.
        ([0, 2, 1, 0], [2, 0, 1, 0], 1.0),
        ([1, 2, 3], [1, 2, 3], 1.0),
        ([1, 2, 3], [1, 2, 0], 1.0),
    ],
)
def test_p_value_counted_by_hand(first, second, expected):
    first, second = np.array(first), np.array(second)
    assert permutation_p_value(first, second) == pytest.approx(expected)
    assert permutation_p_value(second, first) == pytest.approx(expected)


def test_p_value_by_enumeration_of_all_swaps():
    rng = np.random.default_rng(7)
    first, second = rng.integers(0, 5, 12), rng.integers(0, 4, 12)
    swaps = np.array(list(itertools.product([1, -1], repeat=12)))
    null = swaps @ (second - first)
    observed = (second - first).sum()
    tail = min((null >= observed).mean(), (null <= observed).mean())
    assert permutation_p_value(first, second) == pytest.approx(min(1, 2 * tail))


def test_p_value_of_many_utterances_is_near_the_normal_one():
    rng = np.random.default_rng(1)
    first = rng.integers(1, 4, 2000)
    second = first + rng.choice([-1, 0, 1], p=[0.1, 0.77, 0.13], size=2000)
    difference = second - first
    # Under the null, the sum has this variance and moves in steps of two.
    deviation = np.sqrt((difference**2).sum())
    expected = 2 * norm.sf((abs(difference.sum()) - 1) / deviation)
    assert 0.01 < expected < 0.2
    p_value = permutation_p_value(first, second)
    assert p_value == pytest.approx(expected, abs=0.01)
    assert p_value == permutation_p_value(first, second)
