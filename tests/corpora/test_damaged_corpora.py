"""Corpora and manifests that are broken in ways that no corpus is."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
from damaged_files import directory, huge, loop, pipe, put

from speechbrain_triton.corpora import (
    prepare_an4,
    prepare_librispeech,
    prepare_spoken_numbers,
)
from speechbrain_triton.corpora.files import write_flac

SOUND = np.arange(8000, dtype=np.int16)


def stereo(path):
    soundfile.write(path, np.zeros((80, 2)), 16000, format="FLAC")


def no_samples(path):
    soundfile.write(path, np.zeros(0), 16000, format="WAV")


def make_an4_csv(root):
    for split in ("train", "test"):
        lines = ["id,speaker,file,transcript"]
        for speaker in ("fash", "fbbh", "mblb", "mblw"):
            file = f"{split}/an1-{speaker}-b.flac"
            write_flac(root / file, SOUND)
            lines.append(f"{split}-{speaker},{speaker},{file},GO")
        (root / f"{split}.csv").write_text("\n".join(lines))


def make_an4_cmu(root):
    (root / "etc").mkdir()
    for split in ("train", "test"):
        ids, texts = [], []
        for speaker in ("fash", "fbbh", "mblb", "mblw"):
            name = f"{split}1-{speaker}-b"
            path = root / "wav" / speaker / f"{name}.raw"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(SOUND.tobytes())
            ids.append(f"{speaker}/{name}\n")
            texts.append(f"GO ({name})\n")
        (root / f"etc/an4_{split}.fileids").write_text("".join(ids))
        (root / f"etc/an4_{split}.transcription").write_text("".join(texts))


def make_librispeech(root):
    for split, speaker in (("train", 7), ("dev", 8)):
        folder = root / split / str(speaker) / "1"
        name = f"{speaker}-1-0000"
        write_flac(folder / f"{name}.flac", SOUND)
        (folder / f"{speaker}-1.trans.txt").write_text(f"{name} GO ON\n")


def an4(root):
    prepare_an4(root, root / "save", valid_speakers=2)


def librispeech(root):
    prepare_librispeech(
        root,
        root / "save",
        train_splits="train",
        valid_splits="dev",
        test_splits="dev",
    )


NO_FILE = "not a regular file"
TEXTS = [
    (b"", "is empty"),
    (b"GO\0", "is a binary file"),
    ("id é".encode("utf-16"), "is a binary file"),
    ("id é".encode("latin-1"), "is not UTF-8 text: byte 0xe9"),
    (huge, "at most 100,"),
    (directory, NO_FILE),
    (pipe, NO_FILE),
]
FLAC = [
    (b"", "is not readable audio"),
    (b"fLaC\0\0", "is not readable audio"),
    (stereo, "has 2 channels, 16000 Hz and 80 frames"),
    (no_samples, "has 1 channels, 16000 Hz and 0 frames"),
    (pipe, ""),
    (directory, ""),
]
LISTED = b"id,speaker,file,transcript\n"
CSV = [
    *[case for case in TEXTS if case[0] not in (directory, pipe)],
    (b"name\n1\n", "lacks the columns"),
    (LISTED + b"x" * 200_000, "line 2 is no row of a table: field larger"),
    (LISTED + b"a,fash,\n", "line 2: the row is too short"),
    (LISTED + b"a,fash,a\tb,GO\n", "line 2: the audio file"),
    (LISTED, "valid_speakers is 2"),
]
CASES = [
    *[(make_an4_csv, an4, "train.csv", *case) for case in CSV],
    *[
        (make_an4_csv, an4, "train/an1-fash-b.flac", *case)
        for case in FLAC
        if callable(case[0]) or case[0]
    ],
    *[(make_an4_cmu, an4, "etc/an4_test.fileids", *case) for case in TEXTS],
    *[
        (make_an4_cmu, an4, "etc/an4_train.transcription", *case)
        for case in [*TEXTS, (loop, "AN4 lacks")]
    ],
    (make_an4_cmu, an4, "wav/fash/train1-fash-b.raw", b"", "has 0 bytes"),
    (make_an4_cmu, an4, "wav/fash/train1-fash-b.raw", pipe, "is missing"),
    *[(make_librispeech, librispeech, "dev/8/1/8-1.trans.txt", content, reason)
      for content, reason in [
          *TEXTS[:5],
          (b"8-1-0000 GO\n8-1-0000 GO\n", "line 2: 8-1-0000 has a transcript"),
          (directory, "lacks its"), (pipe, "lacks its")]],
    *[
        (make_librispeech, librispeech, "dev/8/1/8-1-0000.flac", *case)
        for case in FLAC
    ],
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "prepare", "name", "content", "reason"), CASES
)
def test_named_in_one_sentence(make, prepare, name, content, reason, tmp_path):
    make(tmp_path)
    put(tmp_path / name, content)
    with pytest.raises(ValueError) as refusal:
        prepare(tmp_path)
    sentence = str(refusal.value)
    assert reason in sentence and "\n" not in sentence
    assert Path(name).name in sentence or "valid_speakers" in sentence
    assert not (tmp_path / "save" / "train.csv").exists()
    assert not list(tmp_path.rglob(".*.tmp"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\0",
        b"a,b\n1,2\n",
        b"x" * 200_000,
        b"wav,duration\n$data_root/train/7/1/7-1-0000.flac,nan\n",
        b"wav,duration\n$data_root/train/7/1/7-1-0000.flac,-3\n",
        b"wav,duration\n$data_root/train/7/1/7-1-0000.flac,long\n",
        pipe,
        loop,
    ],
)
def test_manifest_that_was_broken_is_written_again(content, tmp_path):
    make_librispeech(tmp_path)
    librispeech(tmp_path)
    manifest = tmp_path / "save" / "splits" / "train.csv"
    whole = manifest.read_text()
    put(manifest, content)
    if callable(content):
        # No file of ours: it may be anything.
        with pytest.raises(OSError, match="train.csv' .* not a regular file"):
            librispeech(tmp_path)
        return
    librispeech(tmp_path)
    assert manifest.read_text() == whole


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spoken")
    speak(folder)
    return folder


def speak(folder):
    sizes = {f"{s}_utterances": 1 for s in ("train", "valid", "test")}
    return prepare_spoken_numbers(folder, progress=False, **sizes)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("spoken_numbers.json", b"", "that is not its own"),
        ("spoken_numbers.json", b"[" * 9_000, "that is not its own"),
        ("spoken_numbers.json", b"[" * 90_000, "that is not its own"),
        ("spoken_numbers.json", b'{"settings": 1}', "made with 1, but"),
        ("spoken_numbers.json", pipe, "that is not its own"),
        ("spoken_numbers.json", loop, "that is not its own"),
        ("train/train-00000.flac", b"", "is not readable audio"),
        ("train/train-00000.flac", directory, "is a folder, not a file"),
        ("train.csv", directory, "is a folder, not a file"),
    ],
)
def test_spoken_corpus_that_is_broken(name, content, reason, spoken, tmp_path):
    folder = shutil.copytree(spoken, tmp_path / "corpus")
    (folder / "test.csv").unlink()
    put(folder / name, content)
    with pytest.raises((ValueError, OSError), match=reason) as refusal:
        speak(folder)
    assert Path(name).stem in str(refusal.value) or "made with" in reason
    assert not list(folder.rglob(".*.tmp"))


def test_lock_that_is_a_pipe_keeps_nobody_waiting(spoken, tmp_path):
    folder = shutil.copytree(spoken, tmp_path / "corpus")
    (folder / "test.csv").unlink()
    put(folder / ".lock", pipe)
    assert speak(folder)["test"].is_file()
