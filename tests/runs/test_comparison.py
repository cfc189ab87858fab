import itertools
import json

import numpy as np
import pytest
from rich.console import Console
from run_folders import HAND_COUNTED, write_wer
from speechbrain.utils.metric_stats import ErrorRateStats

from speechbrain_triton.runs import Edits, RunError, compare_runs, read_run
from speechbrain_triton.runs.document import comparison_to_json
from speechbrain_triton.runs.report import conclusions, print_comparison

PERFECT = {key: (text, text) for key, (text, _) in HAND_COUNTED.items()}


def decoded(*errors, words=5):
    """Utterances with these numbers of substitutions."""
    return {
        f"u{number}": (
            "a " * (words - 1) + "a",
            " ".join(["b"] * wrong + ["a"] * (words - wrong)),
        )
        for number, wrong in enumerate(errors)
    }


def compare(*folders, **options):
    return compare_runs([read_run(folder) for folder in folders], **options)


def printed(comparison, width=80):
    console = Console(width=width, color_system=None, markup=False)
    with console.capture() as capture:
        print_comparison(comparison, console)
    return capture.get()


def test_scores_counted_by_hand(make_run):
    comparison = compare(make_run("a"), make_run("b", PERFECT))
    (test_set,) = comparison.test_sets
    assert (test_set.utterances, test_set.words) == (4, 13)
    first, second = (side.scores[0] for side in test_set.sides)
    assert first.words == Edits(1, 1, 1, length=13)
    assert first.characters == Edits(4, 5, 0, length=54)
    assert second.words == Edits(0, 0, 0, length=13)
    (difference,) = test_set.differences
    assert difference.points == pytest.approx(-100 * 3 / 13)
    assert difference.cer_points == pytest.approx(-100 * 9 / 54)
    assert difference.disagreements == 3
    # Three utterances are better, none worse: two of eight swaps.
    assert difference.p_value == 0.25
    # Resamples of the paired difference, all 4^4 of them.
    draws = np.array(list(itertools.product(range(4), repeat=4)))
    gain, words = np.array([-1, -1, -1, 0]), np.array([6, 3, 2, 2])
    points = 100 * gain[draws].sum(1) / words[draws].sum(1)
    assert difference.interval == pytest.approx(
        np.quantile(points, [0.025, 0.975]), abs=0.5
    )


def test_character_errors_are_those_of_speechbrain(make_run):
    stats = ErrorRateStats(split_tokens=True, space_token=" ")
    for key, (reference, hypothesis) in HAND_COUNTED.items():
        stats.append([key], [hypothesis.split(" ")], [reference.split(" ")])
    comparison = compare(make_run("a"), make_run("b", PERFECT))
    edits = comparison.test_sets[0].sides[0].scores[0].characters
    summary = stats.summarize()
    assert edits.rate == pytest.approx(summary["WER"])
    assert edits.insertions == summary["insertions"]
    assert edits.deletions == summary["deletions"]
    assert edits.substitutions == summary["substitutions"]


def test_order_of_utterances_does_not_matter(make_run):
    first = make_run("a", decoded(0, 1, 2, 3))
    backwards = dict(reversed(decoded(0, 1, 2, 3).items()))
    comparison = compare(first, make_run("b", backwards))
    (difference,) = comparison.test_sets[0].differences
    assert difference.disagreements == 0 and difference.p_value == 1


def test_two_runs_are_two_sides_even_if_they_are_alike(make_run):
    comparison = compare(make_run("x/a"), make_run("x/b"))
    assert [side.label for side in comparison.sides] == ["a", "b"]
    assert conclusions(comparison) == [
        "test: all 4 utterances have the same words with a and b: WER 23.08 %."
    ]


def test_seeds_make_a_side(make_run):
    errors = {"torch": [(0, 1, 2), (0, 2, 2)], "triton": [(1, 1, 1), (0, 1, 3)]}
    folders = [
        make_run(
            f"{name}/{seed}", decoded(*counts), seed=seed, conv_backend=name
        )
        for name, runs in errors.items()
        for seed, counts in enumerate(runs)
    ]
    comparison = compare(*folders)
    assert [(s.label, len(s.runs)) for s in comparison.sides] == [
        ("torch", 2),
        ("triton", 2),
    ]
    assert comparison.differing == {
        "conv_backend": ("torch", "torch", "triton", "triton")
    }
    off, on = comparison.test_sets[0].sides
    # 3 and 4, 3 and 4 errors in 15 words.
    assert off.wer == on.wer == pytest.approx(100 * 3.5 / 15)
    assert off.deviation == pytest.approx(100 * np.std([3, 4], ddof=1) / 15)
    assert off.spread == pytest.approx(100 / 15)
    (difference,) = comparison.test_sets[0].differences
    assert difference.points == 0
    # Sums over seeds: 0, 3, 4 against 1, 2, 4.
    assert difference.p_value == 1
    assert difference.disagreements == 3
    assert "mean" in printed(comparison)


