"""LibriSpeech's splits: joined, read in parallel, broken chapters named."""

import csv
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile
from speechbrain.dataio.dataio import read_audio
from speechbrain.dataio.dataset import DynamicItemDataset

from speechbrain_triton.corpora import librispeech
from speechbrain_triton.corpora.files import write_flac
from speechbrain_triton.corpora.librispeech import (
    prepare_librispeech,
    split_manifests,
)

PROJECT = Path(__file__).parents[2]
DATA = Path(
    os.environ.get("SPEECHBRAIN_TRITON_DATA", PROJECT / "../shared/data")
)
FIXTURES = DATA / "libri_fixtures"
needs_fixtures = pytest.mark.skipif(
    not (FIXTURES / "all.csv").is_file(),
    reason=f"no libri_fixtures in {DATA}; set SPEECHBRAIN_TRITON_DATA",
)

# Split, chapter, number, tenths of a second.
UTTERANCES = [
    ("train-clean-100", "19/198", 0, 9),
    ("train-clean-100", "19/198", 1, 4),
    ("train-clean-100", "103/1240", 0, 7),
    ("train-other-500", "20/205", 0, 2),
    ("dev-clean", "84/121123", 0, 5),
    ("test-clean", "61/70968", 0, 3),
    ("test-other", "367/130732", 0, 6),
]
TRAIN = ["19-198-0000", "19-198-0001", "103-1240-0000", "20-205-0000"]
SPLITS = {
    "train_splits": ["train-clean-100", "train-other-500"],
    "valid_splits": "dev-clean",
    "test_splits": ["test-clean", "test-other"],
}


def name_of(chapter, number):
    return f"{chapter.replace('/', '-')}-{number:04d}"


def make_corpus(root):
    """A small LibriSpeech, with what else lies in its archives."""
    for split, chapter, number, tenths in UTTERANCES:
        folder = root / split / chapter
        name = name_of(chapter, number)
        samples = np.full(1600 * tenths, number + tenths, np.int16)
        write_flac(folder / f"{name}.flac", samples)
        text = folder / f"{chapter.replace('/', '-')}.trans.txt"
        with text.open("a") as file:
            file.write(f"{name} SAID IN {tenths}\n")
    (root / "SPEAKERS.TXT").write_text("; readers\n")
    return root


@pytest.fixture
def corpus(tmp_path):
    return make_corpus(tmp_path / "data")


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def ids(path):
    return [row["ID"] for row in read(path)]


@pytest.mark.parametrize("below", ["", "LibriSpeech"])
def test_splits_are_joined_in_order(tmp_path, below):
    root, save = tmp_path / "data", tmp_path / "save"
    make_corpus(root / below)
    manifests = prepare_librispeech(root, save, **SPLITS)
    assert manifests == {
        "train": save / "train.csv",
        "valid": save / "valid.csv",
        "test-clean": save / "splits" / "test-clean.csv",
        "test-other": save / "splits" / "test-other.csv",
    }
    assert ids(manifests["train"]) == TRAIN
    assert ids(save / "splits" / "train-other-500.csv") == TRAIN[3:]
    found = {}
    for path in manifests.values():
        dataset = DynamicItemDataset.from_csv(
            path, replacements={"data_root": str(root)}
        )
        dataset.add_dynamic_item(read_audio, takes="wav", provides="sig")
        dataset.set_output_keys(["id", "sig", "duration", "spk_id", "wrd"])
        for item in dataset:
            assert len(item["sig"]) == 16000 * item["duration"]
            found[item["id"]] = (
                item["spk_id"],
                item["wrd"],
                round(item["duration"], 4),
            )
    assert found == {
        name_of(chapter, number): (
            chapter.split("/")[0],
            f"SAID IN {tenths}",
            tenths / 10,
        )
        for _, chapter, number, tenths in UTTERANCES
    }


def test_shortest_first_if_asked(corpus, tmp_path):
    manifests = prepare_librispeech(
        corpus, tmp_path / "save", sort_by_duration=True, **SPLITS
    )
    durations = [float(row["duration"]) for row in read(manifests["train"])]
    assert durations == [0.2, 0.4, 0.7, 0.9]


