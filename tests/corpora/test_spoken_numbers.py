"""The built-in corpus: the same bytes by seed, voices apart, never mixed."""

import csv
import hashlib
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile

pytest.importorskip("espeakng_loader")

from speechbrain.dataio.dataio import read_audio
from speechbrain.dataio.dataset import DynamicItemDataset

from speechbrain_triton.corpora import prepare_spoken_numbers, spoken_numbers
from speechbrain_triton.corpora.spoken_numbers import MARKER
from speechbrain_triton.corpora.utterances import (
    DIGITS,
    SPLITS,
    TEST_VOICES,
    TRAIN_VOICES,
    draw_utterance,
)

SETTINGS = {
    "seed": 7,
    "train_utterances": 13,
    "valid_utterances": 3,
    "test_utterances": 5,
}


def digests(root):
    """SHA-256 of every file a user sees, by its path below ``root``."""
    return {
        str(path.relative_to(root)): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def times(root):
    return {path: path.stat().st_mtime_ns for path in root.rglob("*")}


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("spoken_numbers")
    prepare_spoken_numbers(root, **SETTINGS, workers=1)
    return root


def test_same_bytes_whatever_the_workers(corpus, tmp_path):
    prepare_spoken_numbers(tmp_path, **SETTINGS, workers=3)
    assert digests(tmp_path) == digests(corpus)
    assert len(digests(corpus)) == 13 + 3 + 5 + 3 + 1


def test_seed_changes_every_utterance(corpus, tmp_path):
    prepare_spoken_numbers(tmp_path, **{**SETTINGS, "seed": 8})
    here, there = digests(tmp_path), digests(corpus)
    assert here.keys() == there.keys()
    assert not set(here.values()) & set(there.values())


def test_an_utterance_does_not_depend_on_the_size(corpus, tmp_path):
    sizes = dict.fromkeys(list(SETTINGS)[1:], 2)
    prepare_spoken_numbers(tmp_path, seed=7, **sizes)
    small, large = digests(tmp_path), digests(corpus)
    audio = [name for name in small if name.endswith(".flac")]
    assert len(audio) == 6
    assert all(small[name] == large[name] for name in audio)


def test_manifests_load_in_speechbrain(corpus):
    for split in SPLITS:
        dataset = DynamicItemDataset.from_csv(
            corpus / f"{split}.csv", replacements={"data_root": str(corpus)}
        )
        dataset.add_dynamic_item(read_audio, takes="wav", provides="sig")
        dataset.set_output_keys(["id", "sig", "duration", "spk_id", "wrd"])
        assert len(dataset) == SETTINGS[f"{split}_utterances"]
        for item in dataset:
            assert len(item["sig"]) / 16000 == pytest.approx(
                item["duration"], abs=1e-4
            )
            assert item["wrd"] == item["wrd"].upper() != ""


def test_audio_is_sound(corpus):
    """Format, level, clipping, noise before and after, nothing cut off."""
    for path in corpus.rglob("*.flac"):
        info = soundfile.info(path)
        assert (info.samplerate, info.channels) == (16000, 1)
        assert info.subtype == "PCM_16"
        signal, _ = soundfile.read(path)
        level = 20 * np.log10(signal.std())
        assert -34 < level < -17
        assert 0.03 < np.abs(signal).max() < 0.97
        for edge in (signal[:800], signal[-800:]):
            below = level - 20 * np.log10(edge.std())
            assert 15 < below < 45


def test_voices_of_the_test_split_are_unseen(corpus):
    heard = {
        split: {row["spk_id"] for row in rows(corpus / f"{split}.csv")}
        for split in SPLITS
    }
    assert heard["train"] == set(TRAIN_VOICES)
    assert heard["valid"] <= set(TRAIN_VOICES)
    assert heard["test"] == set(TEST_VOICES)
    variants = [
        {name.partition("+")[2] for name in voices.values()}
        for voices in (TRAIN_VOICES, TEST_VOICES)
    ]
    assert not variants[0] & variants[1]


def test_vocabulary_and_shapes_of_the_texts():
    texts = [draw_utterance(5, "train", i).words for i in range(3000)]
    words = {word for text in texts for word in text.split()}
    assert len(words) == 25 and set(DIGITS) < words
    lengths = {
        len(text.split()) for text in texts if set(text.split()) <= set(DIGITS)
    }
    assert lengths == {1, 2, 3, 4, 5}
    numbers = [text for text in texts if text.startswith("CALL ")]
    assert all(set(text.split()[1:]) <= set(DIGITS) for text in numbers)


def test_second_call_changes_nothing(corpus, monkeypatch):
    before = times(corpus)
    # Not even the synthesizer is needed any more.
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    manifests = prepare_spoken_numbers(corpus, **SETTINGS)
    assert times(corpus) == before
    assert manifests == {split: corpus / f"{split}.csv" for split in SPLITS}


@pytest.mark.parametrize("change", [{"seed": 8}, {"test_utterances": 6}])
def test_other_settings_are_refused(corpus, change):
    before = times(corpus)
    with pytest.raises(ValueError, match="choose another folder") as refusal:
        prepare_spoken_numbers(corpus, **{**SETTINGS, **change})
    assert "\n" not in str(refusal.value)
    assert times(corpus) == before


def test_killed_build_is_completed(tmp_path):
    """SIGKILL in mid-build; then only what is missing is made."""
    settings = {**SETTINGS, "train_utterances": 120}
    script = (
        "from speechbrain_triton.corpora import prepare_spoken_numbers as p;"
        f"p({str(tmp_path)!r}, **{settings!r}, workers=1)"
    )
    killed = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 60
    while len(list(tmp_path.rglob("*.flac"))) < 3:
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    (tmp_path / "train" / ".left.flac.1.tmp").write_bytes(b"half")
    made = times(tmp_path)
    audio = [path for path in made if path.suffix == ".flac"]
    assert 3 <= len(audio) < 120
    assert not json.loads((tmp_path / MARKER).read_text())["complete"]
    with pytest.raises(ValueError, match="choose another folder"):
        prepare_spoken_numbers(tmp_path, **{**settings, "seed": 8})

    prepare_spoken_numbers(tmp_path, **settings)
    assert json.loads((tmp_path / MARKER).read_text())["complete"]
    assert len(list(tmp_path.rglob("*.flac"))) == 120 + 3 + 5
    assert not list(tmp_path.rglob("*.tmp"))
    assert all(path.stat().st_mtime_ns == made[path] for path in audio)


def test_lost_files_are_made_again(corpus, tmp_path):
    prepare_spoken_numbers(tmp_path, **SETTINGS)
    (tmp_path / "test" / "test-00001.flac").unlink()
    (tmp_path / "valid.csv").unlink()
    prepare_spoken_numbers(tmp_path, **SETTINGS)
    assert digests(tmp_path) == digests(corpus)


def test_an_error_ends_the_build(tmp_path, monkeypatch):
    write_flac = spoken_numbers.write_flac

    def full_disk(path, samples):
        if path.name == "train-00004.flac":
            raise OSError("No space left on device")
        write_flac(path, samples)

    monkeypatch.setattr(spoken_numbers, "write_flac", full_disk)
    with pytest.raises(OSError, match="No space"):
        prepare_spoken_numbers(tmp_path, **SETTINGS)
    assert not json.loads((tmp_path / MARKER).read_text())["complete"]
    assert not (tmp_path / "train.csv").exists()


def test_two_builders_of_one_folder_share_the_work(corpus, tmp_path):
    with ThreadPoolExecutor(2) as executor:
        builds = [
            executor.submit(prepare_spoken_numbers, tmp_path, **SETTINGS)
            for _ in range(2)
        ]
        assert builds[0].result() == builds[1].result()
    assert digests(tmp_path) == digests(corpus)


def test_other_synthesizer_does_not_complete_a_corpus(tmp_path, monkeypatch):
    prepare_spoken_numbers(tmp_path, **SETTINGS)
    (tmp_path / "train" / "train-00000.flac").unlink()
    monkeypatch.setattr(spoken_numbers, "synthesizer_version", lambda: "new 9")
    with pytest.raises(ValueError, match="new 9 is installed"):
        prepare_spoken_numbers(tmp_path, **SETTINGS)


@pytest.mark.parametrize("foreign", ["train.csv", "test", MARKER])
def test_foreign_folder_is_refused(tmp_path, foreign):
    if "." in foreign:
        (tmp_path / foreign).write_text("[1]")
    else:
        (tmp_path / foreign).mkdir()
    with pytest.raises(ValueError, match="choose another folder"):
        prepare_spoken_numbers(tmp_path, **SETTINGS)
    assert not list(tmp_path.rglob("*.flac"))


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"seed": -1}, ValueError, "seed is -1; .* at least 0"),
        ({"seed": 1.0}, TypeError, "seed is 1.0; an integer"),
        ({"seed": True}, TypeError, "seed is True; an integer"),
        ({"train_utterances": 0}, ValueError, "train_utterances is 0"),
        ({"test_utterances": "5"}, TypeError, "test_utterances is '5'"),
        ({"workers": 0}, ValueError, "workers is 0; .* at least 1"),
    ],
)
def test_bad_numbers_are_refused(tmp_path, change, error, sentence):
    with pytest.raises(error, match=sentence):
        prepare_spoken_numbers(tmp_path / "new", **{**SETTINGS, **change})
    assert not (tmp_path / "new").exists()


def test_nothing_is_printed_without_a_terminal(tmp_path, capfd):
    sizes = dict.fromkeys(list(SETTINGS)[1:], 1)
    prepare_spoken_numbers(tmp_path, **sizes)
    assert capfd.readouterr() == ("", "")


def test_import_needs_no_torch():
    script = "import sys, speechbrain_triton.corpora as c; c.prepare_an4; "
    check = script + "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