def test_sides_of_unequal_numbers_of_runs(make_run):
    folders = [
        make_run("a1", decoded(1, 1, 1, 1, 1, 1), seed=1, lr=1),
        make_run("a2", decoded(1, 1, 1, 1, 1, 1), seed=2, lr=1),
        make_run("b", decoded(2, 2, 2, 2, 2, 2), seed=1, lr=2),
    ]
    comparison = compare(*folders)
    (difference,) = comparison.test_sets[0].differences
    assert [side.label for side in comparison.sides] == ["lr=1", "lr=2"]
    assert difference.points == pytest.approx(20)
    assert difference.interval == pytest.approx((20, 20))
    assert difference.p_value == pytest.approx(2 / 64)
    same = [*folders[:2], make_run("c", decoded(1, 1, 1, 1, 1, 1), lr=2)]
    (difference,) = compare(*same).test_sets[0].differences
    assert difference.disagreements == 0 and difference.p_value == 1


def test_further_sides_are_compared_with_the_first(make_run):
    folders = [
        make_run(f"r{lr}", decoded(lr, lr, lr), lr=lr, seed=lr)
        for lr in (1, 2, 4)
    ]
    comparison = compare(*folders)
    differences = comparison.test_sets[0].differences
    assert [(d.first.label, d.second.label) for d in differences] == [
        ("lr=1", "lr=2"),
        ("lr=1", "lr=4"),
    ]
    assert [round(d.points) for d in differences] == [20, 60]
    assert len(conclusions(comparison)) == 2


def test_grouping_by_a_setting(make_run):
    folders = [
        make_run(f"r{n}", decoded(n % 3, 1), conv_backend=conv, lr=lr)
        for n, (conv, lr) in enumerate(
            itertools.product(("torch", "triton"), (1, 2))
        )
    ]
    assert len(compare(*folders).sides) == 4
    comparison = compare(*folders, group_by=["conv_backend"])
    assert [side.label for side in comparison.sides] == ["torch", "triton"]
    assert comparison.differing["lr"] == (1, 2, 1, 2)
    assert "1 | 2" in printed(comparison)
    with pytest.raises(RunError, match="'conv_bakend'.*mean 'conv_backend'"):
        compare(*folders, group_by=["conv_bakend"])


def test_one_side_only_is_described(make_run):
    folders = [make_run(f"r{n}", decoded(n, 1), seed=n) for n in (1, 2, 3)]
    comparison = compare(*folders)
    assert len(comparison.sides) == 1
    (sentence,) = conclusions(comparison)
    assert "all 3 runs have the same settings" in sentence
    assert "20.00 to 40.00, sd 10.00" in sentence


@pytest.mark.parametrize(
    "errors, verdict",
    [
        ((1, 1, 1, 1, 1, 1, 1, 1), "b is significantly better. A side of one"),
        ((2, 2, 2, 2, 2, 2, 2, 2), "no significant difference."),
        ((3, 3, 3, 3, 3, 3, 3, 4), "a is significantly better. A side of one"),
    ],
)
def test_verdict_of_two_runs(make_run, errors, verdict):
    first = make_run("a", decoded(2, 2, 2, 2, 2, 2, 2, 2))
    other = {
        key: (reference, hypothesis.replace("b", "c"))
        for key, (reference, hypothesis) in decoded(*errors).items()
    }
    (sentence,) = conclusions(compare(first, make_run("b", other)))
    assert sentence.startswith("test: WER a 40.00 %, b ")
    assert verdict in sentence


def test_sentence_word_for_word(make_run):
    a = make_run("a", decoded(2, 1, 0, 1, 1, 1))
    b = make_run("b", decoded(1, 1, 0, 1, 1, 1))
    (sentence,) = conclusions(compare(a, b))
    assert sentence == (
        "test: WER a 20.00 %, b 16.67 %, difference -3.33 points (95% interval "
        "-10.00 to +0.00, p = 1): no significant difference."
    )


def test_spread_of_seeds_is_held_against_the_difference(make_run):
    runs = {
        ("torch", 1): (0, 0, 0, 0, 0, 0, 0, 0),
        ("torch", 2): (2, 2, 2, 2, 2, 2, 2, 2),
        ("triton", 1): (1, 1, 1, 1, 1, 1, 1, 1),
        ("triton", 2): (3, 3, 3, 3, 3, 3, 3, 3),
    }
    folders = [
        make_run(
            f"{conv}{seed}", decoded(*errors), conv_backend=conv, seed=seed
        )
        for (conv, seed), errors in runs.items()
    ]
    (sentence,) = conclusions(compare(*folders))
    assert "torch is significantly better. But the runs" in sentence
    assert "spread over 40.00 points" in sentence


