"""The bench under torchrun."""

import csv
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_step import FULL

from speechbrain_triton import cli
from speechbrain_triton.bench import command, measure
from speechbrain_triton.bench.check import CheckFailed
from speechbrain_triton.bench.ranks import Ranks, alone, measure_together
from speechbrain_triton.bench.timing import Timing

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


def run_ranks(output, **environment):
    """Time two implementations in two ranks."""
    arguments = ("bench", "--op", "train_step", "--commit", "c0ffee")
    return subprocess.run(
        [
            *(sys.executable, *RANKS, HERE / "rank_worker.py", *arguments),
            *("--impl", "torchaudio", "triton", "--output", output),
        ],
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            "OMP_NUM_THREADS": "1",
            "TRITON_INTERPRET": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        | environment,
        capture_output=True,
        text=True,
        timeout=400,
    )


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def said(process, what):
    """What the ranks said, those of the same implementation in a pair."""
    lines = process.stdout.splitlines()
    by_rank = (
        [
            line.rpartition(" ")[2]
            for line in lines
            if line.startswith(f"{what} of rank {rank}:")
        ]
        for rank in (0, 1)
    )
    return list(zip(*by_rank, strict=True))


def test_two_ranks_train_one_model_and_write_one_row_each(tmp_path):
    process = run_ranks(tmp_path / "rows.csv")
    assert process.returncode == 0, process.stderr
    rows = rows_of(tmp_path / "rows.csv")
    assert [row["impl"] for row in rows] == ["torchaudio", "triton"]
    for row in rows:
        assert row["shape"] == "libri_3x0.3s_chunk2_2gpus"
        # Of rank 1 the time, of rank 0 the memory.
        times = (row["median_ms"], row["p20_ms"], row["p80_ms"])
        assert (*times, row["peak_mib"]) == ("2.0", "1.5", "2.5", "8.0")
        line = " ".join(list(row.values())[:9])
        assert process.stderr.splitlines().count(line) == 1
    assert process.stdout.count("libri_3x0.3s_chunk2_2gpus") == len(rows)
    for first, second in said(process, "batch"):
        assert first != second
    parameters = said(process, "parameters")
    assert len(parameters) == len(rows)
    for first, second in parameters:
        assert first == second


def test_a_check_that_fails_in_one_rank_costs_one_row(tmp_path):
    process = run_ranks(tmp_path / "rows.csv", FAILING="triton")
    assert process.returncode == 1
    assert [row["impl"] for row in rows_of(tmp_path / "rows.csv")] == [
        "torchaudio"
    ]
    note = "speechbrain-triton: triton is wrong in rank 1."
    assert process.stderr.splitlines().count(note) == 1


@pytest.fixture
def torchrun(monkeypatch):
    """Set what torchrun sets, and see two GPUs."""

    def start(rank, world):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a run")
        for name in ("RANK", "LOCAL_RANK"):
            monkeypatch.setenv(name, str(rank))
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            monkeypatch.setenv(name, str(world))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    return start


def test_ranks_are_those_of_torchrun(torchrun, monkeypatch):
    assert Ranks.started() == Ranks(0, 1, 0, 1)
    # Some set it for other ends.
    monkeypatch.setenv("RANK", "5")
    assert Ranks.started() == Ranks(0, 1, 0, 1)
    torchrun(1, 2)
    assert Ranks.started() == Ranks(1, 2, 1, 2)


@pytest.mark.parametrize(
    "options, world, sentence",
    [
        (
            (),
            2,
            "Ops are timed on one GPU, and torchrun started 2 processes; start "
            "bench without it, or with --op train_step alone.",
        ),
        (
            ("--op", "train_step", "geglu_ffn"),
            2,
            "Ops are timed on one GPU, and torchrun started 2 processes; start "
            "bench without it, or with --op train_step alone.",
        ),
        (
            ("--op", "train_step", "--profile"),
            2,
            "--profile is of one GPU, and torchrun started 2 processes; start "
            "bench without it, or with --op train_step alone.",
        ),
        (
            ("--op", "train_step"),
            3,
            "torchrun started 3 processes here, where torch finds 2 GPUs; each "
            "needs its own.",
        ),
    ],
)
def test_refused_in_one_sentence_of_the_first_rank(
    options, world, sentence, torchrun, capsys
):
    torchrun(0, world)
    assert cli.main(["bench", *options]) == 2
    error = f"speechbrain-triton bench: error: {sentence}\n"
    assert capsys.readouterr().err == error
    torchrun(1, world)
    assert cli.main(["bench", *options]) == 0
    assert capsys.readouterr() == ("", "")


def test_one_process_under_torchrun_is_as_without(
    torchrun, monkeypatch, tmp_path
):
    def measured(case, impl):
        # By these SpeechBrain knows of other ranks.
        assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} & set(os.environ)
        yield "step", Timing(1.0, 1.0, 1.0, 1.0)

    def compiled(chosen):
        with alone():
            yield from chosen

    torchrun(0, 1)
    monkeypatch.setattr(measure, "measure", measured)
    monkeypatch.setattr(command, "_compile_all", compiled)
    monkeypatch.setattr(command, "_machine", lambda commit: ("", "", "", ""))
    options = ("--op", "train_step", "--quick", "--impl", "triton")
    path = tmp_path / "rows.csv"
    assert cli.main(["bench", *options, "--output", str(path)]) == 0
    assert [row["shape"] for row in rows_of(path)] == ["libri_40x15s_full"]
    assert os.environ["WORLD_SIZE"] == "1"


def test_a_rank_that_fails_while_it_is_timed_ends(monkeypatch, one_set):
    """It must not go on to another case, while others wait in this one."""

    def timer(call, sets):
        raise CheckFailed("train_step: the loss is nan.")

    monkeypatch.setattr(Ranks, "gather", lambda self, value: [value, None])
    passes = measure.PASSES["train_step"]
    timed = tuple(replace(one, timer=timer) for one in passes)
    monkeypatch.setitem(measure.PASSES, "train_step", timed)
    timings = measure_together(
        FULL, "torchaudio", Ranks(1, 2, 1, 2, kind="cpu"), None
    )
    with pytest.raises(ValueError, match="^Rank 1: train_step: the loss is na"):
        next(timings)


def test_a_shape_says_how_many_gpus():
    assert replace(FULL, gpus=4).shape == "libri_3x0.3s_full_4gpus"
    assert replace(FULL, gpus=1).shape == "libri_3x0.3s_full"
