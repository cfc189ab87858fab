"""What the pictures of a comparison show, on matplotlib's axes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from speechbrain_triton.runs.comparison import Comparison
from speechbrain_triton.runs.scores import SetComparison
from speechbrain_triton.runs.tables import (
    curve_names,
    curve_title,
    labelled_runs,
    spell_interval,
    spell_number,
    spell_p_value,
    spell_points,
)
from speechbrain_triton.runs.training_log import Curve, finite
from speechbrain_triton.text import printable, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, RULE = "#1b1f24", "#c8ccd2"
# At least 4.5:1 against white; the page has lighter ones for dark windows.
SIDES = ("#0b5cad", "#b93a0c", "#0b6e63", "#8a2be2", "#8a5a00", "#b0175f")
# Settings of matplotlib that all of the package's pictures have.
STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.color": INK,
    # A "$" in a folder's name begins no formula.
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}
_MARKERS = "os^DvPX*"
_LINES = ("-", "--", "-.", ":")
_ROW, _MARGIN, _PLOT = 0.26, 0.75, 2.0
# Two names of so many letters stand side by side.
_HALF_WIDTH = 16
# A line of more points is a smear; a page of more is slow.
_MOST_POINTS = 300
# Each takes 0.1 s; the tables have the others too.
_MOST_CURVES = 30
# Above this ratio of its ends, a linear scale hides how a loss converges.
_LOGARITHMIC = 20
# A description of more runs than this is read out for minutes.
_MOST_READ_OUT = 8


@dataclass(frozen=True)
class Picture:
    """A plot that is yet to be drawn.

    Arguments
    ---------
    title : str
    description : str
        The same in words, for those who do not see it.
    height : float
        In inches, at a width of 5.
    draw : callable
        Draws it on matplotlib axes.
    """

    title: str
    description: str
    height: float
    draw: Callable[["Axes"], None]


@dataclass(frozen=True)
class _Row:
    label: str
    side: int
    value: float
    interval: tuple[float, float] | None
    note: str

    def describe(self):
        text = f"{self.label} {self.note}"
        if self.interval:
            text += f" ({spell_interval(self.interval)})"
        return text


def all_pictures(comparison: Comparison) -> list[Picture]:
    """All pictures of a comparison, in the order of its page.

    Arguments
    ---------
    comparison : Comparison

    Returns
    -------
    list of Picture
    """
    pictures = [
        picture
        for test_set in comparison.test_sets
        for picture in set_pictures(test_set)
    ]
    return pictures + curve_pictures(comparison) + training_pictures(comparison)


def set_pictures(test_set: SetComparison) -> list[Picture]:
    """Word error rates, and the differences between the sides if any.

    Arguments
    ---------
    test_set : SetComparison

    Returns
    -------
    list of Picture
    """
    rates = list(_rate_rows(test_set))
    pictures = [
        _dots(f"{test_set.name}: word error rate", "WER in percent", rates)
    ]
    differences = [
        _Row(
            label=difference.second.label,
            side=number,
            value=difference.points,
            interval=difference.interval,
            note=f"{spell_points(difference.points)}, "
            f"p {spell_p_value(difference.p_value)}",
        )
        for number, difference in enumerate(test_set.differences, 1)
    ]
    if differences:
        first = shorten(test_set.sides[0].label)
        pictures.append(
            _dots(
                f"{test_set.name}: paired difference to {first}",
                "WER points",
                differences,
                signed=True,
            )
        )
    return pictures


def curve_pictures(comparison: Comparison) -> list[Picture]:
    """One picture for each learning curve that any run has.

    Arguments
    ---------
    comparison : Comparison

    Returns
    -------
    list of Picture
    """
    names = curve_names(comparison)[:_MOST_CURVES]
    return [_lines(comparison, name) for name in names]


def training_pictures(comparison: Comparison) -> list[Picture]:
    """Bars of speed and memory, of the runs that record them.

    Arguments
    ---------
    comparison : Comparison

    Returns
    -------
    list of Picture
    """
    sides = _side_numbers(comparison)
    pictures = []
    for name, title, unit in (
        ("seconds_per_epoch", "Seconds per epoch", "s, median of the epochs"),
        ("peak_mib", "Peak memory", "MiB, largest of the epochs"),
    ):
        rows = [
            _Row(label, side, value, None, spell_number(value))
            for side, (label, run) in zip(
                sides, labelled_runs(comparison), strict=True
            )
            if (value := getattr(run.training, name)) is not None
            if math.isfinite(value)
        ]
        if rows:
            pictures.append(_bars(title, unit, rows))
    return pictures


def _rate_rows(test_set):
    for number, side in enumerate(test_set.sides):
        if len(side.scores) > 1:
            yield _Row(
                label=f"{side.label}, mean of {len(side.scores)}",
                side=number,
                value=side.wer,
                interval=side.interval,
                note=f"{side.wer:.2f}",
            )
        for score in side.scores:
            yield _Row(
                label=score.label,
                side=number,
                value=score.words.rate,
                interval=score.interval,
                note=f"{score.words.rate:.2f}",
            )


def _side_numbers(comparison):
    return [n for n, side in enumerate(comparison.sides) for _ in side.runs]


def _dots(title, unit, rows, signed=False):
    def draw(axes):
        for place, row in enumerate(rows):
            low, high = row.interval or (row.value, row.value)
            # A percentile interval need not hold the value itself.
            reach = [
                [max(0, row.value - low)],
                [max(0, high - row.value)],
            ]
            axes.errorbar(
                [row.value],
                [place],
                xerr=reach,
                color=_colour(row.side),
                marker=_marker(row.side),
                capsize=3,
            )
            axes.annotate(
                row.note,
                (1, place),
                xycoords=("axes fraction", "data"),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
            )
        ends = [x for r in rows for x in (r.value, *(r.interval or ()))]
        low, high = min(0, *ends), max(0, *ends)
        if low == high:
            low, high = -signed, 1
        margin = 0.08 * (high - low)
        axes.set_xlim(low - margin * signed, high + margin)
        if signed:
            axes.axvline(0, color=INK, linewidth=0.8)
        _name_rows(axes, rows, unit)

    return _picture(
        title=title,
        description=_describe(f"{title}, {unit}, 95% interval", rows),
        height=_MARGIN + _ROW * len(rows),
        draw=draw,
    )


def _bars(title, unit, rows):
    def draw(axes):
        bars = axes.barh(
            range(len(rows)),
            [row.value for row in rows],
            height=0.6,
            color=[_colour(row.side) for row in rows],
        )
        axes.bar_label(bars, [row.note for row in rows], padding=3)
        axes.margins(x=0.15)
        _name_rows(axes, rows, unit)

    return _picture(
        title=title,
        description=_describe(f"{title}, {unit}", rows),
        height=_MARGIN + _ROW * len(rows),
        draw=draw,
    )


def _lines(comparison, name):
    title = curve_title(name)
    curves = [
        (label, side, run.curves[name])
        for side, (label, run) in zip(
            _side_numbers(comparison), labelled_runs(comparison), strict=True
        )
        if name in run.curves
    ]
    unit = "step" if all(c.steps for *_, c in curves) else "epoch"
    logarithmic = name.endswith("loss") and _spans_decades(curves)
    group = math.ceil(max(len(c.values) for *_, c in curves) / _MOST_POINTS)
    sides = dict.fromkeys(side for _, side, _ in curves)
    longest = max(len(_shown(comparison.sides[side].label)) for side in sides)
    columns = 2 if longest <= _HALF_WIDTH else 1

    def draw(axes):
        for side in sides:
            label = comparison.sides[side].label
            for _, owner, curve in curves:
                if owner == side:
                    _draw_curve(axes, curve, unit, group, side, label)
                    label = None
        if logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(axis="y")
        axes.set_xlabel(unit.capitalize())
        axes.figure.legend(loc="outside lower left", ncols=columns)

    how = f"{title} by {unit}"
    how += ", logarithmic scale" if logarithmic else ""
    how += f", means of {group} values" if group > 1 else ""
    return _picture(
        title=how,
        description=_describe_curves(how, curves),
        height=_MARGIN + _PLOT + 0.2 * math.ceil(len(sides) / columns),
        draw=draw,
    )


def _draw_curve(axes, curve: Curve, unit, group, side, label):
    x = np.array(curve.steps if unit == "step" else curve.epochs, float)
    y = np.array(curve.values, float)
    if group > 1:
        starts = np.arange(0, len(y), group)
        y = np.add.reduceat(y, starts) / np.diff([*starts, len(y)])
        x = x[np.minimum(starts + group, len(x)) - 1]
    axes.plot(
        x,
        # A diverged run's line has a gap, and inf sets no limits.
        np.where(np.isfinite(y), y, np.nan),
        color=_colour(side),
        linestyle=_LINES[side % len(_LINES)],
        marker=_marker(side),
        markevery=max(1, len(x) // 8),
        label=None if label is None else _shown(label),
    )


def _picture(title, description, height, draw):
    return Picture(printable(title), printable(description), height, draw)


def _name_rows(axes, rows, unit):
    axes.set_yticks(range(len(rows)), [_shown(row.label) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.7)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_xlabel(unit)


def _shown(label):
    # matplotlib leaves a name that begins with "_" out of a legend.
    return shorten(printable(label)).replace("_", " _", label.startswith("_"))


def _colour(side):
    return SIDES[side % len(SIDES)]


def _marker(side):
    return _MARKERS[side % len(_MARKERS)]


def _spans_decades(curves):
    values = finite([value for *_, curve in curves for value in curve.values])
    return (
        bool(values)
        and min(values) > 0
        and max(values) / min(values) > _LOGARITHMIC
    )


def _describe(title: str, rows: Sequence[_Row]) -> str:
    if len(rows) > _MOST_READ_OUT:
        return f"{title}. The values of {len(rows)} rows are in the table."
    return f"{title}. {'; '.join(row.describe() for row in rows)}."


def _describe_curves(title, curves):
    if len(curves) > _MOST_READ_OUT:
        return f"{title}. The values of {len(curves)} runs are in the table."
    ends = (
        f"{label} from {spell_number(curve.values[0])} to "
        f"{spell_number(curve.values[-1])}"
        for label, _, curve in curves
    )
    return f"{title}. {'; '.join(ends)}."
