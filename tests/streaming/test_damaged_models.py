"""``transcribe`` and ``export`` on files that hold something else."""

import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from damaged_files import directory, huge, locked, loop, pipe, put

from speechbrain_triton import cli

SOUND = np.sin(np.arange(8000) / 20)
FLOAT = {"samplerate": 16000, "subtype": "FLOAT"}


def sound(samples, **options):
    options = {"samplerate": 16000, "format": "WAV", **options}
    return lambda path: soundfile.write(path, samples, **options)


def flac(change):
    """A FLAC file with its bytes changed."""

    def write(path):
        soundfile.write(path, SOUND, 16000, format="FLAC")
        path.write_bytes(change(bytearray(path.read_bytes())))

    return write


def promise(content):
    """Let the header say that billions of samples come."""
    content[21] |= 0x0F
    return content


def wav(channels=1, rate=16000, bits=16):
    step = channels * bits // 8
    layout = struct.pack("<IHHIIHH", 16, 1, channels, rate, 0, step, bits)
    return b"RIFF\0\1\0\0WAVEfmt " + layout + b"data\0\1\0\0" + b"\0" * 256


def only_sentence(capsys):
    """The one line that is not of the kernels' choice."""
    out, error = capsys.readouterr()
    lines = [
        line
        for line in error.splitlines()
        if not line.startswith("speechbrain_triton: ")
    ]
    assert out == "" and len(lines) == 1, error
    assert lines[0].startswith("speechbrain-triton ") and ": error: " in error
    return lines[0]


NAN = np.where(np.arange(8000) == 99, np.nan, SOUND)
NO_SOUND = "is not a sound file that can be read"
SOUNDS = [
    (b"", NO_SOUND),
    (b"no sound\n" * 100, NO_SOUND),
    # libmpg123 has much to say about this one.
    (b"ID3" + b"\0" * 1000, NO_SOUND),
    (wav()[:30], NO_SOUND),
    (wav(channels=0), NO_SOUND),
    (wav(channels=5000), NO_SOUND),
    (wav(rate=0), NO_SOUND),
    (wav(bits=0), NO_SOUND),
    (flac(lambda content: content[:60]), NO_SOUND),
    (flac(lambda content: content[:-1]), "t/s.wav' "),
    (flac(promise), "at most 1,073,741,824 samples are read"),
    (sound(SOUND[:0]), "holds no sound"),
    (sound(SOUND[:500]), "holds 31 ms of sound, and the model needs 40 ms"),
    (sound(NAN, subtype="FLOAT"), "samples that are not finite numbers"),
    (sound(NAN * 0 + np.inf, subtype="FLOAT"), "samples that are not finite"),
    (sound(SOUND, samplerate=1), "has 1 samples a second, which cannot be"),
    (sound(SOUND, samplerate=44101), "44101 samples a second, which cannot"),
    (sound(SOUND, samplerate=1999999973), "usual rates such as 8000, 16000"),
    (huge, NO_SOUND),
    (directory, "is no file"),
    (pipe, "is no file"),
    (loop, "does not exist"),
    (locked, "may not be read"),
]


@pytest.mark.parametrize(("content", "reason"), SOUNDS)
def test_no_sound(content, reason, folders, tmp_path, capfd):
    path = tmp_path / "t" / "s.wav"
    path.parent.mkdir()
    put(path, content)
    arguments = ["--backend=torch", str(folders / "conformer"), str(path)]
    assert cli.main(["transcribe", *arguments]) == 2
    sentence = only_sentence(capfd)
    assert f"'{path}'" in sentence and reason in sentence


@pytest.mark.parametrize(
    ("samples", "options"),
    [
        (SOUND, {"subtype": "PCM_U8"}),
        (SOUND, {"samplerate": 44100}),
        (SOUND, {"samplerate": 8000, "subtype": "ALAW"}),
        (np.stack([SOUND] * 5, 1), {"subtype": "DOUBLE"}),
        (SOUND, {"format": "OGG"}),
        (1e30 * SOUND, {"subtype": "FLOAT"}),
    ],
)
@pytest.mark.parametrize(
    "name", ["a b é\n.wav", os.fsdecode(b"\xff.wav")], ids=ascii
)
def test_sound_of_any_kind_and_name(samples, options, name, tmp_path):
    from speechbrain_triton.streaming.audio import read_sound, resample

    sound(samples, **options)(tmp_path / "sound")
    (tmp_path / "sound").rename(tmp_path / name)
    read, rate = read_sound(tmp_path / name)
    assert read.shape == (8000,) and read.isfinite().all()
    assert abs(len(resample(read, rate, 16000)) - 8000 * 16000 / rate) <= 1


def saved(value):
    return lambda path: torch.save(value, path)


