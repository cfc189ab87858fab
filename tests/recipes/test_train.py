"""Recipes train, test and refuse, in this process and on tiny data."""

import importlib.util
import subprocess
import sys

import pytest
import torch
from recipe_runs import (
    EXACT,
    FAST,
    FAST_YAML,
    SPOKEN_NUMBERS,
    arguments,
    losses,
    run_here,
)

from speechbrain_triton.runs import read_run

HOLD_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""
ON_GPU = torch.cuda.is_available()


def words_right(run, test_set="test"):
    return [
        u.hypothesis == u.reference
        for u in run.evaluations[test_set].utterances
    ]


def test_learns_to_read_tones(longer_corpus, tmp_path, monkeypatch):
    argv = arguments(
        longer_corpus,
        tmp_path,
        training_steps=250,
        d_model=32,
        joint_dim=32,
        batch_size=8,
        warmup_steps=20,
        lr=0.008,
        test_beam_search=True,
        **EXACT,
    )
    assert run_here(argv, monkeypatch) == 0
    run = read_run(tmp_path)
    assert sorted(run.evaluations) == ["test", "test_beam"]
    for name in run.evaluations:
        right = words_right(run, name)
        assert sum(right) >= len(right) - 1 == 7, run.evaluations[name]
    for name in ("cer_test.txt", "cer_test_beam.txt"):
        assert (tmp_path / name).read_text().startswith("%WER ")
    assert run.settings["training_steps"] == 250
    assert max(losses(tmp_path)) == 250
    assert run.training.seconds_per_epoch > 0
    assert run.training.peak_mib is None


def test_streaming_is_tested_in_chunks_too(corpus, tmp_path, monkeypatch):
    argv = arguments(corpus, tmp_path, training_steps=2, streaming=True)
    assert run_here(argv, monkeypatch) == 0
    sets = read_run(tmp_path).evaluations
    assert sorted(sets) == ["test", "test_chunk16_left4"]
    log = (tmp_path / "train_log.txt").read_text()
    assert "set: test_chunk16_left4 - test loss:" in log


@pytest.mark.skipif(ON_GPU, reason="runs kernels in Triton's interpreter")
def test_kernels_give_the_losses_of_stock(
    corpus, tmp_path, monkeypatch, launches
):
    curves = {}
    for backend in ("torch", "triton"):
        # The device is checked before; here the CPU counts as one, as
        # TRITON_INTERPRET=1 is set.
        argv = arguments(
            corpus,
            tmp_path / backend,
            training_steps=3,
            conv_backend=backend,
            streaming=True,
            **EXACT,
        )
        assert bool(launches) is False
        assert run_here(argv, monkeypatch) == 0
        curves[backend] = losses(tmp_path / backend)
    assert launches["conv_kernel"] > 0
    assert launches["weight_grad_kernel"] > 0
    assert len(curves["torch"]) == 3
    assert curves["triton"] == pytest.approx(curves["torch"], rel=1e-4)


def test_fast_conformer_learns_to_read_tones(
    longer_corpus, tmp_path, monkeypatch
):
    argv = arguments(
        longer_corpus,
        tmp_path,
        training_steps=200,
        d_model=32,
        joint_dim=32,
        batch_size=8,
        warmup_steps=20,
        lr=0.008,
        n_mels=40,
        streaming=True,
        **EXACT,
        **FAST,
    )
    assert run_here(argv, monkeypatch) == 0
    run = read_run(tmp_path)
    assert sorted(run.evaluations) == ["test", "test_chunk8_left4"]
    right = words_right(run)
    assert sum(right) >= len(right) - 1 == 7, run.evaluations["test"]
    log = (tmp_path / "log.txt").read_text()
    assert "frontend=auto: 1 module, torch path" in log


@pytest.mark.skipif(ON_GPU, reason="runs kernels in Triton's interpreter")
def test_each_flag_of_the_fast_conformer_gives_the_losses_of_torch(
    corpus, tmp_path, monkeypatch, launches
):
    curves = {}
    for backends in ("torch torch", "triton torch", "torch triton"):
        conv, frontend = backends.split()
        argv = arguments(
            corpus,
            tmp_path / backends,
            training_steps=1,
            n_mels=8,
            conv_backend=conv,
            frontend_backend=frontend,
            **EXACT,
            **FAST,
        )
        launches.clear()
        assert run_here(argv, monkeypatch) == 0
        assert ("conv_kernel" in launches) == (conv == "triton")
        assert bool(launches) == ("triton" in backends)
        curves[backends] = losses(tmp_path / backends)
    for curve in curves.values():
        assert curve == pytest.approx(curves["torch torch"], rel=1e-4)


