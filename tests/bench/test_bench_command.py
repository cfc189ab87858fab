"""Rows, files and messages of ``bench``, with made-up times."""

import csv
import importlib.util
import io
import json

import pytest
import torch

from speechbrain_triton import cli
from speechbrain_triton.bench import (
    command,
    measure,
    step_profile,
    train_step,
    transducer_loss,
)
from speechbrain_triton.bench.check import CheckFailed
from speechbrain_triton.bench.timing import Timing

OBSTACLE = command._obstacle
MILLISECONDS = {
    "stock": 1.0,
    "eager": 1.0,
    "channels_last": 0.75,
    "compile": 0.5,
    "liger": 0.25,
    "torchaudio": 2.0,
    "numba": 1.0,
    "matmul_only": 0.1,
    "triton": 0.125,
    "triton_inplace": 0.1,
    "triton_fused_joint": 0.0625,
    "limit": 0.1,
}


@pytest.fixture
def bench(monkeypatch, tmp_path, capsys):
    """Run the command where each pass takes what MILLISECONDS says."""

    def measured(case, impl):
        for timed in measure.PASSES[case.kind]:
            if impl in timed.impls:
                ms = MILLISECONDS[impl]
                yield timed.name, Timing(ms, ms / 2, ms * 2, 3.0000001)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(measure, "measure", measured)
    monkeypatch.setattr(command, "_compile_all", lambda chosen: iter(()))
    monkeypatch.setattr(command, "_obstacle", lambda impl: None)
    monkeypatch.setattr(
        command, "_machine", lambda commit: ("a card", "2.x", "3.x", commit)
    )

    def run(*arguments, code=0):
        path = tmp_path / "rows" / "table.csv"
        assert code == cli.main(
            ["bench", "--commit", "c0ffee", "--output", str(path), *arguments]
        )
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return rows, capsys.readouterr()

    return run


def keys(rows):
    return [(row["op"], row["pass"], row["impl"]) for row in rows]


def test_rows_of_a_quick_run(bench):
    rows, _ = bench("--quick")
    assert tuple(rows[0]) == command.COLUMNS
    walls = ("fwd", "fwd_bwd", "fwd_wall", "fwd_bwd_wall")
    both = ("fwd", "fwd_bwd", "fwd_gpu", "fwd_bwd_gpu")
    assert keys(rows) == [
        *(("depthwise_conv1d", name, "stock") for name in walls),
        *(("depthwise_conv1d", name, "triton") for name in walls),
        *(("depthwise_conv1d", name, "limit") for name in walls[:2]),
        *(("conv_module", name, "stock") for name in both),
        *(("conv_module", name, "triton") for name in both),
        *(("conv_module", name, "limit") for name in both[2:]),
        *(("frontend", name, "stock") for name in both),
        *(("frontend", name, "channels_last") for name in both),
        *(("frontend", name, "triton") for name in both),
        *(("frontend", name, "limit") for name in both[2:]),
        *(
            ("convolution_frontend", name, impl)
            for impl in ("stock", "channels_last", "triton")
            for name in both
        ),
        *(
            ("geglu_linear", name, impl)
            for impl in ("eager", "compile", "liger")
            for name in walls
        ),
        *(("geglu_linear", name, "matmul_only") for name in walls[:2]),
        *(("geglu_linear", name, "triton") for name in walls),
        *(("geglu_ffn", name, "stock") for name in both),
        *(("geglu_ffn", name, "triton") for name in both),
        *(("geglu_ffn", name, "limit") for name in both[2:]),
        *(
            ("geglu_ladder", "fwd", impl)
            for impl in ("eager", "compile", "triton")
        ),
        *(
            ("transducer_loss", name, impl)
            for impl in ("torchaudio", "numba", "triton")
            for name in walls[:2]
        ),
        ("transducer_loss", "fwd_bwd", "triton_inplace"),
        *(("transducer_loss", name, "limit") for name in walls[:2]),
        *(
            ("transducer_joint_loss", name, impl)
            for impl in (
                "torchaudio",
                "numba",
                "triton",
                "triton_fused_joint",
                "limit",
            )
            for name in walls[:2]
        ),
    ]
    assert rows[4] == {
        "op": "depthwise_conv1d",
        "pass": "fwd",
        "dtype": "bfloat16",
        "shape": "B64_T400_C512_K31",
        "impl": "triton",
        "median_ms": "0.125",
        "p20_ms": "0.0625",
        "p80_ms": "0.25",
        "peak_mib": "3.0",
        "gpu": "a card",
        "torch": "2.x",
        "triton": "3.x",
        "commit": "c0ffee",
    }


