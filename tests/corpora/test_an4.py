"""AN4 in both layouts: speakers held out, broken entries named."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile
from speechbrain.dataio.dataio import read_audio
from speechbrain.dataio.dataset import DynamicItemDataset

from speechbrain_triton.corpora import prepare_an4
from speechbrain_triton.corpora.files import write_flac

PROJECT = Path(__file__).parents[2]
DATA = Path(
    os.environ.get("SPEECHBRAIN_TRITON_DATA", PROJECT / "../shared/data")
)
AN4 = DATA / "an4"
needs_an4 = pytest.mark.skipif(
    not (AN4 / "train.csv").is_file(),
    reason=f"no AN4 in {AN4}; set SPEECHBRAIN_TRITON_DATA",
)

TRAIN = ["fash", "fbbh", "fclc", "mblb", "mdcs", "mdcs2", "mmxg"]
TEST = ["fcaw", "menk"]
UTTERANCES = [
    (split, speaker, f"an{100 * number + part}-{speaker}-b", f"GO {word}")
    for split, speakers in (("train", TRAIN), ("test", TEST))
    for number, speaker in enumerate(speakers, start=len(split))
    for part, word in enumerate(["ONE", "TWO"])
]


def samples(name):
    """Half a second that swings like a voice, another for each name."""
    steps = np.arange(8000)
    pitch = 100 + sum(name.encode()) % 200
    return (9000 * np.sin(2 * np.pi * pitch * steps / 16000)).astype(np.int16)


def write_sphere(path, name):
    """NIST SPHERE as AN4 has it: 16-bit PCM, big endian, 1024-byte header."""
    fields = (
        "sample_count -i 8000\nsample_n_bytes -i 2\nchannel_count -i 1\n"
        "sample_byte_format -s2 10\nsample_rate -i 16000\n"
        "sample_coding -s3 pcm\nend_head\n"
    )
    header = f"NIST_1A\n   1024\n{fields}".ljust(1024).encode()
    path.write_bytes(header + samples(name).astype(">i2").tobytes())


def write_raw(order):
    def write(path, name):
        path.write_bytes(samples(name).astype(order).tobytes())

    return write


WRITERS = {
    "sph": (".sph", write_sphere),
    "raw, big endian": (".raw", write_raw(">i2")),
    "raw, little endian": (".raw", write_raw("<i2")),
}


def make_cmu(base, writer="sph"):
    """A small AN4 as Carnegie Mellon packs it."""
    suffix, write = WRITERS[writer]
    etc = base / "etc"
    etc.mkdir(parents=True)
    folders = {"train": "an4_clstk", "test": "an4test_clstk"}
    for split, folder in folders.items():
        fileids, transcription = [], []
        for of, speaker, name, words in UTTERANCES:
            if of == split:
                audio = base / "wav" / folder / speaker / f"{name}{suffix}"
                audio.parent.mkdir(parents=True, exist_ok=True)
                write(audio, name)
                fileids.append(f"{folder}/{speaker}/{name}\n")
                marked = f"<s> {words} </s>" if split == "train" else words
                transcription.append(f"{marked} ({name})\n")
        (etc / f"an4_{split}.fileids").write_text("".join(fileids))
        (etc / f"an4_{split}.transcription").write_text("".join(transcription))


def make_csv(root, reverse=False):
    """The same as FLAC with CSV lists."""
    for split in ("train", "test"):
        listed = [entry for entry in UTTERANCES if entry[0] == split]
        lines = ["id,speaker,file,seconds,transcript"]
        for _, speaker, name, words in listed[:: -1 if reverse else 1]:
            write_flac(root / split / f"{name}.flac", samples(name))
            lines.append(f"{name},{speaker},{split}/{name}.flac,0.5,{words}")
        (root / f"{split}.csv").write_text("\n".join(lines) + "\n")


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def speakers(path):
    return {row["spk_id"] for row in read(path)}


def check_content(manifests, root):
    """All utterances are there and load in SpeechBrain, as they were said."""
    found = {}
    for path in manifests.values():
        dataset = DynamicItemDataset.from_csv(
            path, replacements={"data_root": str(root)}
        )
        dataset.add_dynamic_item(read_audio, takes="wav", provides="sig")
        dataset.set_output_keys(["id", "sig", "duration", "spk_id", "wrd"])
        for item in dataset:
            found[item["id"]] = (item["spk_id"], item["wrd"])
            expected = samples(item["id"]) / 32768
            np.testing.assert_allclose(item["sig"], expected, atol=1e-6)
            assert item["duration"] == 0.5
    assert found == {name: (who, said) for _, who, name, said in UTTERANCES}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("below", ["", "an4"])
def test_cmu_layout(tmp_path, writer, below):
    root, save = tmp_path / "data", tmp_path / "save"
    make_cmu(root / below, writer)
    manifests = prepare_an4(root, save, valid_speakers=2)
    assert manifests == {s: save / f"{s}.csv" for s in manifests}
    check_content(manifests, root)
    assert (save / "flac").exists() == writer.startswith("raw")
    assert speakers(manifests["test"]) == set(TEST)


def test_csv_layout(tmp_path):
    make_csv(tmp_path)
    manifests = prepare_an4(tmp_path, tmp_path / "save", valid_speakers=2)
    check_content(manifests, tmp_path)
    assert speakers(manifests["test"]) == set(TEST)


def test_layouts_and_order_hold_out_the_same_speakers(tmp_path):
    make_csv(tmp_path / "csv")
    make_csv(tmp_path / "reversed", reverse=True)
    make_cmu(tmp_path / "cmu")
    chosen = []
    for layout in ("csv", "reversed", "cmu"):
        manifests = prepare_an4(
            tmp_path / layout, tmp_path / f"{layout}-save", valid_speakers=3
        )
        chosen.append(speakers(manifests["valid"]))
        assert not chosen[-1] & speakers(manifests["train"])
        assert chosen[-1] | speakers(manifests["train"]) == set(TRAIN)
    assert chosen[0] == chosen[1] == chosen[2]
    assert sorted(who[0] for who in chosen[0]) == ["f", "m", "m"]
    # One person may be behind mdcs and mdcs2, so neither may be taken.
    assert chosen[0] >= {"mblb", "mmxg"}


def test_speakers_may_be_named(tmp_path):
    make_csv(tmp_path)
    manifests = prepare_an4(
        tmp_path, tmp_path / "save", valid_speakers=["mdcs", "fash"]
    )
    assert speakers(manifests["valid"]) == {"mdcs", "fash"}


@pytest.mark.parametrize(
    ("wanted", "error", "sentence"),
    [
        (1, ValueError, "valid_speakers is 1; a number of at least 2"),
        (8, ValueError, "valid_speakers is 8; .* 3 whose names begin with 'f'"),
        (["fcaw"], ValueError, r"and \['fcaw'\] are none"),
        ([], ValueError, r"valid_speakers is \[\]; one or more"),
        (TRAIN, ValueError, "takes all 7 training speakers"),
        ("fash", TypeError, "valid_speakers is 'fash'"),
        (True, TypeError, "valid_speakers is True"),
        (2.0, TypeError, "valid_speakers is 2.0"),
    ],
)
def test_impossible_validation_speakers(tmp_path, wanted, error, sentence):
    make_csv(tmp_path)
    with pytest.raises(error, match=sentence):
        prepare_an4(tmp_path, tmp_path / "save", valid_speakers=wanted)


@pytest.mark.parametrize("writer", WRITERS)
def test_second_call_writes_only_what_changed(tmp_path, writer):
    root, save = tmp_path / "data", tmp_path / "save"
    make_cmu(root, writer)
    prepare_an4(root, save, valid_speakers=2)
    old = {path: path.stat().st_mtime_ns for path in save.rglob("*.*")}
    transcription = root / "etc" / "an4_test.transcription"
    assert prepare_an4(root, save, valid_speakers=2)
    assert {path: path.stat().st_mtime_ns for path in old} == old

    text = transcription.read_text()
    transcription.write_text(text.replace("GO TWO", "STOP TWO"))
    prepare_an4(root, save, valid_speakers=2)
    changed = [path for path in old if path.stat().st_mtime_ns != old[path]]
    assert changed == [save / "test.csv"]
    assert [row["wrd"] for row in read(changed[0])][1::2] == ["STOP TWO"] * 2


def test_unknown_layout_names_what_is_looked_for(tmp_path):
    with pytest.raises(
        ValueError, match=r"neither train.csv and test.csv nor etc/an4_train"
    ):
        prepare_an4(tmp_path, tmp_path / "save")
    assert not (tmp_path / "save").exists()


def replace(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


ID = "an501-fash-b"  # the second training utterance: line 3 of train.csv
BROKEN_CSV = {
    "missing audio": (
        lambda root: (root / "train" / f"{ID}.flac").unlink(),
        rf"train.csv line 3: the audio file .*{ID}.flac of {ID} is missing",
    ),
    "empty transcript": (
        lambda root: replace(
            root / "train.csv", f"{ID}.flac,0.5,GO TWO", f"{ID}.flac,0.5, "
        ),
        f"train.csv line 3: the transcript of {ID} is empty",
    ),
    "duplicate id": (
        lambda root: replace(root / "train.csv", "an500-fash-b", ID),
        f"train.csv line 3: id {ID} is already used at .*train.csv line 2",
    ),
    "duplicate id across splits": (
        lambda root: replace(root / "test.csv", "an400-fcaw-b", ID),
        f"test.csv line 2: id {ID} is already used at .*train.csv line 3",
    ),
    "short row": (
        lambda root: replace(root / "train.csv", ",0.5,GO TWO", ""),
        "train.csv line 3: the row is too short",
    ),
    "missing column": (
        lambda root: replace(root / "test.csv", "transcript", "text"),
        r"test.csv lacks the columns \['transcript'\]",
    ),
    "unreadable audio": (
        lambda root: (root / "train" / f"{ID}.flac").write_bytes(b"no audio"),
        f"train.csv line 3: {ID}: .*.flac is not readable audio",
    ),
    "other sampling rate": (
        lambda root: soundfile.write(
            root / "train" / f"{ID}.flac", samples(ID), 8000
        ),
        f"train.csv line 3: {ID}: .*.flac has 1 channels, 8000 Hz",
    ),
}


@pytest.mark.parametrize("case", BROKEN_CSV)
def test_broken_csv_entry_is_named(tmp_path, case):
    spoil, sentence = BROKEN_CSV[case]
    make_csv(tmp_path)
    spoil(tmp_path)
    with pytest.raises(ValueError, match=sentence) as refusal:
        prepare_an4(tmp_path, tmp_path / "save", valid_speakers=2)
    assert "\n" not in str(refusal.value)
    assert not list((tmp_path / "save").glob("*.csv"))


def transcription(root):
    return root / "etc" / "an4_train.transcription"


def raw_audio(root):
    return root / "wav" / "an4_clstk" / "fash" / f"{ID}.raw"


BROKEN_CMU = {
    "missing audio": (
        lambda root: raw_audio(root).unlink(),
        f"an4_train.fileids line 2: the audio file .*{ID}.raw .* is missing",
    ),
    "odd number of bytes": (
        lambda root: raw_audio(root).write_bytes(b"abc"),
        f"an4_train.fileids line 2: .* of {ID} has 3 bytes",
    ),
    "empty transcript": (
        lambda root: replace(
            transcription(root), f"<s> GO TWO </s> ({ID})", f"<s> </s> ({ID})"
        ),
        f"an4_train.fileids line 2: the transcript of {ID} is empty",
    ),
    "no transcript": (
        lambda root: replace(
            transcription(root), f"<s> GO TWO </s> ({ID})\n", "\n"
        ),
        f"an4_train.fileids line 2: {ID} has no transcript",
    ),
    "transcript without id": (
        lambda root: replace(transcription(root), f"({ID})", ""),
        "an4_train.transcription line 2: .* does not end with an id",
    ),
    "two transcripts": (
        lambda root: replace(transcription(root), "an500-fash-b", ID),
        f"an4_train.transcription line 2: {ID} has a transcript already",
    ),
    "no test list": (
        lambda root: (root / "etc" / "an4_test.fileids").unlink(),
        "AN4 lacks .*an4_test.fileids",
    ),
}


@pytest.mark.parametrize("case", BROKEN_CMU)
def test_broken_cmu_entry_is_named(tmp_path, case):
    spoil, sentence = BROKEN_CMU[case]
    make_cmu(tmp_path, "raw, big endian")
    spoil(tmp_path)
    with pytest.raises(ValueError, match=sentence) as refusal:
        prepare_an4(tmp_path, tmp_path / "save", valid_speakers=2)
    assert "\n" not in str(refusal.value)
    assert not list((tmp_path / "save").glob("*.csv"))


@needs_an4
def test_the_real_corpus(tmp_path):
    manifests = prepare_an4(AN4, tmp_path)
    count = {split: len(read(path)) for split, path in manifests.items()}
    assert count["train"] + count["valid"] == 948 and count["test"] == 130
    who = {split: speakers(path) for split, path in manifests.items()}
    assert sum(name[0] == "f" for name in who["valid"]) == 4
    assert sum(name[0] == "m" for name in who["valid"]) == 4
    assert not who["train"] & who["valid"]
    assert not who["test"] & (who["train"] | who["valid"])
    assert len(who["train"]) == 74 - 8
    minutes = {
        split: sum(float(row["duration"]) for row in read(path)) / 60
        for split, path in manifests.items()
    }
    assert minutes["train"] + minutes["valid"] == pytest.approx(42.44, abs=0.01)
    assert minutes["test"] == pytest.approx(5.95, abs=0.01)


@needs_an4
@pytest.mark.parametrize("order", [">i2", "<i2"])
def test_byte_order_of_real_speech_is_recognised(tmp_path, order):
    """The real test split as headerless files, in either byte order."""
    with open(AN4 / "test.csv", newline="") as file:
        listed = list(csv.DictReader(file))
    etc = tmp_path / "etc"
    etc.mkdir()
    for split, chosen in (("train", listed[:39]), ("test", listed[39:])):
        fileids = transcripts = ""
        for row in chosen:
            stem = f"{row['speaker']}/{row['id']}"
            audio = tmp_path / "wav" / f"{stem}.raw"
            audio.parent.mkdir(parents=True, exist_ok=True)
            said, _ = soundfile.read(AN4 / row["file"], dtype="int16")
            audio.write_bytes(said.astype(order).tobytes())
            fileids += stem + "\n"
            transcripts += f"{row['transcript']} ({row['id']})\n"
        (etc / f"an4_{split}.fileids").write_text(fileids)
        (etc / f"an4_{split}.transcription").write_text(transcripts)
    save = tmp_path / "save"
    prepare_an4(tmp_path, save, valid_speakers=["fcaw"])
    for row in listed:
        said, _ = soundfile.read(AN4 / row["file"], dtype="int16")
        converted, _ = soundfile.read(
            save / "flac" / f"{row['id']}.flac", dtype="int16"
        )
        np.testing.assert_array_equal(converted, said)
