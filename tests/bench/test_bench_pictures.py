"""Pictures of rows, and rows from files."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from speechbrain_triton import cli
from speechbrain_triton.bench import command, measure
from speechbrain_triton.bench.cases import CASES, DEPTHWISE
from speechbrain_triton.bench.rows import COLUMNS, read_rows, write_rows
from speechbrain_triton.bench.shapes import case_of
from speechbrain_triton.bench.timing import Timing
from speechbrain_triton.bench.work import work

pictures = pytest.importorskip(
    "speechbrain_triton.bench.pictures", reason="needs the extra plots"
)
SHAPE = "B64_T400_C512_K31"
DOCS = Path(__file__).parents[2] / "docs"


def row(op, name, shape, impl, ms, mib=8.0, dtype="bfloat16", gpu="a card"):
    figures = (ms, ms / 2, 2 * ms, mib)
    values = (op, name, dtype, shape, impl, *figures, gpu, "2", "3", "c0ffee")
    return dict(zip(COLUMNS, values, strict=True))


def module_rows():
    return [
        row("conv_module", name, shape, impl, ms, mib)
        for shape, factor in ((SHAPE, 1), (f"{SHAPE}_chunk8", 3))
        for name, impl, ms, mib in (
            ("fwd_bwd_gpu", "stock", 2.0 * factor, 300.0),
            ("fwd_bwd", "stock", 2.5 * factor, 301.0),
            ("fwd_bwd_gpu", "triton", 0.5, 200.0),
            ("fwd_bwd", "triton", 1.5, 201.0),
            ("fwd_bwd_gpu", "limit", 0.25, 100.0),
            ("fwd_bwd", "compile", 1.75, 250.0),
        )
    ]


@pytest.fixture
def table(tmp_path):
    """Write rows to a file, and give its path."""

    def write(rows):
        path = tmp_path / "rows.csv"
        write_rows(path, rows)
        return path

    return write


# Rows


def test_rows_are_read_as_they_were_written(table):
    rows = module_rows()
    assert read_rows(table(rows)) == rows


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda text: "", "is empty"),
        (lambda text: text.splitlines()[0] + "\n", "has no rows"),
        (
            lambda text: text.replace("pass,", "").replace("median_ms,", ""),
            "has no column pass, median_ms; the rows that bench writes",
        ),
        (
            lambda text: text.replace(",0.5,", ",fast,", 1),
            "line 4: median_ms is 'fast', not a positive number",
        ),
        (lambda text: text.replace(",0.5,", ",nan,", 1), "'nan'"),
        (lambda text: text.replace(",0.5,", ",-1,", 1), "'-1'"),
        (
            lambda text: text.replace("triton,0.5", "trition,0.5", 1),
            "impl is 'trition', not one of stock, ",
        ),
        (lambda text: text + "conv_module,fwd\n", "line 14 has no dtype"),
        (
            lambda text: text + text.splitlines()[3] + "\n",
            f"conv_module fwd_bwd_gpu bfloat16 {SHAPE} triton is in line 4",
        ),
        (
            lambda text: text.replace("a card", "another", 1),
            "has rows of another, a card",
        ),
        (lambda text: text + '"conv', "is not CSV"),
    ],
)
def test_bad_files_are_refused_in_a_sentence(table, capsys, change, message):
    path = table(module_rows())
    changed = change(path.read_text(encoding="utf-8"))
    path.write_text(changed, encoding="utf-8")
    folder = path.parent / "png"
    arguments = ["bench", "--from", str(path), "--png", str(folder)]
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(folder.iterdir())


# Bars


def bars(axes):
    """Widths by label, from top to bottom."""
    return {
        container.get_label(): [bar.get_width() for bar in container]
        for container in axes.containers
    }


def test_bars_are_as_long_as_the_rows_say():
    figure = pictures.draw_rows(module_rows())["conv_module"]
    device, wall, memory = figure.axes
    assert bars(device) == {
        "stock": [2.0, 6.0],
        "triton": [0.5, 0.5],
        "limit": [0.25, 0.25],
    }
    assert bars(wall) == {
        "stock": [2.5, 7.5],
        "compile": [1.75, 1.75],
        "triton": [1.5, 1.5],
    }
    assert bars(memory) == {
        "stock": [301.0, 301.0],
        "compile": [250.0, 250.0],
        "triton": [201.0, 201.0],
    }
    # Each implementation of a case has one place in all plots.
    order = ("stock", "compile", "triton", "limit")
    for axes in figure.axes:
        for container in axes.containers:
            places = [bar.get_y() + bar.get_height() / 2 for bar in container]
            first = order.index(container.get_label())
            assert places == pytest.approx([first, first + 4.7])
            assert axes.texts
    labels = [label.get_text() for label in device.get_yticklabels()]
    assert len(labels) == len(set(labels)) == 2 and "chunk8" in labels[1]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        *("stock", "compile", "triton", "limit")
    ]


def test_bars_of_a_ladder_are_named_by_its_steps():
    rows = [
        row("geglu_ladder", "fwd", f"M25600_K512_N2048_{step}", "eager", ms)
        for step, ms in (("matmul", 0.2), ("gelu_mul", 0.3))
    ]
    figure = pictures.draw_rows(rows)["geglu_ladder"]
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == ["matmul", "gelu mul"]
    assert bars(figure.axes[0]) == {"eager": [0.2, 0.3]}
    title = figure.legends[0].get_title().get_text()
    assert title == "geglu_ladder M25600 K512 N2048 bfloat16: forward"


def test_a_single_case_keeps_its_name():
    figure = pictures.draw_rows(module_rows()[:6])["conv_module"]
    (label,) = figure.axes[0].get_yticklabels()
    assert label.get_text() == "B64 T400 C512 K31 bfloat16"


def test_every_case_is_in_a_picture():
    first = {case.kind: case for case in reversed(CASES)}
    for kind, case in first.items():
        rows = [
            row(case.op, timed.name, case.shape, impl, 1.0)
            for timed in measure.PASSES[kind]
            for impl in timed.impls
        ]
        figures = pictures.draw_rows(rows)
        names = {name.removesuffix("_stream") for name in figures}
        assert names - {"roofline"} == {case.op}
        floors = {"limit", "matmul_only"} & {r["impl"] for r in rows}
        assert ("roofline" in figures) == bool(floors)


def test_the_documentation_has_all_pictures_of_its_rows():
    """Else draw them again, as its page of benchmarks says."""
    rows = read_rows(DOCS / "benchmarks" / "h200.csv")
    files = (DOCS / "figures" / "h200").iterdir()
    names = {f"{name}.png" for name in pictures.draw_rows(rows)}
    assert {path.name for path in files} == names
    page = (DOCS / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for name in names:
        assert f"](../figures/h200/{name})" in page


# Lines


def sweep_rows():
    shapes = {
        f"B{B}_T{T}_C{C}_K31": 1e-6 * B * T * C
        for B, T, C in (
            (64, 400, 512),
            (8, 100, 512),
            (64, 20, 512),
            (64, 400, 1024),
            (64, 400, 144),
        )
    }
    rows = [
        row("depthwise_conv1d", name, shape, impl, factor * ms)
        for name, more in (("fwd", 1), ("fwd_bwd", 3))
        for shape, ms in shapes.items()
        for impl, factor in (("stock", 5 * more), ("triton", more))
    ]
    others = (f"{SHAPE}_chunk8", "B64_T400_C512_K9")
    rows += [
        row("depthwise_conv1d", "fwd", shape, "stock", 99.0) for shape in others
    ]
    single = row("depthwise_conv1d", "fwd", SHAPE, "stock", 99.0)
    return [*rows, single | {"dtype": "float16"}]


def test_lines_go_through_the_rows():
    figure = pictures.draw_rows(sweep_rows())["depthwise_conv1d_sweep"]
    lines = [
        {
            line.get_label(): dict(zip(*line.get_data(), strict=True))
            for line in axes.lines
        }
        for axes in figure.axes
    ]
    frames = {n: 1e-6 * n * 512 for n in (800, 1280, 25600)}
    channels = {n: 1e-6 * n * 25600 for n in (144, 512, 1024)}
    assert len(lines) == 4
    for number, (x, more) in enumerate(
        ((frames, 1), (frames, 3), (channels, 1), (channels, 3))
    ):
        assert lines[number].keys() == {"stock", "triton"}
        for impl, factor in (("stock", 5), ("triton", 1)):
            expected = {n: factor * more * ms for n, ms in x.items()}
            assert lines[number][impl] == pytest.approx(expected)
            assert list(lines[number][impl]) == sorted(x)


def test_lines_need_more_than_one_size():
    rows = [row("depthwise_conv1d", "fwd", SHAPE, "stock", 1.0)]
    assert "depthwise_conv1d_sweep" not in pictures.draw_rows(rows)


# Roofline

COPY_MS, MATMUL_MS = 0.02, 0.25


def roofline_rows():
    linear = "M25600_K512_N2048"
    return [
        row("depthwise_conv1d", "fwd", SHAPE, "limit", COPY_MS),
        row("depthwise_conv1d", "fwd", SHAPE, "stock", 0.4),
        row("depthwise_conv1d", "fwd", SHAPE, "triton", 0.04),
        row("geglu_linear", "fwd", linear, "matmul_only", MATMUL_MS),
        row("geglu_linear", "fwd", linear, "eager", 0.75),
        row("geglu_linear", "fwd", linear, "compile", 0.5),
        # Wall time is none of the GPU's.
        row("geglu_linear", "fwd_wall", linear, "triton", 1e-3),
    ]


def test_roofline_shows_rates_and_measured_ceilings():
    figure = pictures.draw_rows(roofline_rows())["roofline"]
    forward, both = figure.axes
    points = {}
    for line in forward.lines:
        x, y = line.get_data()
        if line.get_marker() != "None":
            points[round(x[0], 3), line.get_marker()] = y[0]
    # 62 operations for 4 bytes of the depthwise op; 2 m k n for
    # 2 (m k + k n + m n) bytes of the matmul.
    elements, flops = 64 * 400 * 512, 2 * 25600 * 512 * 4096
    moved = 2 * (25600 * 512 + 512 * 4096 + 25600 * 4096)
    matmul = round(flops / moved, 3)
    assert points == pytest.approx(
        {
            (15.5, "_"): 62 * elements / COPY_MS / 1e9,
            (15.5, "s"): 62 * elements / 0.4 / 1e9,
            (15.5, "o"): 62 * elements / 0.04 / 1e9,
            (matmul, "_"): flops / MATMUL_MS / 1e9,
            # The faster one of the others.
            (matmul, "s"): flops / 0.5 / 1e9,
        }
    )
    copied, multiplied = 4 * elements / COPY_MS / 1e9, flops / MATMUL_MS / 1e9
    roof = max(forward.lines, key=lambda line: len(line.get_xdata()))
    for x, y in zip(*roof.get_data(), strict=True):
        assert y == pytest.approx(min(copied * x, multiplied))
    assert f"copy {copied:.2f} TB/s" in forward.texts[0].get_text()
    assert f"matmul {multiplied:.0f} TFLOP/s" in forward.texts[0].get_text()
    assert not [line for line in both.lines if len(line.get_xdata()) < 9]


def test_roofline_needs_a_ceiling():
    rows = [r for r in roofline_rows() if r["impl"] in ("stock", "triton")]
    assert "roofline" not in pictures.draw_rows(rows)
    copies = [r for r in roofline_rows() if r["op"] == "depthwise_conv1d"]
    figure = pictures.draw_rows(copies)["roofline"]
    assert figure.axes[0].texts[0].get_text().startswith("copy")


def test_a_row_tells_its_case():
    known = [case for case in CASES if case_of(case.op, "x", case.shape)]
    for case in known:
        assert case_of(case.op, case.dtype, case.shape) == case
    assert {case.op for case in CASES} - {case.op for case in known} == {
        "convolution_frontend",
        "geglu_ladder",
        "train_step",
    }
    for shape in ("", "B64", "B64_T400_C512_K31_new", "M1_K2_N3"):
        assert case_of("depthwise_conv1d", "bfloat16", shape) is None


@pytest.mark.parametrize("backward", [False, True])
def test_every_floor_that_is_measured_has_its_work(backward):
    for case in CASES:
        floors = {
            impl
            for timed in measure.PASSES[case.kind]
            for impl in timed.impls
            if impl in measure.UNCHECKED
        }
        counted = work(case, backward)
        if floors:
            assert counted.bytes_moved > 0 and counted.flops > 0
    chunks = replace(DEPTHWISE, chunk=8)
    assert work(chunks, backward) == work(DEPTHWISE, backward)


# The command


def test_files_are_drawn_of_a_table(table, tmp_path, capsys):
    rows = [*module_rows(), *sweep_rows(), *roofline_rows()[:1]]
    folder = tmp_path / "new" / "png"
    arguments = ["bench", "--from", str(table(rows)), "--png", str(folder)]
    assert cli.main(arguments) == 0
    assert {path.name for path in folder.iterdir()} == {
        "conv_module.png",
        "depthwise_conv1d.png",
        "depthwise_conv1d_sweep.png",
        "roofline.png",
    }
    for path in folder.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert cli.main([*arguments, "--op", "conv_module", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == (
        f"speechbrain-triton: in '{folder}': conv_module.png, roofline.png\n"
    )


def test_measured_rows_are_drawn(monkeypatch, tmp_path, capsys):
    def measured(case, impl):
        for timed in measure.PASSES[case.kind]:
            if impl in timed.impls:
                yield timed.name, Timing(1.0, 0.5, 2.0, 3.0)

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(measure, "measure", measured)
    monkeypatch.setattr(command, "_compile_all", lambda chosen: iter(()))
    monkeypatch.setattr(
        command, "_machine", lambda commit: ("a card", "2.x", "3.x", commit)
    )
    path = tmp_path / "rows.csv"
    arguments = ("--op", "geglu_ladder", "--output", str(path))
    options = ("--png", str(tmp_path), "--commit", "c0ffee")
    assert cli.main(["bench", *arguments, *options]) == 0
    assert (tmp_path / "geglu_ladder.png").exists()
    figure = pictures.draw_rows(read_rows(path))["geglu_ladder"]
    assert set(bars(figure.axes[0])["triton"]) == {1.0}
    assert "geglu_ladder.png" in capsys.readouterr().err


def test_rows_without_a_picture(table, tmp_path, capsys):
    rows = [row("conv_module", "fwd", SHAPE, "stock", 1.0)]
    arguments = ["bench", "--from", str(table(rows)), "--png", str(tmp_path)]
    assert cli.main(arguments) == 0
    assert capsys.readouterr().err.endswith("no picture shows these rows\n")


@pytest.mark.parametrize(
    "options, message",
    [
        (("--quick",), "--quick is of rows that are measured"),
        (("--output", "other.csv"), "--output is of rows that are measured"),
        (("--shape", "K32"), "has no such rows"),
        (("--png", "rows.png"), "--png takes a folder"),
        (("--png", "rows.csv"), "'rows.csv' names a file"),
    ],
)
def test_options_that_do_not_go_together(
    table, monkeypatch, capsys, options, message
):
    path = table(module_rows())
    monkeypatch.chdir(path.parent)
    assert cli.main(["bench", "--from", path.name, *options]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert [other.name for other in path.parent.iterdir()] == [path.name]


def test_without_matplotlib(table, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for arguments in (["--from", str(table(module_rows()))], ["--quick"]):
        assert (
            cli.main(["bench", *arguments, "--png", str(tmp_path / "png")]) == 2
        )
        assert capsys.readouterr().err == (
            "speechbrain-triton bench: error: --png needs matplotlib: pip "
            "install matplotlib.\n"
        )
    assert not (tmp_path / "png").exists()


def test_a_table_is_printed_without_matplotlib(table, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = table(module_rows())
    assert cli.main(["bench", "--from", str(path)]) == 0
    assert capsys.readouterr().out.count("conv_module") == 12
