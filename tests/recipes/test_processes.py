"""Runs in processes of their own: killed ones, several at once, real data."""

import csv
import os
import signal
import time
from pathlib import Path

import pytest
from recipe_runs import (
    EXACT,
    FAST_YAML,
    ROOT,
    arguments,
    finish,
    losses,
    run_here,
    start,
)

from speechbrain_triton.runs import read_run
from speechbrain_triton.training.tokens import make_tokenizer

FAST_AN4 = {"yaml": FAST_YAML, "frontend_channels": 8}


def test_killed_within_an_epoch_goes_on_as_if_it_had_not_been(
    longer_corpus, tmp_path
):
    options = {
        "training_steps": 50,
        "ckpt_interval_steps": 3,
        "ckpt_interval_minutes": 0,
        "valid_every": 2,
        "num_workers": 1,
        **EXACT,
    }
    whole = start(arguments(longer_corpus, tmp_path / "whole", **options))
    argv = arguments(longer_corpus, tmp_path / "killed", **options)
    with open(tmp_path / "log", "w") as log:
        killed = start(argv, log=log)
        _wait_for_step(killed, tmp_path / "killed" / "steps.csv", 26)
        os.kill(killed.pid, signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
    # 40 training utterances in batches of 2: an epoch has 20 steps.
    reached = max(losses(tmp_path / "killed"))
    assert reached < 40, "the kill came too late to be within epoch 2"
    assert not list((tmp_path / "killed").glob("wer_*.txt"))

    finish(start(argv))
    finish(whole)
    expected = losses(tmp_path / "whole")
    assert len(expected) == 50
    assert losses(tmp_path / "killed") == expected
    runs = [read_run(tmp_path / name) for name in ("whole", "killed")]
    sets = [run.evaluations["test"].utterances for run in runs]
    assert sets[0] == sets[1]
    log = (tmp_path / "killed" / "train_log.txt").read_text()
    lines = [line for line in log.splitlines() if line.startswith("epoch")]
    assert [line.split(",")[0] for line in lines] == [
        "epoch: 1",
        "epoch: 2",
        "epoch: 3",
    ]
    # The clock of epoch 2 ran in two processes, so its time is not known.
    assert ["seconds" in line for line in lines] == [True, False, True]


def test_interrupted_says_so_in_a_line_and_goes_on(longer_corpus, tmp_path):
    argv = arguments(longer_corpus, tmp_path / "run", training_steps=30)
    argv.remove("--noprogressbar")
    process = start(argv)
    _wait_for_step(process, tmp_path / "run" / "steps.csv", 22)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert output.splitlines()[-1] == (
        "train.py: interrupted; the same command goes on from the last "
        "checkpoint, if there is one."
    )
    assert "Traceback" not in output
    # No bar where nobody watches.
    assert "\r" not in output and "it/s" not in output
    finish(start(argv))
    assert max(losses(tmp_path / "run")) == 30


def _wait_for_step(process, path: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, "it ended before it could be killed"
        text = path.read_text() if path.exists() else ""
        if f"\n{step}," in text:
            return
        time.sleep(0.01)
    raise AssertionError(f"step {step} was not reached")


def test_two_processes_share_the_training(corpus, tmp_path):
    argv = arguments(corpus, tmp_path, training_steps=4, streaming=True)
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2"]
    launcher += ["--standalone"]
    finish(start([*argv, "--distributed_backend=gloo"], *launcher))
    # 6 training utterances, 2 in each of 2 batches a step: 2 steps an epoch.
    assert sorted(losses(tmp_path)) == [1, 2, 3, 4]
    log = (tmp_path / "train_log.txt").read_text()
    assert log.count("train loss") == 2 and log.count("test loss") == 2
    utterances = read_run(tmp_path).evaluations["test"].utterances
    assert len({u.key for u in utterances}) == len(utterances) == 4


@pytest.mark.parametrize("options", [{}, FAST_AN4], ids=["conformer", "fast"])
def test_an4_itself(tmp_path, monkeypatch, options):
    default = ROOT.parent / "shared" / "data"
    folder = Path(os.environ.get("SPEECHBRAIN_TRITON_DATA", default), "an4")
    if not folder.is_dir():
        pytest.skip(f"AN4 is not in {folder} (SPEECHBRAIN_TRITON_DATA)")
    argv = arguments(
        folder,
        tmp_path,
        training_steps=3,
        batch_size=12,
        valid_speakers=8,
        test_beam_search=False,
        **options,
    )
    assert run_here(argv, monkeypatch) == 0
    utterances = read_run(tmp_path).evaluations["test"].utterances
    assert len(utterances) == 130
    assert sum(len(u.reference) for u in utterances) == 773
    if options:
        assert unalignable(tmp_path / "save", "unigram", 60) == 0
        assert unalignable(tmp_path / "save", "char", 32) > 30


def unalignable(save, token_type, count):
    """Training utterances with more labels than frames of 80 ms."""
    train = save / "train.csv"
    tokenizer = make_tokenizer(token_type, train, save, count)
    with train.open(encoding="utf-8") as file:
        return sum(
            len(tokenizer.encode(row["wrd"])) > 12.5 * float(row["duration"])
            for row in csv.DictReader(file)
        )