NO_FILE = "is not a regular file"
PARTS = ("model.ckpt", "normalizer.ckpt", "tokenizer.ckpt")
MODELS = [
    *[(name, None, "is missing") for name in PARTS],
    *[(name, b"", "is empty") for name in PARTS],
    *[(name, pipe, NO_FILE) for name in PARTS],
    *[(name, directory, NO_FILE) for name in PARTS],
    *[(name, loop, NO_FILE) for name in PARTS],
    *[(name, content, "' cannot be loaded: ")
      for name in PARTS[:2]
      for content in (b"text", b"PK\3\4", huge, saved([1]), saved(Path("/x")),
                      saved(3))],
    ("model.ckpt", saved({"epoch": 1}), "does not fit the hyperparams.yaml"),
    ("normalizer.ckpt", saved({"epoch": 1}), "cannot be loaded: "),
    ("tokenizer.ckpt", huge, "has 200,000,000 bytes; at most 100,000,000"),
    ("tokenizer.ckpt", b"\n", "has 0 tokens, and the model beside it 32"),
    ("tokenizer.ckpt", "é\n".encode("utf-16"), "has 0 tokens, and the model"),
    ("tokenizer.ckpt", b"'A' => 0\n", "cannot be loaded: KeyError"),
    ("hyperparams.yaml", pipe, "has no hyperparams.yaml"),
    ("hyperparams.yaml", huge, "has 200,000,000 bytes"),
    ("hyperparams.yaml", b"fea_streaming_extractor: 1\n", "sample_rate is"),
    ("hyperparams.yaml", b"fea_streaming_extractor: 1\nsample_rate: 16000\n"
     b"x: !new:no.such.Thing\n", "cannot be loaded: "),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "reason"), MODELS)
def test_no_model(name, content, reason, folders, tmp_path, sound_file, capsys):
    folder = shutil.copytree(folders / "conformer", tmp_path / "model")
    if content is None:
        (folder / name).unlink()
    else:
        put(folder / name, content)
    arguments = ["--backend=torch", str(folder), sound_file]
    assert cli.main(["transcribe", *arguments]) == 2
    sentence = only_sentence(capsys)
    assert str(folder) in sentence and reason in sentence


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("streaming_config", "null", "cannot be loaded: "),
        ("kernels", "null", "cannot be loaded: AttributeError"),
        ("conv_backend", "[]", "cannot be loaded: "),
        ("fea_streaming_extractor", "null", "cannot be loaded: "),
        ("tokenizer", "xyz", "cannot be loaded: "),
        ("sample_rate", "1.6e4", "sample_rate is '1.6e4', and a whole number"),
    ],
)
def test_part_that_is_none(
    key, value, reason, folders, tmp_path, sound_file, capsys
):
    folder = shutil.copytree(folders / "conformer", tmp_path / "model")
    path = folder / "hyperparams.yaml"
    blocks = path.read_text().split("\n")
    start = next(i for i, x in enumerate(blocks) if x.startswith(f"{key}:"))
    end = start + 1
    while blocks[end].startswith(" "):
        end += 1
    blocks[start:end] = [f"{key}: {value}"]
    path.write_text("\n".join(blocks))
    arguments = ["--device=cpu", str(folder), sound_file]
    assert cli.main(["transcribe", *arguments]) == 2
    sentence = only_sentence(capsys)
    assert str(folder) in sentence and reason in sentence


def test_parameters_that_are_no_numbers(folders, tmp_path, sound_file, capsys):
    folder = shutil.copytree(folders / "conformer", tmp_path / "model")
    state = torch.load(folder / "model.ckpt")
    state["7.w.bias"][0] = float("nan")
    torch.save(state, folder / "model.ckpt")
    assert (
        cli.main(["transcribe", "--backend=torch", str(folder), sound_file])
        == 2
    )
    assert "7.w.bias holds values that are" in only_sentence(capsys)


def checkpoint(run):
    return max((run / "save").glob("CKPT*"))


def text(change):
    return lambda path: path.write_text(change(path.read_text()))


