"""Pictures of a bench's rows."""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib.style
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator
from PIL import Image

from speechbrain_triton.bench.roofline import roofline
from speechbrain_triton.bench.rows import Row
from speechbrain_triton.bench.shapes import Case, case_of
from speechbrain_triton.files import write_atomically
from speechbrain_triton.runs.pictures import SIDES, STYLE

_FAINT = "#8b939e"
# Baselines never meet in one picture, so that they share a colour.
_COLOURS = {
    "stock": SIDES[1],
    "eager": SIDES[1],
    "torchaudio": SIDES[1],
    "channels_last": SIDES[4],
    "numba": SIDES[4],
    "compile": SIDES[3],
    "liger": SIDES[5],
    "triton": SIDES[0],
    "triton_inplace": SIDES[2],
    "triton_fused_joint": SIDES[2],
    "matmul_only": _FAINT,
    "limit": _FAINT,
}
_ORDER = list(_COLOURS)
_MARKERS = {"triton": "o", "compile": "^", "limit": "_"}
_FLOORS = ("matmul_only", "limit")
_DPI = 110
_STYLE = {**STYLE, "axes.titlesize": "medium", "font.size": 9}
_BAR, _GAP, _MARGIN = 0.15, 0.7, 1.0


@dataclass(frozen=True)
class _Panel:
    """One of the plots of bars that stand side by side."""

    title: str
    figure: str
    passed: str
    without: tuple[str, ...] = ()


def _panels(*timed: tuple[str, str]) -> tuple[_Panel, ...]:
    """Times of passes, and the peak memory of the last of them."""
    times = tuple(
        _Panel(f"{words}, ms", "median_ms", name) for name, words in timed
    )
    # That of a floor is what its operands happen to need.
    peak = _Panel("peak, MiB", "peak_mib", timed[-1][0], _FLOORS)
    return (*times, peak)


_OP = _panels(("fwd_bwd", "GPU"), ("fwd_bwd_wall", "wall time"))
_MODULE = _panels(("fwd_bwd_gpu", "GPU"), ("fwd_bwd", "wall time"))
_LOSS = _panels(("fwd_bwd", "between device events"))
_BOTH = "forward and backward"
# Name of the file, op, words behind it, and what stands side by side.
_BARS = (
    ("depthwise_conv1d", "depthwise_conv1d", _BOTH, _OP),
    ("conv_module", "conv_module", _BOTH, _MODULE),
    (
        "conv_module_stream",
        "conv_module",
        "a chunk of a stream",
        _panels(("step_gpu", "GPU"), ("step", "wall time")),
    ),
    ("frontend", "frontend", _BOTH, _MODULE),
    ("convolution_frontend", "convolution_frontend", _BOTH, _MODULE),
    ("geglu_linear", "geglu_linear", _BOTH, _OP),
    ("geglu_ffn", "geglu_ffn", _BOTH, _MODULE),
    ("geglu_ladder", "geglu_ladder", "forward", _panels(("fwd", "GPU"))),
    ("transducer_loss", "transducer_loss", _BOTH, _LOSS),
    ("transducer_joint_loss", "transducer_joint_loss", _BOTH, _LOSS),
    (
        "train_step",
        "train_step",
        "a step of the recipe",
        _panels(("step", "wall time")),
    ),
)


@dataclass(frozen=True)
class _Sweep:
    """What of the depthwise convolution's shape varies along an axis."""

    name: str
    label: str
    place: Callable[[Case], int]
    fixed: tuple[str, ...]


_SWEEPS = (
    # The time depends on their product alone, so that shapes of all batches
    # are points of one line.
    _Sweep(
        "frames",
        "frames of the batch, B x T",
        lambda case: case.B * case.T,
        ("C", "K", "chunk"),
    ),
    _Sweep(
        "channels", "channels", lambda case: case.C, ("B", "T", "K", "chunk")
    ),
)
_SWEPT = (("fwd", "forward"), ("fwd_bwd", _BOTH))


