import math
import os

import pytest
from run_folders import HAND_COUNTED, write_wer

from speechbrain_triton.runs import Curve, RunError, Training, read_run


def test_really_trained_run(trained_runs):
    run = read_run(trained_runs[1])
    assert list(run.evaluations) == ["test"]
    decoded = {u.key: u.hypothesis for u in run.evaluations["test"].utterances}
    assert decoded["spk1-0002"] == ("four", "five")
    assert decoded["spk2-0002"] == ("",)
    assert run.settings["conv_backend"] == "triton"
    assert run.settings["kernels.conv"] == "triton"
    assert run.settings["streaming"] is True
    assert run.settings["sampler.test_config.chunk_size"] == 16
    # Given on the command line: hyperparams.yaml still says fp32.
    assert run.settings["precision"] == "bf16"
    assert run.settings["eval_precision"] == "fp32"
    assert run.training.epochs == 3
    assert run.training.epoch_loaded == 3
    assert run.training.seconds_per_epoch == 20
    assert run.training.peak_mib == 256
    assert 0 < run.training.valid_loss < run.training.train_loss < 1e-3
    assert list(run.curves) == ["train loss", "valid loss"]
    assert run.curves["valid loss"].epochs == (1, 2, 3)
    assert run.curves["valid loss"].values[-1] == run.training.valid_loss
    assert run.versions["python"].startswith("3.")


def test_a_wer_file_is_enough(tmp_path):
    write_wer(tmp_path / "wer_test-clean.txt", HAND_COUNTED)
    write_wer(tmp_path / "wer_test-other.txt", HAND_COUNTED)
    run = read_run(str(tmp_path))
    assert list(run.evaluations) == ["test-clean", "test-other"]
    assert run.settings == {} and run.versions == {} and run.curves == {}
    assert run.training == Training()


def test_log_of_an_interrupted_and_resumed_training(tmp_path, train_log):
    write_wer(tmp_path / "wer_test.txt", HAND_COUNTED)
    for epoch, seconds, loss in ((1, 90, 4.5), (2, 30, 2.25), (2, 12, 2.5)):
        train_log.log_stats(
            {"epoch": epoch, "lr": 1e-3, "optimizer": "AdamW",
             "seconds": float(seconds), "peak_mib": 1000.0 + seconds},
            train_stats={"loss": loss},
            valid_stats={"loss": 250.0, "CER": 12.5, "WER": 40.0},
        )  # fmt: skip
    for epoch in (1, 2):
        train_log.log_stats({"Epoch loaded": epoch}, test_stats={"loss": 3.0})
    run = read_run(tmp_path)
    assert run.curves["train loss"] == Curve((1, 2), (), (4.5, 2.5))
    assert run.curves["valid WER"] == Curve((1, 2), (), (40, 40))
    assert run.training == Training(
        epochs=2,
        seconds_per_epoch=51,
        peak_mib=1090,
        train_loss=2.5,
        valid_loss=250,
        epoch_loaded=2,
    )


def test_log_without_our_keys(tmp_path, train_log):
    write_wer(tmp_path / "wer_test.txt", HAND_COUNTED)
    train_log.log_stats(
        {"epoch": 7, "lr": 0.5, "steps": 100},
        train_stats={"loss": float("nan")},
        valid_stats={"loss": 1.5},
    )
    train_log.log_stats({"Epoch loaded": 7}, test_stats={"WER": 5.0})
    training = read_run(tmp_path).training
    assert training.epochs == 7 and training.valid_loss == 1.5
    assert training.train_loss != training.train_loss
    assert training.seconds_per_epoch is None and training.peak_mib is None


def test_curves_of_what_is_not_logged_in_every_epoch(tmp_path, train_log):
    write_wer(tmp_path / "wer_test.txt", HAND_COUNTED)
    for epoch, valid in ((1, None), (2, {"loss": 3.0}), (3, {"loss": 2.0})):
        train_log.log_stats(
            {"epoch": epoch, "steps": 100 * epoch, "lr": 0.1},
            train_stats={"loss": float("nan") if epoch == 2 else 1.0},
            valid_stats=valid,
        )
    train_log.log_stats({"Epoch loaded": 3}, test_stats={"WER": 5.0})
    curves = read_run(tmp_path).curves
    assert curves.keys() == {"train loss", "valid loss"}
    assert curves["valid loss"] == Curve((2, 3), (200, 300), (3, 2))
    assert curves["train loss"].steps == (100, 200, 300)
    assert math.isnan(curves["train loss"].values[1])


