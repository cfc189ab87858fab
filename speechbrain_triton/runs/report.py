"""A comparison as tables and plain sentences."""

from collections.abc import Iterator
from itertools import chain, islice

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from speechbrain_triton.runs.comparison import Comparison
from speechbrain_triton.runs.reader import Training
from speechbrain_triton.runs.scores import Difference, SetComparison
from speechbrain_triton.runs.sides import describe, run_labels


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Prints tables of scores, training and settings, then the conclusions.

    Arguments
    ---------
    comparison : Comparison
        From :func:`speechbrain_triton.runs.compare_runs`.
    console : Console
        Where to print.

    Example
    -------
    >>> empty = Comparison((), (), (), {}, {"precision": "fp32"})
    >>> print_comparison(empty, Console(width=80, color_system=None))
    The same in all runs: precision fp32.
    """
    for table in _tables(comparison):
        console.print(table)
        console.print()
    for line in _remarks(comparison):
        console.print(Text(line))
    for sentence in conclusions(comparison):
        console.print()
        console.print(Text(sentence, style="bold"))


def conclusions(comparison: Comparison) -> list[str]:
    """Says in plain words what the differences mean.

    Arguments
    ---------
    comparison : Comparison
        From :func:`speechbrain_triton.runs.compare_runs`.

    Returns
    -------
    list of str
        One sentence or two for each test set and side but the first.
    """
    return [
        sentence
        for test_set in comparison.test_sets
        for sentence in _set_conclusions(test_set)
    ]


def _set_conclusions(test_set: SetComparison) -> Iterator[str]:
    if not test_set.differences:
        side = test_set.sides[0]
        yield (
            f"{test_set.name}: all {len(side.scores)} runs have the same "
            f"settings but seeds and folders: one side, WER {side.wer:.2f} % "
            f"({_spread(side)}). Nothing is compared; --group-by can split it."
        )
    for difference in test_set.differences:
        yield f"{test_set.name}: {_conclusion(difference)}"


def _conclusion(difference: Difference) -> str:
    first, second = difference.first, difference.second
    if not difference.disagreements:
        return (
            f"all {difference.utterances} utterances have the same words with "
            f"{first.label} and {second.label}: WER {first.wer:.2f} %."
        )
    evidence = f"p {_p_value(difference.p_value)}"
    if difference.interval:
        low, high = difference.interval
        interval = f"{_points(low)} to {_points(high)}"
        evidence = f"95% interval {interval}, {evidence}"
    return (
        f"WER {first.label} {first.wer:.2f} %, {second.label} "
        f"{second.wer:.2f} %, difference {_points(difference.points)} points "
        f"({evidence}): {_verdict(difference)}"
    )


def _verdict(difference: Difference) -> str:
    first, second = difference.first, difference.second
    if not difference.significant:
        return "no significant difference."
    better = second if difference.points < 0 else first
    verdict = f"{better.label} is significantly better."
    spread = max(first.spread, second.spread)
    if min(len(first.scores), len(second.scores)) == 1:
        return f"{verdict} A side of one run may owe this to its seed."
    if spread >= abs(difference.points):
        return (
            f"{verdict} But the runs of one side alone spread over "
            f"{spread:.2f} points."
        )
    return verdict


def _tables(comparison):
    for test_set in comparison.test_sets:
        yield _score_table(test_set)
        if any(len(side.scores) > 1 for side in test_set.sides):
            yield _side_table(test_set)
        if test_set.differences:
            yield _difference_table(test_set)
    if any(run.training != Training() for run in comparison.runs):
        yield _training_table(comparison)
    if comparison.differing:
        yield _settings_table(comparison)


def _remarks(comparison):
    if comparison.shared:
        shared = ", ".join(
            f"{name} {describe(value)}"
            for name, value in comparison.shared.items()
        )
        yield f"The same in all runs: {shared}."
    versions = [run.versions for run in comparison.runs]
    names = dict.fromkeys(chain.from_iterable(versions))
    if names:
        texts = (
            f"{name} {_values(v.get(name) for v in versions)}" for name in names
        )
        yield f"Versions by env.log: {', '.join(texts)}."
    if comparison.skipped:
        names = ", ".join(comparison.skipped)
        yield f"Skipped test sets, as some runs lack them: {names}."


def _score_table(test_set):
    rows = [(side.label, s) for side in test_set.sides for s in side.scores]
    named = any(label != score.label for label, score in rows)
    table = _table(
        f"{test_set.name}: {test_set.utterances} utterances, "
        f"{test_set.words} words",
        left=["Side", "Run"] if named else ["Run"],
        right=["WER %", "95%", "Ins/del/sub", "CER %", "Ins/del/sub"],
    )
    for label, score in rows:
        table.add_row(
            *([label] if named else []),
            score.label,
            f"{score.words.rate:.2f}",
            _interval(score.interval),
            _counts(score.words),
            f"{score.characters.rate:.2f}",
            _counts(score.characters),
        )
    return table


def _side_table(test_set):
    table = _table(
        f"{test_set.name}: means of the runs of a side",
        left=["Side"],
        right=["Runs", "WER %", "95%", "SD", "Min to max", "CER %"],
    )
    for side in test_set.sides:
        rates = [score.words.rate for score in side.scores]
        table.add_row(
            side.label,
            f"{len(rates)}",
            f"{side.wer:.2f}",
            _interval(side.interval),
            "-" if side.deviation is None else f"{side.deviation:.2f}",
            _interval((min(rates), max(rates))),
            f"{side.cer:.2f}",
        )
    return table


def _difference_table(test_set):
    table = _table(
        f"{test_set.name}: differences",
        left=["Sides"],
        right=["WER points", "95%", "p", "CER points", "Other words"],
    )
    for difference in test_set.differences:
        table.add_row(
            f"{difference.second.label} - {difference.first.label}",
            _points(difference.points),
            _interval(difference.interval, _points),
            _p_value(difference.p_value).removeprefix("= "),
            _points(difference.cer_points),
            f"{difference.disagreements} of {difference.utterances}",
        )
    return table


def _training_table(comparison):
    table = _table(
        "Training (losses of the last epoch)",
        left=["Run"],
        right=["Seed", "Epochs", "s/epoch", "Peak MiB", "Train", "Valid"],
    )
    labels = run_labels([run.path for run in comparison.runs])
    for label, run in zip(labels, comparison.runs, strict=True):
        training = run.training
        table.add_row(
            label,
            describe(run.settings.get("seed")),
            describe(training.epochs),
            _number(training.seconds_per_epoch),
            _number(training.peak_mib),
            _number(training.train_loss),
            _number(training.valid_loss),
        )
    return table


def _settings_table(comparison):
    labels = [side.label for side in comparison.sides]
    table = _table("Different settings", left=["Setting", *labels], right=[])
    for name, values in comparison.differing.items():
        remaining = iter(values)
        table.add_row(
            name,
            *(
                _values(islice(remaining, len(side.runs)))
                for side in comparison.sides
            ),
        )
    return table


def _table(title, left, right):
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _values(values):
    """Different values, each once."""
    return " | ".join(dict.fromkeys(map(describe, values)))


def _spread(side):
    rates = [score.words.rate for score in side.scores]
    return f"{min(rates):.2f} to {max(rates):.2f}, sd {side.deviation:.2f}"


def _counts(edits):
    return f"{edits.insertions}/{edits.deletions}/{edits.substitutions}"


def _interval(interval, spell="{:.2f}".format):
    return " to ".join(map(spell, interval)) if interval else "-"


def _points(value):
    # Adding zero keeps a rounded -0.0 from being written "-0.00".
    return f"{round(value, 2) + 0.0:+.2f}"


def _p_value(value):
    return "< 0.001" if value < 0.001 else f"= {value:.2g}"


def _number(value):
    return "-" if value is None else f"{value:.4g}"