RUNS = [
    ("save/char_labels.txt", b"", "char_labels.txt' is empty"),
    ("save/char_labels.txt", b"\n", "cannot be exported: 'tokenizer.ckpt' has"),
    ("save/char_labels.txt", b"'A' => 0\n", "exported: it cannot be loaded"),
    ("save/char_labels.txt", pipe, NO_FILE),
    ("CKPT.yaml", b"", "is empty"),
    ("CKPT.yaml", b"\xff\xfe", "is not UTF-8 text"),
    ("CKPT.yaml", b"WER: high\n", "cannot be loaded: "),
    ("CKPT.yaml", b"WER: .nan\nunixtime: 1\nend-of-epoch: true\n", "WER of"),
    ("CKPT.yaml", pipe, NO_FILE),
    ("model.ckpt", b"", "is empty"),
    ("model.ckpt", b"PK\3\4", "model.ckpt' cannot be loaded: "),
    ("model.ckpt", saved([1]), "model.ckpt' cannot be loaded: "),
    ("model.ckpt", pipe, NO_FILE),
    ("normalize.ckpt", b"noise", "normalize.ckpt' cannot be loaded: "),
    ("normalize.ckpt", pipe, NO_FILE),
    ("hyperparams.yaml", b"", "is empty"),
    ("hyperparams.yaml", huge, "has 200,000,000 bytes"),
    ("hyperparams.yaml", b"seed: 1\n", "it is not that of a transducer recipe"),
]  # fmt: skip


@pytest.fixture
def run(runs, tmp_path):
    """A copy of a run that may be damaged."""
    folder = shutil.copytree(runs / "conformer", tmp_path / "run")
    path = folder / "hyperparams.yaml"
    path.write_text(
        path.read_text().replace(str(runs / "conformer"), str(folder))
    )
    return folder


@pytest.fixture
def sound_file(corpus):
    return str(min((corpus / "test").glob("*.flac")))


@pytest.mark.parametrize(("name", "content", "reason"), RUNS)
def test_no_run(name, content, reason, run, tmp_path, capsys):
    inside = run if name.startswith(("save", "hyper")) else checkpoint(run)
    put(inside / name, content)
    assert cli.main(["export", str(run), str(tmp_path / "a/new/folder")]) == 2
    sentence = only_sentence(capsys)
    assert str(run) in sentence and reason in sentence
    # Neither the folder, nor those above it, nor a draft.
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("avg_checkpoints: 2", "avg_checkpoints: many", "avg_checkpoints is"),
        ("chunk_size: 16", "chunk_size: -1", "chunk_size is -1, and a whole"),
        (
            "left_context_size: 4",
            "left_context_size: x",
            "is 'x', and a whole",
        ),
        ("seed: ", "? [a, b]\n: c\nseed: ", "cannot be loaded: TypeError"),
        ("joint_dim: ", "x: &x [*x]\njoint_dim: ", None),
    ],
)
def test_setting_that_is_none(old, new, reason, run, tmp_path, capsys):
    path = run / "hyperparams.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    code = cli.main(["export", str(run), str(tmp_path / "folder")])
    assert code == (0 if reason is None else 2)
    if reason:
        assert reason in only_sentence(capsys)
        assert os.listdir(tmp_path) == ["run"]


TARGETS = [
    (loop, "is there already"),
    (pipe, "is there already"),
    (Path.touch, "is there already"),
    (lambda path: path.symlink_to("nowhere"), "is there already"),
]


@pytest.mark.parametrize(("make", "reason"), TARGETS)
@pytest.mark.parametrize("below", ["", "/below"])
def test_no_folder_to_write(make, reason, below, run, tmp_path, capsys):
    make(tmp_path / "x")
    assert cli.main(["export", str(run), f"{tmp_path}/x{below}"]) == 2
    sentence = only_sentence(capsys)
    assert f"'{tmp_path}/x{below}'" in sentence
    assert ("is not a folder" if below else reason) in sentence
    assert sorted(os.listdir(tmp_path)) == ["run", "x"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space")])
@pytest.mark.parametrize("call", [0, 2])
def test_all_files_or_none(error, call, run, tmp_path, monkeypatch, capsys):
    replace, calls = os.replace, []

    def fails(source, target):
        calls.append(target)
        if len(calls) > call:
            raise error
        replace(source, target)

    monkeypatch.setattr(os, "replace", fails)
    code = cli.main(["export", str(run), str(tmp_path / "a/folder")])
    assert code == (130 if error is KeyboardInterrupt else 2)
    assert len(calls) == call + 1 and os.listdir(tmp_path) == ["run"]
    error = capsys.readouterr().err.splitlines()[-1]
    assert "interrupted" in error or f"'{tmp_path}/a/folder' cannot be" in error


@pytest.mark.parametrize(
    "name",
    # One that is no UTF-8 works too, but SpeechBrain logs it, and
    # pytest-xdist cannot send that home.
    ["a b", "Zoë 漢", "new\nline", "x" * 250],
    ids=["space", "letters", "line end", "long"],
)
def test_any_name_of_a_folder(name, run, tmp_path, sound_file, capsys):
    assert cli.main(["export", str(run), str(tmp_path / name)]) == 0
    assert (
        cli.main(
            ["transcribe", "--backend=torch", str(tmp_path / name), sound_file]
        )
        == 0
    )
    assert "real-time factor" in capsys.readouterr().err