def test_options_choose_rows(bench):
    rows, _ = bench("--op", "conv_module", "--shape", "B16_", "--impl", "stock")
    assert {row["shape"] for row in rows} == {
        f"B16_T400_C512_K31{chunk}" for chunk in ("", "_chunk16", "_chunk8")
    }
    assert {row["impl"] for row in rows} == {"stock"}
    rows, _ = bench("--quick", "--impl", "compile", "stock")
    assert [
        key
        for key in keys(rows)
        if "compile" in key and not key[0].startswith("geglu_l")
    ] == [
        (op, name, "compile")
        for op in command.COMPILED_IF_ASKED
        for name in ("fwd", "fwd_bwd")
    ]


def test_json_has_the_same_rows(bench):
    rows, captured = bench("--quick", "--json")
    printed = json.loads(captured.out)
    assert [{k: str(v) for k, v in row.items()} for row in printed] == rows


def test_table_compares_with_stock(bench):
    _, captured = bench("--quick", "--op", "conv_module")
    (line,) = (
        line
        for line in captured.out.splitlines()
        if "fwd_bwd_gpu" in line and "triton" in line
    )
    assert line.split()[-6:-1] == ["0.1250", "│", "8.0", "│", "3"]


def test_table_compares_with_eager_where_there_is_no_stock(bench):
    _, captured = bench("--quick", "--op", "geglu_linear")
    factors = {}
    for line in captured.out.splitlines():
        cells = [cell.strip() for cell in line.split("│")[1:-1]]
        if "fwd_bwd" in cells:
            factors[cells[4]] = cells[6]
    assert factors == {
        "eager": "1.0",
        "compile": "2.0",
        "liger": "4.0",
        "matmul_only": "10.0",
        "triton": "8.0",
    }


def test_table_compares_losses_with_torchaudio(bench):
    _, captured = bench("--quick", "--op", "transducer_loss")
    factors = {}
    for line in captured.out.splitlines():
        cells = [cell.strip() for cell in line.split("│")[1:-1]]
        if "fwd_bwd" in cells:
            factors[cells[4]] = cells[6]
    assert factors == {
        "torchaudio": "1.0",
        "numba": "2.0",
        "triton": "16.0",
        "triton_inplace": "20.0",
        "limit": "20.0",
    }


def test_a_training_step_is_timed_on_request(bench):
    rows, captured = bench("--quick", "--op", "train_step")
    assert keys(rows) == [
        ("train_step", "step", impl)
        for impl in ("torchaudio", "numba", "triton", "triton_fused_joint")
    ]
    assert {row["shape"] for row in rows} == {"libri_40x15s_full"}
    factors = [
        line.split("│")[7].strip()
        for line in captured.out.splitlines()
        if "train_step" in line
    ]
    assert factors == ["1.0", "2.0", "16.0", "32.0"]
    rows, _ = bench("--shape", "T400")
    assert "train_step" not in {row["op"] for row in rows}


@pytest.mark.parametrize("json_option", [(), ("--json",)])
def test_a_profile_is_printed_beside_the_rows(bench, monkeypatch, json_option):
    monkeypatch.setattr(
        step_profile,
        "profile_step",
        lambda case, impl: {"attention": 3.0, "rest": 1.0},
    )
    options = ("--quick", "--op", "train_step", "conv_module", "--profile")
    rows, captured = bench(*options, *json_option)
    if json_option:
        assert len(json.loads(captured.out)) == len(rows)
    text = captured.err if json_option else captured.out
    cells = [
        [cell.strip() for cell in line.split("│")[3:-1]]
        for line in text.splitlines()
        if "libri_40x15s_full" in line and "%" in line
    ]
    assert cells[:3] == [
        ["torchaudio", "attention", "3.00", "75.0%"],
        ["torchaudio", "rest", "1.00", "25.0%"],
        ["torchaudio", "all", "4.00", "100.0%"],
    ]
    assert len(cells) == 4 * 3


def test_a_profile_needs_a_training_step(capsys):
    assert cli.main(["bench", "--profile"]) == 2
    assert "add --op train_step" in capsys.readouterr().err


def test_without_the_recipe_there_is_no_training_step(bench, monkeypatch):
    def missing(name):
        raise FileNotFoundError("The recipe is gone.")

    monkeypatch.setattr(command, "_obstacle", OBSTACLE)
    monkeypatch.setattr(train_step, "find_recipe", missing)
    options = ("--op", "train_step", "conv_module", "--impl", "triton")
    rows, captured = bench("--quick", *options)
    assert {row["op"] for row in rows} == {"conv_module"}
    assert captured.err.splitlines()[-1] == (
        "speechbrain-triton: no rows of train_step: The recipe is gone."
    )


