"""What is drawn: matplotlib's axes, looked into, and the PNG."""

import struct

import numpy as np
import pytest
from matplotlib.figure import Figure

from speechbrain_triton.runs import compare_runs, read_run
from speechbrain_triton.runs.drawing import comparison_to_png
from speechbrain_triton.runs.pictures import (
    all_pictures,
    curve_pictures,
    set_pictures,
    training_pictures,
)

TEXT = {f"u{n}": ("a b c d", "a b c d") for n in range(5)}
WRONG = {f"u{n}": ("a b c d", "a b c x") for n in range(5)}


def compare(*folders, **options):
    return compare_runs([read_run(folder) for folder in folders], **options)


def draw(picture):
    axes = Figure(layout="constrained").add_subplot()
    picture.draw(axes)
    return axes


def named_rows(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


@pytest.fixture
def train(make_run):
    """Makes a run with a training: (name, steps and losses)."""

    def make(name, *losses, words=TEXT, **settings):
        folder = make_run(name, words, **settings)
        lines = [
            f"epoch: {epoch}, steps: {10 * epoch}, seconds: {epoch}.5, "
            f"peak_mib: {100 * epoch} - train loss: {loss}"
            for epoch, loss in enumerate(losses, 1)
        ]
        lines.append(f"Epoch loaded: {len(losses)} - test loss: 1.0")
        (folder / "train_log.txt").write_text("\n".join(lines))
        return folder

    return make


def test_rates_and_differences(make_run):
    comparison = compare(make_run("a", TEXT), make_run("b", WRONG))
    rates, differences = set_pictures(comparison.test_sets[0])
    axes = draw(rates)
    assert named_rows(axes) == ["a", "b"]
    centres = [c.lines[0].get_xydata().tolist() for c in axes.containers]
    assert centres == [[[0, 0]], [[25, 1]]]
    assert [t.get_text() for t in axes.texts] == ["0.00", "25.00"]
    assert rates.description.endswith(
        "a 0.00 (0.00 to 0.00); b 25.00 (25.00 to 25.00)."
    )
    axes = draw(differences)
    assert named_rows(axes) == ["b"]
    assert [t.get_text() for t in axes.texts] == ["+25.00, p = 0.062"]
    low, high = axes.get_xlim()
    assert low <= 0 < 25 < high


def test_intervals_reach_where_they_should(make_run):
    mixed = TEXT | {"u0": ("a b c d", "x y z d")}
    comparison = compare(make_run("a", mixed), make_run("b", TEXT))
    (test_set,) = comparison.test_sets
    rates, differences = set_pictures(test_set)
    for picture, expected in (
        (rates, test_set.sides[0].scores[0].interval),
        (differences, test_set.differences[0].interval),
    ):
        bars = draw(picture).containers[0].lines[2][0]
        (ends,) = bars.get_segments()
        assert ends[:, 0] == pytest.approx(expected)
    assert draw(differences).get_xlim()[0] < -15


def test_no_difference_at_all(make_run):
    comparison = compare(make_run("a", TEXT), make_run("b", TEXT))
    rates, differences = set_pictures(comparison.test_sets[0])
    assert draw(rates).get_xlim() == pytest.approx((0, 1.08))
    assert draw(differences).get_xlim() == pytest.approx((-1.16, 1.16))


def test_means_stand_above_their_runs(make_run):
    folders = [
        make_run(f"{side}/{seed}", TEXT, conv_backend=side, seed=seed)
        for side in ("torch", "triton")
        for seed in (1, 2)
    ]
    rates, _ = set_pictures(compare(*folders).test_sets[0])
    assert named_rows(draw(rates)) == [
        "torch, mean of 2", "torch/1", "torch/2",
        "triton, mean of 2", "triton/1", "triton/2",
    ]  # fmt: skip


def test_curves_by_step(train):
    comparison = compare(
        train("a", 9, 8, "nan", 6), train("b", 7, "inf", 5, words=WRONG)
    )
    (picture,) = curve_pictures(comparison)
    assert picture.title == "Train loss by step"
    assert picture.description.endswith("a from 9 to 6; b from 7 to 5.")
    axes = draw(picture)
    first, second = axes.lines
    assert first.get_xdata().tolist() == [10, 20, 30, 40]
    np.testing.assert_array_equal(first.get_ydata(), [9, 8, np.nan, 6])
    np.testing.assert_array_equal(second.get_ydata(), [7, np.nan, 5])
    assert first.get_color() != second.get_color()
    assert first.get_linestyle() != second.get_linestyle()
    assert first.get_marker() != second.get_marker()
    assert axes.get_yscale() == "linear"


def test_log_of_hundreds_of_figures_is_no_page_of_hundreds(train):
    folder = train("a", 9, 8)
    lines = [f"epoch: {k} - train loss: 1 - valid x{k}: 1" for k in range(400)]
    lines.append("Epoch loaded: 1 - test loss: 1")
    (folder / "train_log.txt").write_text("\n".join(lines))
    pictures = curve_pictures(compare(folder, train("b", 7, 5)))
    assert len(pictures) == 30 and pictures[0].title.startswith("Train loss")


def test_curves_by_epoch_where_a_run_logs_no_steps(train):
    first, second = train("a", 100, 1), train("b", 50, 1, words=WRONG)
    log = second / "train_log.txt"
    log.write_text(log.read_text().replace("steps: 10, ", ""))
    (picture,) = curve_pictures(compare(first, second))
    assert picture.title == "Train loss by epoch, logarithmic scale"
    axes = draw(picture)
    assert [line.get_xdata().tolist() for line in axes.lines] == [[1, 2]] * 2
    assert axes.get_yscale() == "log"


def test_losses_of_many_steps_are_averaged(train):
    folders = [train("a", 1), train("b", 1, words=WRONG)]
    for folder, steps in zip(folders, (601, 2), strict=True):
        lines = (f"{step},{step}.5\n" for step in range(1, steps + 1))
        (folder / "steps.csv").write_text("".join(lines))
    _, picture = curve_pictures(compare(*folders))
    assert picture.title.endswith("means of 3 values")
    long, short = draw(picture).lines
    assert long.get_xdata()[[0, -2, -1]].tolist() == [3, 600, 601]
    assert long.get_ydata()[[0, -2, -1]].tolist() == [2.5, 599.5, 601.5]
    assert short.get_xdata().tolist() == [2]
    assert short.get_ydata().tolist() == [2]


def test_seeds_of_a_side_look_alike(train):
    folders = [
        train(f"{side}{seed}", 3, 2, conv_backend=side, seed=seed)
        for side in ("_torch", "triton")
        for seed in (1, 2)
    ]
    (picture,) = curve_pictures(compare(*folders))
    axes = draw(picture)
    colours = [line.get_color() for line in axes.lines]
    assert colours[0] == colours[1] != colours[2] == colours[3]
    (legend,) = axes.figure.legends
    # matplotlib would leave out a name with "_" in front.
    assert [t.get_text() for t in legend.get_texts()] == [" _torch", "triton"]


def test_bars(train, make_run):
    comparison = compare(
        train("a", 3, 2), make_run("b", TEXT, lr=2), train("c", 3, lr=3)
    )
    seconds, memory = training_pictures(comparison)
    axes = draw(seconds)
    assert named_rows(axes) == ["a", "c"]
    assert [bar.get_width() for bar in axes.patches] == [2, 1.5]
    assert [bar.get_width() for bar in draw(memory).patches] == [200, 100]
    assert memory.description.endswith("a 200; c 100.")


def test_many_runs_are_not_read_out(make_run):
    folders = [make_run(f"r{n}", TEXT, lr=n) for n in range(9)]
    rates, _ = set_pictures(compare(*folders).test_sets[0])
    assert rates.description.endswith("values of 9 rows are in the table.")


def test_png(train, recwarn):
    name = "$\\frac{1}$ 100 % 汉字 \x01 " + "long " * 20
    comparison = compare(train("_a", 3, 2), train(name, 3, words=WRONG))
    png = comparison_to_png(comparison)
    assert png == comparison_to_png(comparison)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    assert width == 1500
    rows = -(-len(all_pictures(comparison)) // 2)
    assert rows == 3 and height > 150 * rows
    assert not [w for w in recwarn if "Glyph" in str(w.message)]
