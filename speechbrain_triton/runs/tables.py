"""The tables of a comparison, as plain text for any kind of output."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice

from speechbrain_triton.runs.comparison import Comparison
from speechbrain_triton.runs.scores import Interval, SetComparison
from speechbrain_triton.runs.settings import Scalar
from speechbrain_triton.runs.sides import describe, run_labels
from speechbrain_triton.runs.training_log import Training, finite


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Arguments
    ---------
    title : str
    left : tuple of str
        Headings of the first columns, which hold names.
    right : tuple of str
        Headings of the other columns, which hold numbers.
    rows : tuple of tuple of str
        The first column names the row.
    """

    title: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def set_tables(test_set: SetComparison) -> Iterator[Table]:
    """Scores of the runs, means of the sides where they differ, differences.

    Arguments
    ---------
    test_set : SetComparison

    Yields
    ------
    Table
    """
    yield _score_table(test_set)
    if any(len(side.scores) > 1 for side in test_set.sides):
        yield _side_table(test_set)
    if test_set.differences:
        yield _difference_table(test_set)


def training_tables(comparison: Comparison) -> Iterator[Table]:
    """Speed, memory and last losses, unless no run records any.

    Arguments
    ---------
    comparison : Comparison

    Yields
    ------
    Table
    """
    # A run that was only evaluated still names its checkpoint's epoch.
    if all(
        replace(run.training, epoch_loaded=None) == Training()
        for run in comparison.runs
    ):
        return
    yield Table(
        title="Training (losses of the last epoch)",
        left=("Run",),
        right=("Seed", "Epochs", "s/epoch", "Peak MiB", "Train", "Valid"),
        rows=tuple(
            (
                label,
                describe(run.settings.get("seed")),
                describe(run.training.epochs),
                spell_number(run.training.seconds_per_epoch),
                spell_number(run.training.peak_mib),
                spell_number(run.training.train_loss),
                spell_number(run.training.valid_loss),
            )
            for label, run in labelled_runs(comparison)
        ),
    )


def curve_tables(comparison: Comparison) -> Iterator[Table]:
    """First, lowest and last value of all learning curves, a table for each.

    Arguments
    ---------
    comparison : Comparison

    Yields
    ------
    Table
    """
    for name in curve_names(comparison):
        curves = [
            (label, run.curves[name])
            for label, run in labelled_runs(comparison)
            if name in run.curves
        ]
        yield Table(
            title=curve_title(name),
            left=("Run",),
            right=("Values", "First", "Lowest", "Last"),
            rows=tuple(
                (
                    label,
                    f"{len(curve.values)}",
                    spell_number(curve.values[0]),
                    spell_number(min(finite(curve.values), default=None)),
                    spell_number(curve.values[-1]),
                )
                for label, curve in curves
            ),
        )


def settings_tables(comparison: Comparison) -> Iterator[Table]:
    """The settings that differ, a column a side, unless none does.

    Arguments
    ---------
    comparison : Comparison

    Yields
    ------
    Table
    """
    if not comparison.differing:
        return
    sides = comparison.sides
    rows = []
    for name, values in comparison.differing.items():
        rest = iter(values)
        by_side = (join_values(islice(rest, len(s.runs))) for s in sides)
        rows.append((name, *by_side))
    yield Table(
        title="Different settings",
        left=("Setting", *(side.label for side in sides)),
        right=(),
        rows=tuple(rows),
    )


def versions(comparison: Comparison) -> dict[str, str]:
    """Package to its versions by ``env.log``, each once.

    Arguments
    ---------
    comparison : Comparison

    Returns
    -------
    dict
        A run that records none of a package that others do counts as ``-``.
    """
    recorded = [run.versions for run in comparison.runs]
    return {
        name: join_values(v.get(name) for v in recorded)
        for name in dict.fromkeys(chain.from_iterable(recorded))
    }


def labelled_runs(comparison: Comparison) -> list[tuple]:
    """The runs, each behind the shortest name that no other one has.

    Arguments
    ---------
    comparison : Comparison

    Returns
    -------
    list of (str, Run)
    """
    labels = run_labels([run.path for run in comparison.runs])
    return list(zip(labels, comparison.runs, strict=True))


