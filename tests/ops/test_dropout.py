"""Dropout's mask: a function of the seed and the place, and random in both."""

import itertools

import pytest
import torch
from scipy import stats

from speechbrain_triton.ops.dropout import (
    check_dropout,
    draw_seed,
    keep_mask,
    keep_scale,
    seed_tensor,
    seed_words,
    seeded_dropout,
    threshold,
)

M, F = 1024, 512
# Of all tests here together, one in some ten thousand would fail by chance:
# but the seeds are fixed, and so is the outcome.
LEAST_P = 1e-5
SEEDS = (0, 1, 2**32, 2**63 - 1)


def independent(a, b):
    """The p-value of a chi-square test for two equally large masks."""
    a, b = a.flatten(), b.flatten()
    table = [[int((x & y).sum()) for y in (b, ~b)] for x in (a, ~a)]
    return stats.chi2_contingency(table, correction=False).pvalue


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dropout", [0.003, 0.1, 0.5, 0.9])
def test_as_many_are_kept_as_should_be(dropout, seed):
    kept = keep_mask(M, F, dropout, seed)
    rate = round(dropout * 2**16) / 2**16
    for dim, trials in ((0, M), (1, F)):
        # Sums of rows and of columns spread as binomial ones do.
        counts = kept.sum(dim).double()
        spread = trials * rate * (1 - rate)
        chi2 = float((counts - trials * (1 - rate)).square().sum() / spread)
        p = stats.chi2.cdf(chi2, len(counts))
        assert LEAST_P < p < 1 - LEAST_P
    assert stats.binomtest(int(kept.sum()), M * F, 1 - rate).pvalue > LEAST_P


NEIGHBOURS = {
    "the two of a pair": lambda m: (m[:, ::2], m[:, 1::2]),
    "one pair and the next": lambda m: (m[:, 1:-1:2], m[:, 2::2]),
    "a column and the next but one": lambda m: (m[:, :-2], m[:, 2:]),
    "half a row apart": lambda m: (m[:, : F // 2], m[:, F // 2 :]),
    "one row and the next": lambda m: (m[:-1], m[1:]),
    "16 rows apart": lambda m: (m[:-16], m[16:]),
    "half of all rows apart": lambda m: (m[: M // 2], m[M // 2 :]),
    "on a diagonal": lambda m: (m[:-1, :-1], m[1:, 1:]),
    "mirrored": lambda m: (m, m.flip(0, 1)),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dropout", [0.1, 0.5])
@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_neighbours_are_independent(neighbours, dropout, seed):
    a, b = NEIGHBOURS[neighbours](keep_mask(M, F, dropout, seed))
    assert independent(a, b) > LEAST_P


@pytest.mark.parametrize("dropout", [0.1, 0.5])
@pytest.mark.parametrize(
    "seeds", [(0, 1), (1, 2), (0, 2**32), (5, 2**63 + 5), (7, 7 + 2**40)]
)
def test_masks_of_two_seeds_are_independent(seeds, dropout):
    first, second = (keep_mask(M, F, dropout, seed) for seed in seeds)
    assert independent(first, second) > LEAST_P


@pytest.mark.parametrize(
    "seeds", [range(16), range(0, 16 * 2**32, 2**32)], ids=["low", "high"]
)
def test_no_row_of_one_seed_is_a_row_of_another(seeds):
    """Not in another place either: seeds may be counted up."""
    rows = torch.cat([keep_mask(256, 128, 0.5, seed) for seed in seeds])
    assert len(rows.unique(dim=0)) == len(rows)


def test_words_are_even_over_all_their_bits():
    """By the mask at each sixteenth of the scale."""
    edges = [i / 16 for i in range(17)]
    kept = torch.stack([keep_mask(M, F, edge, 3) for edge in edges])
    counts = kept.sum((1, 2))
    assert counts[0] == M * F and counts[-1] == 0
    assert stats.chisquare(counts[:-1] - counts[1:]).pvalue > LEAST_P
    # What a higher probability keeps, a lower one keeps too.
    for wide, narrow in itertools.pairwise(kept):
        assert not (narrow & ~wide).any()


def test_mask_does_not_depend_on_the_size_around_it():
    whole = keep_mask(40, 30, 0.3, 9)
    assert torch.equal(whole[:7, :5], keep_mask(7, 5, 0.3, 9))
    assert keep_mask(0, 5, 0.3, 9).shape == (0, 5)


@pytest.mark.parametrize("dropout", [1e-9, 0.1, 0.5, 0.999, 1 - 1e-5])
def test_scale_is_of_the_probability_as_it_is_rounded(dropout):
    kept = 1 - round(dropout * 2**16) / 2**16
    assert kept == 0 or keep_scale(dropout) == pytest.approx(1 / kept, 1e-15)


def test_edges():
    assert keep_mask(50, 50, 0.0, 1).all() and keep_scale(0.0) == 1.0
    assert not keep_mask(50, 50, 1.0, 1).any() and keep_scale(1.0) == 0.0
    for value in (threshold(1.0), threshold(0.5), *seed_words(2**64 - 1)):
        assert -(2**31) <= value < 2**31, "no signed 32 bits"


def test_drawn_seeds_follow_pytorchs_generator():
    torch.manual_seed(1)
    first = [draw_seed() for _ in range(100)]
    torch.manual_seed(1)
    assert [draw_seed() for _ in range(100)] == first
    assert len(set(first)) == 100 and all(0 <= s < 2**63 for s in first)
    assert max(first) > 2**62


@pytest.mark.parametrize("seed", [0, 5, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_seed_in_a_tensor_is_the_same_seed(seed):
    held = seed_tensor(seed, 0.1)
    assert held.dtype is torch.int64 and held.shape == ()
    assert seed_words(int(held)) == seed_words(seed)


def test_seeded_dropout_scales_what_it_keeps():
    x = torch.randn(2, 3, 7, dtype=torch.float64)
    y = seeded_dropout(x, 0.25, 4)
    kept = keep_mask(6, 7, 0.25, 4).view(2, 3, 7)
    torch.testing.assert_close(y, torch.where(kept, x / 0.75, 0.0))
    assert seeded_dropout(x, 0.0, 4) is x
    assert seeded_dropout(x[:0], 0.5, 4).shape == (0, 3, 7)


def test_without_a_seed_it_is_pytorchs_own():
    x = torch.randn(50, 7)
    torch.manual_seed(3)
    y = seeded_dropout(x, 0.25, None)
    torch.manual_seed(3)
    assert torch.equal(y, torch.nn.functional.dropout(x, 0.25))


@pytest.mark.parametrize(
    "wrong", [-0.1, 1.1, float("nan"), True, "0.1", None, torch.tensor(0.1)]
)
def test_what_is_no_probability_is_refused(wrong):
    message = r"dropout must be a probability in \[0, 1\], got "
    with pytest.raises(ValueError, match=message):
        check_dropout(wrong)


@pytest.mark.parametrize("right", [0, 1, 0.5])
def test_a_probability_becomes_a_float(right):
    assert isinstance(check_dropout(right), float)
