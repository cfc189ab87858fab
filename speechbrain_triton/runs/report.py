"""A comparison as tables and plain sentences."""

from collections.abc import Iterator

from rich import box
from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from speechbrain_triton.runs.comparison import Comparison
from speechbrain_triton.runs.scores import Difference, SetComparison
from speechbrain_triton.runs.sides import describe
from speechbrain_triton.runs.tables import (
    Table,
    set_tables,
    settings_tables,
    spell_interval,
    spell_p_value,
    spell_points,
    training_tables,
    versions,
)
from speechbrain_triton.text import printable


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
        console.print(_draw(table))
        console.print()
    for line in _remarks(comparison):
        console.print(Text(printable(line)))
    for sentence in conclusions(comparison):
        console.print()
        console.print(Text(printable(sentence), style="bold"))


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
    evidence = f"p {spell_p_value(difference.p_value)}"
    if difference.interval:
        interval = spell_interval(difference.interval, spell_points)
        evidence = f"95% interval {interval}, {evidence}"
    points = spell_points(difference.points)
    return (
        f"WER {first.label} {first.wer:.2f} %, {second.label} "
        f"{second.wer:.2f} %, difference {points} points "
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


def _tables(comparison: Comparison) -> Iterator[Table]:
    for test_set in comparison.test_sets:
        yield from set_tables(test_set)
    yield from training_tables(comparison)
    yield from settings_tables(comparison)


def _remarks(comparison):
    if comparison.shared:
        shared = ", ".join(
            f"{name} {describe(value)}"
            for name, value in comparison.shared.items()
        )
        yield f"The same in all runs: {shared}."
    if recorded := versions(comparison):
        texts = (f"{name} {version}" for name, version in recorded.items())
        yield f"Versions by env.log: {', '.join(texts)}."
    if comparison.skipped:
        names = ", ".join(comparison.skipped)
        yield f"Skipped test sets, as some runs lack them: {names}."


def _spread(side):
    rates = [score.words.rate for score in side.scores]
    return f"{min(rates):.2f} to {max(rates):.2f}, sd {side.deviation:.2f}"


def _draw(table: Table) -> rich_table.Table:
    drawn = rich_table.Table(
        title=printable(table.title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    for heading in table.left:
        drawn.add_column(printable(heading), overflow="fold")
    for heading in table.right:
        drawn.add_column(printable(heading), justify="right", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*map(printable, row))
    return drawn