def curve_names(comparison: Comparison) -> list[str]:
    """Learning curves that any run has, losses and word errors in front.

    Arguments
    ---------
    comparison : Comparison

    Returns
    -------
    list of str
    """
    first = ("train loss", "valid loss", "valid WER", "valid CER")
    names = set(chain.from_iterable(run.curves for run in comparison.runs))
    return [n for n in first if n in names] + sorted(names.difference(first))


def curve_title(name: str) -> str:
    """A learning curve's name to begin a line with.

    Example
    -------
    >>> curve_title("valid WER")
    'Valid WER'
    """
    return name[:1].upper() + name[1:]


def join_values(values: Iterable[Scalar]) -> str:
    """Different values, each once.

    Example
    -------
    >>> join_values([1, 1, None])
    '1 | -'
    """
    return " | ".join(dict.fromkeys(map(describe, values)))


def spell_interval(interval: Interval, spell="{:.2f}".format) -> str:
    """An interval, or a dash where there is none.

    Example
    -------
    >>> spell_interval((1, 2.345)), spell_interval(None)
    ('1.00 to 2.35', '-')
    """
    return " to ".join(map(spell, interval)) if interval else "-"


def spell_points(value: float) -> str:
    """A difference with its sign.

    Example
    -------
    >>> spell_points(1.5), spell_points(-0.001)
    ('+1.50', '+0.00')
    """
    # Adding zero keeps a rounded -0.0 from being written "-0.00".
    return f"{round(value, 2) + 0.0:+.2f}"


def spell_p_value(value: float) -> str:
    """A p-value with its relation.

    Example
    -------
    >>> spell_p_value(0.0002), spell_p_value(0.25)
    ('< 0.001', '= 0.25')
    """
    return "< 0.001" if value < 0.001 else f"= {value:.2g}"


def spell_number(value: float | None) -> str:
    """A number with four digits, or a dash where there is none.

    Example
    -------
    >>> spell_number(12.3456), spell_number(None)
    ('12.35', '-')
    """
    return "-" if value is None else f"{value:.4g}"


def _score_table(test_set):
    rows = [(side.label, s) for side in test_set.sides for s in side.scores]
    named = any(label != score.label for label, score in rows)
    return Table(
        title=f"{test_set.name}: {test_set.utterances} utterances, "
        f"{test_set.words} words",
        left=("Side", "Run") if named else ("Run",),
        right=("WER %", "95%", "Ins/del/sub", "CER %", "Ins/del/sub"),
        rows=tuple(
            (
                *([label] if named else []),
                score.label,
                f"{score.words.rate:.2f}",
                spell_interval(score.interval),
                _counts(score.words),
                f"{score.characters.rate:.2f}",
                _counts(score.characters),
            )
            for label, score in rows
        ),
    )


def _side_table(test_set):
    return Table(
        title=f"{test_set.name}: means of the runs of a side",
        left=("Side",),
        right=("Runs", "WER %", "95%", "SD", "Min to max", "CER %"),
        rows=tuple(map(_side_row, test_set.sides)),
    )


def _side_row(side):
    rates = [score.words.rate for score in side.scores]
    return (
        side.label,
        f"{len(rates)}",
        f"{side.wer:.2f}",
        spell_interval(side.interval),
        "-" if side.deviation is None else f"{side.deviation:.2f}",
        spell_interval((min(rates), max(rates))),
        f"{side.cer:.2f}",
    )


def _difference_table(test_set):
    return Table(
        title=f"{test_set.name}: differences",
        left=("Sides",),
        right=("WER points", "95%", "p", "CER points", "Other words"),
        rows=tuple(
            (
                f"{difference.second.label} - {difference.first.label}",
                spell_points(difference.points),
                spell_interval(difference.interval, spell_points),
                spell_p_value(difference.p_value).removeprefix("= "),
                spell_points(difference.cer_points),
                f"{difference.disagreements} of {difference.utterances}",
            )
            for difference in test_set.differences
        ),
    )


def _counts(edits):
    return f"{edits.insertions}/{edits.deletions}/{edits.substitutions}"