def test_second_run_reads_no_audio_and_writes_nothing(
    corpus, tmp_path, monkeypatch
):
    splits_folder = tmp_path / "shared"
    first = prepare_librispeech(
        corpus, tmp_path / "a", splits_folder=splits_folder, **SPLITS
    )
    written = {*first.values(), *splits_folder.iterdir()}
    assert len(written) == 2 + 5
    for path in written:
        os.utime(path, ns=(1, 1))
    monkeypatch.setattr(soundfile, "info", None)
    for save in ("a", "b"):
        again = prepare_librispeech(
            corpus, tmp_path / save, splits_folder=splits_folder, **SPLITS
        )
        assert ids(again["train"]) == TRAIN
    assert {path.stat().st_mtime_ns for path in written} == {1}
    assert split_manifests(splits_folder, SPLITS["test_splits"]) == {
        name: str(first[name]) for name in SPLITS["test_splits"]
    }


def test_killed_run_goes_on_with_its_split(corpus, tmp_path, monkeypatch):
    headers = []
    info = soundfile.info

    def dies(path):
        headers.append(path.name)
        if path.name.startswith("20-"):
            raise KeyboardInterrupt
        return info(path)

    monkeypatch.setattr(soundfile, "info", dies)
    with pytest.raises(KeyboardInterrupt):
        prepare_librispeech(corpus, tmp_path / "save", **SPLITS)
    assert sorted(headers) == sorted(f"{name}.flac" for name in TRAIN)
    written = [p for p in (tmp_path / "save").rglob("*") if p.is_file()]
    assert [path.name for path in written] == ["train-clean-100.csv"]

    headers.clear()
    monkeypatch.setattr(
        soundfile,
        "info",
        lambda path: (headers.append(path.name), info(path))[1],
    )
    manifests = prepare_librispeech(corpus, tmp_path / "save", **SPLITS)
    assert not {f"{name}.flac" for name in TRAIN[:3]} & set(headers)
    assert len(headers) == len(UTTERANCES) - 3
    assert ids(manifests["train"]) == TRAIN


def test_new_words_are_read_again(corpus, tmp_path):
    manifests = prepare_librispeech(corpus, tmp_path / "save", **SPLITS)
    text = corpus / "train-other-500/20/205/20-205.trans.txt"
    text.write_text("20-205-0000 something  else\n")
    prepare_librispeech(corpus, tmp_path / "save", **SPLITS)
    assert read(manifests["train"])[3]["wrd"] == "SOMETHING ELSE"


def test_chapters_are_read_in_parallel(corpus, tmp_path, monkeypatch):
    # The two chapters of train-clean-100 wait for each other.
    together = threading.Barrier(2)
    chapters = []
    duration = librispeech.sound_duration

    def meet(audio, where, corpus):
        if "train-clean-100" in where and audio.parent not in chapters:
            chapters.append(audio.parent)
            together.wait(timeout=20)
        return duration(audio, where, corpus)

    monkeypatch.setattr(librispeech, "sound_duration", meet)
    prepare_librispeech(corpus, tmp_path / "save", workers=2, **SPLITS)
    assert len(chapters) == 2


def test_mini_librispeech_tests_on_its_validation_split(tmp_path):
    root = make_corpus(tmp_path / "data")
    (root / "train-clean-100").rename(root / "train-clean-5")
    (root / "dev-clean").rename(root / "dev-clean-2")
    manifests = prepare_librispeech(
        root,
        tmp_path / "save",
        train_splits="train-clean-5",
        valid_splits=["dev-clean-2"],
        test_splits="dev-clean-2",
    )
    assert ids(manifests["train"]) == TRAIN[:3]
    assert ids(manifests["valid"]) == ids(manifests["dev-clean-2"])


def break_nothing(root):
    pass


def remove_split(root):
    (root / "test-other").rename(root / "test-others")


def remove_chapters(root):
    (root / "empty-split").mkdir()


def remove_transcripts(root):
    (root / "dev-clean/84/121123/84-121123.trans.txt").unlink()


def remove_audio(root):
    (root / "dev-clean/84/121123/84-121123-0000.flac").unlink()


def remove_line(root):
    text = root / "train-clean-100/19/198/19-198.trans.txt"
    text.write_text(text.read_text().splitlines()[0])