def test_losses_and_searches_get_the_lengths_of_the_front_end(
    corpus, tmp_path, monkeypatch
):
    from speechbrain_triton.modules import FastConformerFrontEnd
    from speechbrain_triton.training import TransducerBrain
    from speechbrain_triton.training.decoding import GreedySearcher

    inputs, losses_got, searches_got = [], [], []
    forward = FastConformerFrontEnd.forward
    objectives = TransducerBrain.compute_objectives
    search = GreedySearcher.forward

    def recorded_forward(self, x, lengths):
        inputs.append((lengths * x.shape[1]).round())
        return forward(self, x, lengths)

    def recorded_objectives(self, outputs, batch, stage):
        T = outputs["logits"].shape[1]
        losses_got.append((outputs["wav_lens"] * T).round())
        return objectives(self, outputs, batch, stage)

    def recorded_search(self, x, frames):
        searches_got.append(frames)
        return search(self, x, frames)

    monkeypatch.setattr(FastConformerFrontEnd, "forward", recorded_forward)
    monkeypatch.setattr(
        TransducerBrain, "compute_objectives", recorded_objectives
    )
    monkeypatch.setattr(GreedySearcher, "forward", recorded_search)
    argv = arguments(corpus, tmp_path, training_steps=3, **FAST)
    assert run_here(argv, monkeypatch) == 0
    assert len(inputs) == len(losses_got) > len(searches_got) > 0
    expected = [(frames / 8).ceil().tolist() for frames in inputs]
    assert [lens.tolist() for lens in losses_got] == expected
    assert [f.tolist() for f in searches_got] == expected[-len(searches_got) :]


@pytest.mark.skipif(
    importlib.util.find_spec("espeakng_loader") is None,
    reason="needs the package espeakng-loader",
)
def test_fast_conformer_trains_on_spoken_numbers(tmp_path, monkeypatch):
    argv = arguments(
        tmp_path / "corpus",
        tmp_path / "run",
        recipe=SPOKEN_NUMBERS,
        training_steps=2,
        train_utterances=4,
        valid_utterances=2,
        test_utterances=2,
        yaml=FAST_YAML,
        ffn="geglu",
    )
    script = SPOKEN_NUMBERS / "train.py"
    assert run_here(argv, monkeypatch, script) == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "feedforwards: ffn=geglu: 2 modules, d_ffn 32, approx" in log
    assert len(losses(tmp_path / "run")) == 2
    assert len(read_run(tmp_path / "run").evaluations["test"].utterances) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_on_the_gpu(corpus, tmp_path, monkeypatch, launches, precision):
    argv = arguments(
        corpus,
        tmp_path,
        device="cuda",
        training_steps=4,
        conv_backend="triton",
        streaming=True,
        precision=precision,
        test_beam_search=True,
        num_workers=1,
    )
    assert run_here(argv, monkeypatch) == 0
    assert launches["weight_grad_kernel"] > 0
    run = read_run(tmp_path)
    assert len(run.evaluations) == 4
    assert run.training.peak_mib > 0
    assert run.settings["precision"] == precision


@pytest.mark.skipif(ON_GPU, reason="runs kernels in Triton's interpreter")
def test_one_checkpoint_gives_the_same_words_off_and_on(
    corpus, tmp_path, monkeypatch, launches
):
    trained = arguments(corpus, tmp_path / "trained", training_steps=40)
    assert run_here(trained, monkeypatch) == 0
    runs = {}
    for backend in ("torch", "triton"):
        argv = arguments(
            corpus,
            tmp_path / backend,
            save_folder=tmp_path / "trained" / "save",
            skip_training=True,
            conv_backend=backend,
        )
        assert run_here(argv, monkeypatch) == 0
        runs[backend] = read_run(tmp_path / backend)
    assert launches["conv_kernel"] > 0
    off, on = (runs[b].evaluations["test"].utterances for b in runs)
    assert off == on
    assert runs["torch"].settings["conv_backend"] == "torch"
    assert runs["triton"].settings["conv_backend"] == "triton"
    assert not (tmp_path / "triton" / "steps.csv").exists()


def test_finished_run_is_tested_again_but_not_trained(
    corpus, tmp_path, monkeypatch
):
    argv = arguments(corpus, tmp_path, training_steps=3)
    assert run_here(argv, monkeypatch) == 0
    steps = (tmp_path / "steps.csv").read_text()
    assert run_here(argv, monkeypatch) == 0
    assert (tmp_path / "steps.csv").read_text() == steps
    log = (tmp_path / "train_log.txt").read_text()
    assert log.count("train loss") == 1
    assert log.count("test WER") == 2