def test_test_sets_that_only_some_runs_have(make_run):
    first, second = make_run("a"), make_run("b", PERFECT)
    write_wer(first / "wer_other.txt", HAND_COUNTED)
    comparison = compare(first, second)
    assert [s.name for s in comparison.test_sets] == ["test"]
    assert comparison.skipped == ("other",)
    assert "some runs lack them: other" in printed(comparison)
    with pytest.raises(RunError, match="b' has no test set 'other'.*'test'"):
        compare(first, second, test_sets=["other"])


def test_choosing_a_test_set(make_run):
    folders = [make_run("a"), make_run("b", PERFECT)]
    for folder in folders:
        write_wer(folder / "wer_other.txt", HAND_COUNTED)
    assert len(compare(*folders).test_sets) == 2
    (chosen,) = compare(*folders, test_sets=["other"]).test_sets
    assert chosen.name == "other" and chosen.differences[0].disagreements == 0


def test_runs_that_cannot_be_compared(make_run, tmp_path):
    first = make_run("a", decoded(0, 1, 2))
    with pytest.raises(RunError, match="at least two runs, but got 1"):
        compare(first)
    (tmp_path / "link").symlink_to(first)
    with pytest.raises(RunError, match="a' is given 2 times"):
        compare(first, tmp_path / "link")
    with pytest.raises(RunError, match="no test set in common.*'test'.*'dev'"):
        compare(first, make_run("b", decoded(0), test_set="dev"))
    with pytest.raises(
        RunError, match="c' lacks 2 of .*a' and has 0 others.*example 'u1'"
    ):
        compare(first, make_run("c", decoded(0)))
    with pytest.raises(RunError, match="lacks 0 of .* has 1 others.*'u3'"):
        compare(first, make_run("d", decoded(0, 0, 0, 0)))
    changed = decoded(0, 0, 0) | {"u1": ("x y", "x y")}
    with pytest.raises(
        RunError, match="for 1 of 3.*'u1': 'a a a a a' in .*'x y'"
    ):
        compare(first, make_run("e", changed))


def test_progress_wraps_the_distinct_unequal_texts(make_run):
    seen = []

    def track(pairs):
        seen.extend(pairs)
        return pairs

    compare(make_run("a"), make_run("b"), track=track)
    assert len(seen) == 3


def test_trained_runs(trained_runs):
    comparison = compare(*trained_runs)
    assert [side.label for side in comparison.sides] == ["torch", "triton"]
    assert comparison.differing == {"conv_backend": ("torch", "triton")}
    assert comparison.shared["precision"] == "bf16"
    off, on = comparison.test_sets[0].sides
    assert off.scores[0].words == Edits(1, 1, 1, length=8)
    assert on.scores[0].words == Edits(0, 1, 1, length=8)


def test_json_document(trained_runs):
    comparison = compare(*trained_runs)
    document = json.loads(comparison_to_json(comparison))
    first, second = document["runs"]
    assert first["path"] == str(trained_runs[0]) and first["side"] == "torch"
    assert second["training"]["seconds_per_epoch"] == 20
    assert document["settings"]["different"]["conv_backend"] == [
        "torch",
        "triton",
    ]
    (test_set,) = document["test_sets"]
    assert test_set["utterances"] == 4 and test_set["words"] == 8
    assert test_set["runs"][0]["wer"]["rate"] == 37.5
    assert test_set["runs"][0]["cer"]["reference_length"] == 36
    assert test_set["sides"][1]["wer_mean"] == 25
    (difference,) = test_set["differences"]
    assert difference["wer_points"] == -12.5
    assert difference["utterances_with_different_words"] == 3
    assert document["conclusions"] == conclusions(comparison)


def test_json_of_what_is_not_a_number(make_run, tmp_path):
    folders = [make_run("a", decoded(1), lr=".inf"), make_run("b", decoded(0))]
    (folders[0] / "train_log.txt").write_text(
        "epoch: 1 - train loss: nan - valid loss: inf\n"
        "Epoch loaded: 1 - test loss: nan\n"
    )
    document = json.loads(comparison_to_json(compare(*folders)))
    assert document["runs"][0]["training"]["train_loss"] is None
    assert document["test_sets"][0]["differences"][0]["wer_interval"] is None


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit(trained_runs, make_run, width):
    folders = [
        make_run(
            f"{conv}_with_a_rather_long_name", seed=3407, conv_backend=conv
        )
        for conv in ("torch", "triton")
    ]
    for comparison in (compare(*trained_runs), compare(*folders)):
        text = printed(comparison, width)
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
    assert "9.09 to 80.00" in printed(compare(*trained_runs))


def test_folder_names_are_not_markup(make_run):
    comparison = compare(make_run("[red]x"), make_run(":smile: [b]"))
    text = printed(comparison)
    assert "[red]x" in text and ":smile: [b]" in text