def test_losses_of_steps(tmp_path):
    write_wer(tmp_path / "wer_test.txt", HAND_COUNTED)
    path = tmp_path / "steps.csv"
    path.write_text("step,loss\n")
    assert read_run(tmp_path).curves == {}
    # Interrupted in step 3 and resumed from step 1; step 4 is being written.
    path.write_text("1,4.0\n2,3.0\n3,2.9\n2,2.5\n3,nan\n4,")
    curve = read_run(tmp_path).curves["step loss"]
    assert curve.steps == (1, 2, 3) and curve.epochs == ()
    assert curve.values[:2] == (4, 2.5) and math.isnan(curve.values[2])


def test_only_the_last_session_of_a_run_counts(tmp_path):
    write_wer(tmp_path / "wer_test.txt", HAND_COUNTED)
    (tmp_path / "hyperparams.yaml").write_text("precision: fp32\nlr: 1\n")
    (tmp_path / "log.txt").write_text(
        "Beginning experiment!\n"
        "Info: lr arg overridden by command line input to: 2\n"
        "Using training precision: `--precision=fp16`\n"
        "Beginning experiment!\n"
        "Using training precision: `--precision=bf16`\n"
        "skip_nonfinite_grads which is specified in hparams was overridden by "
        "command line input to: True\n"
    )
    settings = read_run(tmp_path).settings
    assert settings == {
        "precision": "bf16",
        "lr": 1,
        "skip_nonfinite_grads": True,
    }


def test_versions(tmp_path):
    write_wer(tmp_path / "wer_test.txt", HAND_COUNTED)
    (tmp_path / "env.log").write_text(
        "SpeechBrain system description\n====\n"
        "Python version:\n3.12.1 (main) [GCC]\n====\n"
        "Installed Python packages:\nnumpy==2.4\ntorch==2.11.0+cu130\n"
        "-e git+https://example.org/x.git#egg=x\nspeechbrain==1.1.2\n"
        "triton @ file:///a-b/triton-3.6.0-cp312-cp312-linux.whl#sha256=0a\n"
        "torchaudio @ file:///src/torchaudio\n====\n"
        "Git revision:\nabc\n====\nCUDA version:\n13.0"
    )
    assert read_run(tmp_path).versions == {
        "python": "3.12.1",
        "torch": "2.11.0+cu130",
        "triton": "3.6.0",
        "speechbrain": "1.1.2",
        "cuda": "13.0",
    }


def test_no_such_folder(tmp_path):
    missing = tmp_path / "no such run"
    with pytest.raises(FileNotFoundError, match="no such run' does not exist"):
        read_run(missing)


def test_a_file_for_a_folder(tmp_path):
    path = tmp_path / "train_log.txt"
    path.touch()
    with pytest.raises(NotADirectoryError, match=r"train_log\.txt' is a file"):
        read_run(path)


def test_unfinished_runs(tmp_path, train_log):
    with pytest.raises(RunError, match=r"has no wer_\*\.txt"):
        read_run(tmp_path)
    write_wer(tmp_path / "wer_test.txt", HAND_COUNTED)
    for epoch in (1, 2):
        train_log.log_stats({"epoch": epoch}, {"loss": 1.0}, {"loss": 1.0})
    with pytest.raises(RunError, match="unfinished.*after epoch 2 without"):
        read_run(tmp_path)
    train_log.log_stats({"Epoch loaded": 2}, test_stats={"WER": 5.0})
    assert read_run(tmp_path).training.epoch_loaded == 2
    with open(train_log.save_file, "a", encoding="utf-8") as file:
        file.write("\n")
    assert read_run(tmp_path).training.epochs == 2
    train_log.log_stats({"epoch": 3}, {"loss": 1.0}, {"loss": 1.0})
    with pytest.raises(RunError, match="unfinished.*after epoch 3 without"):
        read_run(tmp_path)


@pytest.mark.parametrize("name", ["wer_test.txt", "train_log.txt"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"\x00\x01"])
def test_unreadable_files_are_named(tmp_path, name, content):
    write_wer(tmp_path / "wer_test.txt", HAND_COUNTED)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RunError) as error:
        read_run(tmp_path)
    assert str(tmp_path / name) in str(error.value)


def test_what_is_no_regular_file_is_named(tmp_path):
    os.mkfifo(tmp_path / "wer_pipe.txt")
    with pytest.raises(RunError, match=r"wer_pipe\.txt' is not a regular"):
        read_run(tmp_path)