def test_last_epoch_is_validated_and_the_best_averaged(
    corpus, tmp_path, monkeypatch
):
    argv = arguments(
        corpus,
        tmp_path,
        training_steps=8,
        batch_size=3,
        valid_every=2,
        avg_checkpoints=2,
        token_type="word",
    )
    assert run_here(argv, monkeypatch) == 0
    lines = (tmp_path / "train_log.txt").read_text().splitlines()
    trained = [line for line in lines if line.startswith("epoch: ")]
    # 6 training utterances in batches of 3 make epochs of 2 steps.
    assert ["valid WER" in line for line in trained] == [False, True] * 2


def test_step_with_non_finite_gradients_is_skipped(
    corpus, tmp_path, monkeypatch
):
    from speechbrain_triton.training import TransducerBrain

    calls = []
    before = TransducerBrain.compute_objectives

    def sometimes_broken(self, outputs, batch, stage):
        loss = before(self, outputs, batch, stage)
        calls.append(stage)
        weight = self.modules.proj_ctc.w.weight
        return loss + weight.sum() * float("nan") if len(calls) == 2 else loss

    monkeypatch.setattr(TransducerBrain, "compute_objectives", sometimes_broken)
    argv = arguments(corpus, tmp_path, training_steps=3)
    assert run_here(argv, monkeypatch) == 0
    log = (tmp_path / "train_log.txt").read_text()
    assert "steps: 3" in log and "skipped_steps: 1" in log
    assert "nan" not in log.lower().replace("non", "")


def test_more_labels_than_frames_is_said_and_survived(
    corpus, tmp_path, monkeypatch, capfd
):
    manifest = tmp_path / "save" / "train.csv"
    argv = arguments(corpus, tmp_path, training_steps=2)
    assert run_here(argv, monkeypatch) == 0
    text = manifest.read_text().splitlines()
    letters = " ".join("ABCD" * 12)
    longer = [
        text[0],
        *(line.rsplit(",", 1)[0] + "," + letters for line in text[1:]),
    ]
    data = tmp_path / "long"
    data.mkdir()
    (data / "train.csv").write_text("\n".join(longer) + "\n")
    argv = arguments(
        corpus,
        tmp_path / "again",
        training_steps=3,
        train_csv=data / "train.csv",
    )
    assert run_here(argv, monkeypatch) == 0
    curve = losses(tmp_path / "again")
    assert all(0 < loss < 1e4 for loss in curve.values()), curve
    log = (tmp_path / "again" / "log.txt").read_text()
    assert "6 utterances of epoch 1 had more labels than encoder" in log


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "bf16"}, "precision=bf16 needs a GPU"),
        ({"conv_backend": "Triton"}, "conv='Triton' is not one of"),
        (
            {**FAST, "frontend_backend": "Triton"},
            "frontend='Triton' is not one of",
        ),
        ({"ffn": "GEGLU"}, "ffn='GEGLU' is not one of 'standard', 'geglu'"),
        ({"ffn": "geglu", "ffn_backend": ""}, "ffn=None is not one of"),
        ({"ffn_backend": "triton"}, "the model has no GEGLUFeedForward"),
        ({"streaming": "yes"}, "streaming='yes' is not one of True, False"),
        ({"streaming": ""}, "streaming=None is not one of True, False"),
        ({"test_beam_search": 1}, "test_beam_search=1 is not one of"),
        ({"training_steps": 0}, "training_steps=0 is not a positive integer"),
        ({"token_type": "letters"}, "token_type='letters' is not one of"),
        ({"output_neurons": 4}, "output_neurons=4 is too small"),
        ({"skip_training": True}, "holds no checkpoint of a validated epoch"),
        ({"beam_size": 1}, "beam_size=1 must be 2 or more"),
        ({"no_such_key": 1}, "no_such_key"),
        ({"data_folder": "/nowhere/at/all"}, "/nowhere/at/all"),
    ],
)
def test_wrong_argument_gets_a_sentence(
    corpus, tmp_path, monkeypatch, capsys, options, message
):
    options = {"training_steps": 2, "data_folder": corpus, **options}
    argv = arguments(output_folder=tmp_path, **options)
    assert run_here(argv, monkeypatch) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_two_processes_do_not_train_in_one_folder(
    corpus, tmp_path, monkeypatch, capsys
):
    argv = arguments(corpus, tmp_path, training_steps=1)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, tmp_path / ".lock0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"locked\n"
    assert run_here(argv, monkeypatch) == 2
    holder.communicate()
    assert "another process is working in" in capsys.readouterr().err
    assert run_here(argv, monkeypatch) == 0
    log = (tmp_path / "log.txt").read_text()
    assert "kernels: conv=auto: 1 module" in log


@pytest.mark.parametrize("device", ["cuda:99", "gpu"])
def test_unusable_device_is_one_sentence(
    device, corpus, tmp_path, monkeypatch, capsys
):
    argv = arguments(corpus, tmp_path, device=device)
    assert run_here(argv, monkeypatch) == 2
    assert f"device={device} cannot be used" in capsys.readouterr().err
