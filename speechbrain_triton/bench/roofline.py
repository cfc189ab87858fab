"""How near to the measured ceilings of bandwidth and matmul kernels come."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from speechbrain_triton.bench.rows import Row
from speechbrain_triton.bench.shapes import case_of
from speechbrain_triton.bench.work import Work, work
from speechbrain_triton.runs.pictures import INK, SIDES

# Times of the GPU: op to its passes forward, and forward and backward.
_ON_DEVICE = ("fwd", "fwd_bwd")
_PASSES = {
    "depthwise_conv1d": _ON_DEVICE,
    "conv_module": ("fwd_gpu", "fwd_bwd_gpu"),
    "frontend": ("fwd_gpu", "fwd_bwd_gpu"),
    "geglu_linear": _ON_DEVICE,
    "geglu_ffn": ("fwd_gpu", "fwd_bwd_gpu"),
    "transducer_loss": _ON_DEVICE,
    "transducer_joint_loss": _ON_DEVICE,
}
_COLOURS = dict(zip(_PASSES, (*SIDES, "#6b7683"), strict=True))
_CEILINGS = ("limit", "matmul_only")
_KERNELS = ("triton", "triton_inplace", "triton_fused_joint")
_TERA = 1e9  # of a millisecond's: 10^12 a second


@dataclass(frozen=True)
class _Point:
    """A row at its place in the picture."""

    op: str
    shape: str
    dtype: str
    backward: bool
    impl: str
    work: Work
    ms: float

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.work.flops / self.work.bytes_moved

    @property
    def rate(self) -> float:
        """TFLOP/s."""
        return self.work.flops / self.ms / _TERA


def roofline(rows: Sequence[Row]) -> Figure | None:
    """Draw operations a second over operations a byte.

    Both are of the work that a case has at least, whatever an implementation
    really moves: equal cases stand above each other, and higher is faster.
    The roof is the fastest copy and, of each dtype, the fastest matmul of all
    rows; a dash is the case's own ceiling.

    Arguments
    ---------
    rows : sequence of mapping
        As ``read_rows`` gives them.

    Returns
    -------
    Figure or None
        A row of plots for each dtype, forward on the left; None where no
        ceiling was measured.
    """
    points = list(_points(rows))
    ceilings = [point for point in points if point.impl in _CEILINGS]
    if not ceilings:
        return None
    dtypes = list(dict.fromkeys(point.dtype for point in ceilings))
    figure = Figure(figsize=(10, 3.4 * len(dtypes) + 1))
    grid = figure.subplots(
        len(dtypes), 2, squeeze=False, sharex=True, sharey=True
    )
    for dtype, row_axes in zip(dtypes, grid, strict=True):
        roof = bandwidth(ceilings), matmul_rate(ceilings, dtype)
        for backward, axes in enumerate(row_axes):
            shown = [
                point
                for point in points
                if point.dtype == dtype and point.backward == backward
            ]
            _draw(axes, shown)
            _draw_roof(axes, *roof, [point.intensity for point in points])
            words = "forward and backward" if backward else "forward"
            axes.set_title(f"{dtype}, {words}", loc="left")
    for axes in grid[-1]:
        axes.set_xlabel("FLOP a byte that has to be moved")
    for axes in grid[:, 0]:
        axes.set_ylabel("TFLOP/s")
    _legend(figure, dict.fromkeys(point.op for point in points))
    return figure


def bandwidth(ceilings: Sequence[_Point]) -> float | None:
    """TB/s of the fastest copy that stands alone; None without one."""
    rates = [
        point.work.bytes_moved / point.ms / _TERA
        for point in ceilings
        if not point.work.products
    ]
    return max(rates, default=None)


def matmul_rate(ceilings: Sequence[_Point], dtype: str) -> float | None:
    """TFLOP/s of the fastest matmul that stands alone; None without one."""
    rates = [
        point.rate
        for point in ceilings
        if not point.work.copied and point.dtype == dtype
    ]
    return max(rates, default=None)


def _points(rows):
    for row in rows:
        passes = _PASSES.get(row["op"], ())
        case = case_of(row["op"], row["dtype"], row["shape"])
        if case is None or row["pass"] not in passes:
            continue
        backward = row["pass"] == passes[1]
        done = work(case, backward)
        if done is not None:
            yield _Point(
                op=row["op"],
                shape=row["shape"],
                dtype=row["dtype"],
                backward=backward,
                impl=row["impl"],
                work=done,
                ms=row["median_ms"],
            )


def _draw(axes: Axes, points):
    """The fastest kernel, the fastest other and the ceiling of each case."""
    cases = {}
    for point in points:
        cases.setdefault((point.op, point.shape), []).append(point)
    for (op, _), found in cases.items():
        colour = _COLOURS[op]
        best = {}
        for point in found:
            group = _group(point.impl)
            best[group] = max(best.get(group, 0), point.rate)
        x = found[0].intensity
        axes.plot([x] * len(best), list(best.values()), color=colour, lw=0.5)
        for group, rate in best.items():
            axes.plot([x], [rate], color=colour, **_MARKS[group])


def _group(impl):
    if impl in _CEILINGS:
        return "ceiling of the case"
    return "kernels" if impl in _KERNELS else "fastest other"


_MARKS = {
    "kernels": {"marker": "o", "ms": 5, "ls": ""},
    "fastest other": {"marker": "s", "ms": 5, "mfc": "white", "ls": ""},
    "ceiling of the case": {"marker": "_", "ms": 12, "mew": 1.6, "ls": ""},
}


def _draw_roof(axes: Axes, copied, multiplied, intensities):
    low, high = min(intensities) / 2, max(intensities) * 2
    x = np.geomspace(low, high, 400)
    slope = np.inf if copied is None else copied * x
    flat = np.inf if multiplied is None else multiplied
    roof = np.minimum(slope, flat) * np.ones_like(x)
    if np.isfinite(roof).all():
        axes.plot(x, roof, color=INK, lw=1, zorder=1)
    ceilings = []
    if copied is not None:
        ceilings.append(f"copy {copied:.2f} TB/s")
    if multiplied is not None:
        ceilings.append(f"matmul {multiplied:.0f} TFLOP/s")
    # Nothing is above the roof.
    axes.annotate(
        "\n".join(ceilings),
        (0.02, 0.97),
        xycoords="axes fraction",
        va="top",
        size=8,
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid()


def _legend(figure, ops):
    handles = [Line2D([], [], color=_COLOURS[op], lw=5, label=op) for op in ops]
    handles += [
        Line2D([], [], color=INK, label=group, **mark)
        for group, mark in _MARKS.items()
    ]
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=5,
        title="Roofline: GPU time",
        title_fontsize="large",
        alignment="left",
    )