def draw_rows(rows: Sequence[Row]) -> dict[str, Figure]:
    """Draw all pictures for which there are rows.

    Arguments
    ---------
    rows : sequence of mapping
        Rows of one GPU, as ``read_rows`` gives them.

    Returns
    -------
    dict of Figure
        By their names: for each op bars of time and peak memory,
        ``depthwise_conv1d_sweep`` over frames and channels, and ``roofline``.

    Example
    -------
    >>> draw_rows([])
    {}
    """
    figures = {}
    with _style():
        for name, op, words, panels in _BARS:
            figures[name] = _bars(rows, op, words, panels)
        figures["depthwise_conv1d_sweep"] = _sweeps(rows)
        figures["roofline"] = roofline(rows)
        figures = {name: f for name, f in figures.items() if f is not None}
        for figure in figures.values():
            figure.supxlabel(
                _versions(rows), x=0.01, ha="left", size=7, color=_FAINT
            )
    return figures


def write_pictures(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw all pictures for which there are rows, each as a PNG file.

    Arguments
    ---------
    rows : sequence of mapping
        Rows of one GPU, as ``read_rows`` gives them.
    folder : Path
        Where the files are written; it exists.

    Returns
    -------
    list of Path
        The files.
    """
    paths = []
    for name, figure in draw_rows(rows).items():
        paths.append(folder / f"{name}.png")
        write_atomically(paths[-1], _png(figure))
    return paths


def _png(figure):
    drawn, content = io.BytesIO(), io.BytesIO()
    with _style():
        figure.savefig(drawn, format="png", dpi=_DPI)
    # A third of the bytes, and nothing that could be seen.
    image = Image.open(drawn).convert("RGB").quantize(128)
    image.save(content, "png", optimize=True)
    return content.getvalue()


@contextmanager
def _style() -> Iterator[None]:
    """Own style, whatever the user's matplotlibrc says."""
    with matplotlib.style.context(_STYLE, after_reset=True):
        yield


def _versions(rows):
    def all_of(column):
        return ", ".join(dict.fromkeys(str(row[column]) for row in rows))

    return (
        f"{all_of('gpu')}, torch {all_of('torch')}, triton {all_of('triton')}"
    )


def _bars(rows, op, words, panels):
    """Bars of the op's cases, those of a case together; None without rows."""
    passes = {panel.passed for panel in panels}
    rows = [r for r in rows if r["op"] == op and r["pass"] in passes]
    if not rows:
        return None
    cases = {}
    for row in rows:
        cases.setdefault((row["dtype"], row["shape"]), set()).add(row["impl"])
    places, centres = _places(cases)
    common, labels = _labels(cases)
    height = _BAR * max(places.values()) + _MARGIN
    figure = Figure(figsize=(3.1 * len(panels) + 1, height))
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    impls = sorted({row["impl"] for row in rows}, key=_ORDER.index)
    for panel, axes in zip(panels, all_axes, strict=True):
        for impl in impls:
            found = [
                row
                for row in rows
                if row["impl"] == impl
                and row["pass"] == panel.passed
                and impl not in panel.without
            ]
            if found:
                _draw_bars(axes, impl, found, panel.figure, places)
        axes.set_title(panel.title, loc="left")
        axes.grid(axis="x")
        axes.margins(x=0.18)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.tick_params(axis="y", length=0)
    all_axes[0].set_yticks(centres, labels)
    all_axes[0].set_ylim(max(places.values()) + 0.8, -0.8)
    title = " ".join((op, *common)) + f": {words}"
    _legend(figure, all_axes, title, len(impls))
    return figure


def _places(cases):
    """Where the bars stand, by case and impl, and the middle of each case."""
    places, centres, y = {}, [], 0.0
    for case, impls in cases.items():
        centres.append(y + (len(impls) - 1) / 2)
        for impl in sorted(impls, key=_ORDER.index):
            places[*case, impl] = y
            y += 1
        y += _GAP
    return places, centres


def _draw_bars(axes, impl, rows, figure, places):
    values = [row[figure] for row in rows]
    bars = axes.barh(
        [places[row["dtype"], row["shape"], impl] for row in rows],
        values,
        height=0.86,
        color=_COLOURS[impl],
        label=impl,
    )
    axes.bar_label(bars, [_spell(v) for v in values], padding=2, size=7)


def _labels(cases):
    """What all cases have in common, and what tells them apart."""
    words = [[*shape.split("_"), dtype] for dtype, shape in cases]
    common = [w for w in words[0] if all(w in other for other in words)]
    apart = [" ".join(w for w in own if w not in common) for own in words]
    if not all(apart):
        return [], [" ".join(own) for own in words]
    return common, apart


def _legend(figure, all_axes, title, columns):
    """The title of all plots, and below it what the colours mean."""
    entries = {}
    for axes in all_axes:
        handles, labels = axes.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            entries.setdefault(label, handle)
    labels = sorted(entries, key=_ORDER.index)
    figure.legend(
        [entries[label] for label in labels],
        labels,
        loc="outside upper left",
        ncols=columns,
        title=title,
        title_fontsize="large",
        alignment="left",
    )


def _spell(value):
    # Without an exponent: 25639, 142, 1.50, 0.00332.
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def _sweeps(rows):
    """Lines over frames and channels; None where nothing varies."""
    cases = [
        (case_of(row["op"], row["dtype"], row["shape"]), row)
        for row in rows
        if row["op"] == "depthwise_conv1d"
    ]
    lines = [
        (sweep, dtype, found)
        for dtype in dict.fromkeys(case.dtype for case, _ in cases if case)
        for sweep in _SWEEPS
        if (found := _widest(cases, sweep, dtype))
    ]
    if not lines:
        return None
    figure = Figure(figsize=(9, 2.9 * len(lines) + 0.8))
    grid = figure.subplots(len(lines), len(_SWEPT), squeeze=False)
    for (sweep, dtype, found), row_axes in zip(lines, grid, strict=True):
        for (name, words), axes in zip(_SWEPT, row_axes, strict=True):
            _draw_sweep(axes, sweep, name, found)
            sizes = " ".join(
                f"{size}{value}"
                for size in sweep.fixed
                if (value := getattr(found[0][0], size))
            )
            axes.set_title(f"{dtype} {sizes}, {words}", loc="left")
    _legend(figure, grid.flat, "depthwise_conv1d: GPU time", len(_ORDER))
    return figure


def _widest(cases, sweep, dtype):
    """The cases that differ along the sweep alone, of most sizes."""
    groups = {}
    for case, row in cases:
        if case and case.dtype == dtype:
            fixed = tuple(getattr(case, size) for size in sweep.fixed)
            groups.setdefault(fixed, []).append((case, row))

    def sizes(group):
        return len({sweep.place(case) for case, _ in group})

    widest = max(groups.values(), key=sizes)
    return widest if sizes(widest) > 1 else None


def _draw_sweep(axes, sweep, name, found):
    ticks = set()
    for impl in _ORDER:
        points = sorted(
            (sweep.place(case), row["median_ms"])
            for case, row in found
            if row["pass"] == name and row["impl"] == impl
        )
        if points:
            x, y = zip(*points, strict=True)
            ticks.update(x)
            axes.plot(
                x,
                y,
                color=_COLOURS[impl],
                marker=_MARKERS.get(impl, "s"),
                linestyle=":" if impl in _FLOORS else "-",
                label=impl,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(_apart(sorted(ticks)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid()
    axes.set_xlabel(sweep.label)
    axes.set_ylabel("ms")


def _apart(ticks):
    """Those of sorted ticks whose labels do not run into the one before."""
    kept = []
    span = math.log(ticks[-1] / ticks[0]) if len(ticks) > 1 else 0
    for tick in ticks:
        if not kept or math.log(tick / kept[-1]) > 0.1 * span:
            kept.append(tick)
    return kept