def remove_words(root):
    text = root / "dev-clean/84/121123/84-121123.trans.txt"
    text.write_text("\n84-121123-0000 \n")


def write_noise(root):
    (root / "dev-clean/84/121123/84-121123-0000.flac").write_bytes(b"noise")


def write_other_rate(root):
    path = root / "dev-clean/84/121123/84-121123-0000.flac"
    soundfile.write(path, np.zeros((80, 2)), 8000)


def copy_train_to_test(root):
    os.symlink(root / "train-clean-100/19", root / "test-other/19")


@pytest.mark.parametrize(
    ("damage", "splits", "message"),
    [
        (
            remove_split,
            {},
            "lacks the split test-other, .* there are: dev-clean, test-clean, "
            "test-others, train-clean-100, train-other-500",
        ),
        (
            remove_chapters,
            {"valid_splits": "empty-split"},
            "empty-split has no folders SPEAKER/CHAPTER",
        ),
        (remove_transcripts, {}, "84/121123 lacks its 84-121123.trans.txt"),
        (remove_audio, {}, "trans.txt line 1: .*84-121123-0000.flac is miss"),
        (remove_line, {}, "no transcript of 19-198-0001.flac, which lies"),
        (remove_words, {}, "line 2: the transcript of 84-121123-0000 is empty"),
        (write_noise, {}, "84-121123-0000.flac is not readable audio"),
        (write_other_rate, {}, "has 2 channels, 8000 Hz and 80 frames"),
        (copy_train_to_test, {}, "19-198-0000 of test_splits is in train_spl"),
        (
            break_nothing,
            {"valid_splits": "train-clean-100"},
            "19-198-0000 of valid_splits is in train_splits too",
        ),
        (
            copy_train_to_test,
            {
                "train_splits": ["train-clean-100", "test-other"],
                "test_splits": "test-clean",
            },
            "train_splits hold the utterance 19-198-0000 2 times",
        ),
        (
            break_nothing,
            {"train_splits": ["dev-clean", "dev-clean"]},
            r"train_splits is \['dev-clean', 'dev-clean'\]; one or more",
        ),
        (break_nothing, {"test_splits": []}, r"test_splits is \[\]; one or"),
        (break_nothing, {"test_splits": 5}, "test_splits is 5; one or more"),
        (break_nothing, {"valid_splits": [1]}, "valid_splits has 1; names"),
        (break_nothing, {"valid_splits": "../x"}, "valid_splits has '../x';"),
    ],
)
def test_broken_corpus_or_argument_is_named(
    corpus, tmp_path, damage, splits, message
):
    damage(corpus)
    with pytest.raises(ValueError, match=message) as caught:
        prepare_librispeech(corpus, tmp_path / "save", **{**SPLITS, **splits})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "save" / "train.csv").exists()


def test_folder_without_anything_is_named(tmp_path):
    with pytest.raises(ValueError, match="train-clean-100.*there are: none"):
        prepare_librispeech(tmp_path / "no", tmp_path / "save", **SPLITS)


@needs_fixtures
def test_real_utterances(tmp_path):
    listed = {row["id"]: row for row in read(FIXTURES / "all.csv")}
    for name, split in (
        ("1088-134315-0000", "train-clean-100"),
        ("2412-153948-0000", "dev-clean"),
        ("2412-153948-0001", "dev-clean"),
    ):
        speaker, chapter, _ = name.split("-")
        folder = tmp_path / split / speaker / chapter
        folder.mkdir(parents=True, exist_ok=True)
        os.symlink(
            (FIXTURES / listed[name]["file"]).resolve(),
            folder / f"{name}.flac",
        )
        with (folder / f"{speaker}-{chapter}.trans.txt").open("a") as file:
            file.write(f"{name} {listed[name]['transcript']}\n")
    manifests = prepare_librispeech(
        tmp_path,
        tmp_path / "save",
        train_splits="train-clean-100",
        valid_splits="dev-clean",
        test_splits="dev-clean",
    )
    rows = read(manifests["train"]) + read(manifests["valid"])
    assert len(rows) == 3
    for row in rows:
        expected = listed[row["ID"]]
        assert row["wrd"] == expected["transcript"]
        assert row["duration"] == expected["seconds"]
        assert row["spk_id"] == expected["speaker"]