def test_too_little_memory_costs_the_rows_of_one_implementation(
    bench, monkeypatch
):
    good = measure.measure

    def measured(case, impl):
        if impl == "torchaudio":
            raise torch.OutOfMemoryError("CUDA out of memory.")
        yield from good(case, impl)

    monkeypatch.setattr(measure, "measure", measured)
    options = ("--op", "train_step", "--impl", "torchaudio", "triton")
    rows, captured = bench("--quick", *options, code=1)
    assert [row["impl"] for row in rows] == ["triton"]
    assert captured.err.splitlines()[-1] == (
        "speechbrain-triton: train_step libri_40x15s_full bfloat16 torchaudio: "
        "the GPU has too little memory; no time is reported."
    )


def test_each_row_is_printed_when_it_is_measured(bench):
    rows, captured = bench("--quick", "--op", "geglu_ladder")
    assert captured.err.splitlines() == [
        " ".join(list(row.values())[:9]) for row in rows
    ]


@pytest.mark.parametrize(
    "op, impl, reason",
    [
        (
            "geglu_linear",
            "liger",
            ", which is not installed (pip install liger-kernel).",
        ),
        ("transducer_loss", "numba", ", because numpy is too new."),
        ("transducer_joint_loss", "numba", ", because numpy is too new."),
        ("transducer_loss", "torchaudio", ", because it has no CUDA."),
    ],
)
def test_what_cannot_run_has_no_rows_but_a_note(
    op, impl, reason, bench, monkeypatch
):
    right = importlib.util.find_spec
    obstacles = {"numba": "numpy is too new", "torchaudio": "it has no CUDA"}
    monkeypatch.setattr(command, "_obstacle", OBSTACLE)
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: None if name == "liger_kernel" else right(name),
    )
    monkeypatch.setattr(
        transducer_loss,
        "obstacle",
        lambda other: obstacles[other] if other == impl else None,
    )
    note = f"speechbrain-triton: no rows of {impl}{reason}"
    rows, captured = bench("--op", op)
    timed = {other for p in measure.PASSES[op] for other in p.impls}
    assert {row["impl"] for row in rows} == timed - {impl}
    assert captured.err.splitlines().count(note) == 1
    for arguments in (
        ("--op", op, "--impl", "triton"),
        ("--op", "conv_module"),
    ):
        _, captured = bench(*arguments)
        assert impl not in captured.err


def test_a_failed_check_costs_the_rows_of_one_implementation(
    bench, monkeypatch
):
    good = measure.measure

    def measured(case, impl):
        if impl == "triton" and case.op == "conv_module":
            raise CheckFailed("dx is wrong; no time is reported.")
        yield from good(case, impl)

    monkeypatch.setattr(measure, "measure", measured)
    rows, captured = bench("--quick", code=1)
    implementations = {(row["op"], row["impl"]) for row in rows}
    assert ("conv_module", "triton") not in implementations
    assert ("conv_module", "stock") in implementations
    assert ("conv_module", "limit") in implementations
    assert ("depthwise_conv1d", "triton") in implementations
    assert captured.err.splitlines()[-1] == (
        "speechbrain-triton: dx is wrong; no time is reported."
    )


def test_what_was_measured_before_a_crash_is_kept(bench, monkeypatch, tmp_path):
    good = measure.measure

    def measured(case, impl):
        if case.op == "conv_module":
            raise RuntimeError("the card fell off the bus")
        yield from good(case, impl)

    monkeypatch.setattr(measure, "measure", measured)
    with pytest.raises(RuntimeError, match="fell off"):
        bench("--quick")
    text = (tmp_path / "rows" / "table.csv").read_text(encoding="utf-8")
    ops = {row["op"] for row in csv.DictReader(io.StringIO(text))}
    assert ops == {"depthwise_conv1d"}


def test_a_shape_that_no_case_has(capsys):
    assert cli.main(["bench", "--shape", "K32"]) == 2
    assert "'K32' in its shape" in capsys.readouterr().err


def test_one_dtype(bench, capsys):
    rows, _ = bench("--op", "train_step", "--dtype", "float16")
    assert rows and {row["dtype"] for row in rows} == {"float16"}
    assert cli.main(["bench", "--op", "geglu_ffn", "--dtype", "float32"]) == 2
    error = capsys.readouterr().err
    assert "No case of geglu_ffn is float32; shapes are" in error


def test_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["bench", "--quick"]) == 2
    assert capsys.readouterr().err == (
        "speechbrain-triton bench: error: bench needs a GPU, and torch finds "
        "none here.\n"
    )


def test_help_explains_the_passes(capsys):
    assert cli.main(["bench", "--help"]) == 0
    printed = capsys.readouterr().out
    for passes in measure.PASSES.values():
        for timed in passes:
            assert f"'{timed.name}'" in printed
