"""The command ``transcribe``, in this process."""

import builtins
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import soundfile
import torch

from speechbrain_triton import cli
from speechbrain_triton.streaming.audio import read_sound, resample


@pytest.fixture
def sound(corpus):
    return str(sorted((corpus / "test").glob("*.flac"))[0])


def transcribe(*arguments):
    return cli.main(["transcribe", "--device=cpu", *map(str, arguments)])


@pytest.fixture(autouse=True)
def talkative(monkeypatch):
    """Models after two steps say nothing: leave them none but their letters."""
    from speechbrain_triton.streaming import export, loading

    load = loading.load_folder

    def load_folder(*args):
        asr = load(*args)
        with torch.no_grad():
            bias = asr.hparams.transducer_lin.w.bias
            bias[0] = -1e4
            bias[len(asr.hparams.tokenizer) :] = -1e4
        return asr

    for module in (export, loading):
        monkeypatch.setattr(module, "load_folder", load_folder)


@pytest.mark.parametrize("name", ["conformer", "fast_conformer"])
def test_words_and_figures(name, folders, runs, sound, capsys):
    assert transcribe(folders / name, sound, "--chunk_size=4") == 0
    out, error = capsys.readouterr()
    assert out.count("\n") == 1 and len(out) > 1
    assert "real-time factor" in error and "median latency" in error
    # A run is as good as its export, and the whole as its chunks.
    assert transcribe(runs / name, sound, "--chunk-size=4") == 0
    assert capsys.readouterr().out == out
    assert transcribe(folders / name, sound, "--chunk_size=4", "--whole") == 0
    whole = capsys.readouterr()
    assert whole.out == out and "decoded at once" in whole.err


def test_json(folders, sound, capsys):
    options = ("--chunk_size=3", "--left_context=full", "--json")
    assert transcribe(folders / "conformer", sound, *options) == 0
    document = json.loads(capsys.readouterr().out)
    seconds = document["seconds"]
    assert seconds == soundfile.info(sound).duration
    assert document["mode"] == "streaming"
    assert (document["chunk_size"], document["left_context"]) == (3, "full")
    assert document["chunk_seconds"] == pytest.approx(0.12)
    chunks = document["chunks"]
    assert len(chunks) == -(-(seconds // 0.04 + 1) // 3)
    assert document["text"] == "".join(chunk["text"] for chunk in chunks)
    assert len(document["text"]) >= len(document["tokens"]) > 0
    times = sorted(1000 * chunk["latency"] for chunk in chunks)
    assert times[0] <= document["latency_ms"]["median"] <= times[-1]
    assert document["latency_ms"]["p95"] in times
    assert document["real_time_factor"] == pytest.approx(
        sum(times) / 1000 / seconds
    )
    ends = [chunk["end"] for chunk in chunks]
    assert ends == sorted(ends) and ends[-1] == pytest.approx(seconds)
    assert ends[0] == pytest.approx(0.12 + 41 / 16000)
    assert document["kernels"][0].startswith("conv=auto: 2 modules")
    assert transcribe(folders / "conformer", sound, *options, "--whole") == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["tokens"] == document["tokens"]
    assert whole["latency_ms"] is None and whole["mode"] == "whole"


def test_words_are_flushed_as_they_come(folders, sound, monkeypatch):
    printed = []
    monkeypatch.setattr(
        builtins,
        "print",
        lambda *args, **kwargs: printed.append((args, kwargs)),
    )
    assert transcribe(folders / "conformer", sound, "--chunk_size=2") == 0
    words = [(args, kw) for args, kw in printed if kw.get("end") == ""]
    assert len(words) > 2 and all(kw["flush"] for _, kw in words)


def test_other_files_are_mixed_and_resampled(folders, sound, tmp_path, capsys):
    samples, rate = read_sound(sound)
    assert (samples.dim(), samples.dtype, rate) == (1, torch.float32, 16000)
    louder = resample(samples, 16000, 32000)
    path = tmp_path / "stereo.wav"
    channels = torch.stack((1.5 * louder, 0.5 * louder), 1).numpy()
    soundfile.write(path, channels, 32000, subtype="FLOAT")
    mixed, rate = read_sound(path)
    torch.testing.assert_close(mixed, louder)
    back = resample(mixed, rate, 16000)
    assert len(back) == len(samples)
    assert (back - samples).abs().max() < 0.01
    assert transcribe(folders / "conformer", path, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["seconds"] == len(samples) / 16000


def test_resampling_without_torchaudio_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchaudio", None)
    assert resample(torch.zeros(8), 16000, 16000).shape == (8,)
    with pytest.raises(ValueError, match="8000 samples a second .*torchaudio"):
        resample(torch.zeros(8), 8000, 16000)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros(0), "holds no sound"),
        (np.zeros(600), "holds 38 ms of sound, and the model needs 40 ms"),
        (np.full(8000, np.nan), "samples that are not finite numbers"),
        (b"no sound", "is not a sound file that can be read"),
        (None, "does not exist"),
    ],
)
def test_bad_file_is_one_sentence(samples, message, folders, tmp_path, capsys):
    path = tmp_path / "sound.wav"
    if isinstance(samples, bytes):
        path.write_bytes(samples)
    elif samples is not None:
        soundfile.write(path, samples, 16000, subtype="FLOAT")
    assert transcribe(folders / "conformer", path) == 2
    out, error = capsys.readouterr()
    assert message in error and "Traceback" not in error and not out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--chunk_size=0"], "'0' is not a whole number of at least 1"),
        (["--left_context=-1"], "'-1' is neither a whole number of at least 0"),
        (["--left_context=all"], "nor 'full'"),
        (["--backend=cuda"], "invalid choice: 'cuda'"),
        (["--device=cuda:99"], "--device=cuda:99 cannot be used: "),
    ],
)
def test_bad_option_is_one_sentence(options, message, folders, sound, capsys):
    assert transcribe(folders / "conformer", sound, *options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "seed: 1\n"])
def test_no_model_is_one_sentence(content, sound, tmp_path, capsys):
    folder = tmp_path / "folder"
    if content is not None:
        folder.mkdir()
        (folder / "hyperparams.yaml").write_text(content)
    assert transcribe(folder, sound) == 2
    error = capsys.readouterr().err
    assert error.startswith("speechbrain-triton transcribe: error: ")
    assert error.count("\n") == 1


def test_triton_that_cannot_run_is_one_sentence(folders, sound):
    """Not in this process, which may interpret kernels."""
    command = ["transcribe", folders / "conformer", sound]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-m", "speechbrain_triton", *command]
        + ["--backend=triton", "--device=cpu"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert "conv_backend=triton cannot run here because" in done.stderr
    assert "Traceback" not in done.stderr
