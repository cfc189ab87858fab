"""Manifests of CMU's AN4: names spelled, numbers and commands, real speech.

AN4 is read as Carnegie Mellon distributes it or as FLAC with CSV lists. It has
no official validation split, so whole speakers are taken out of training.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from speechbrain_triton.corpora.files import (
    progress_bar,
    read_rows,
    sound_duration,
    write_flac,
)
from speechbrain_triton.corpora.manifest import Row, write_manifest
from speechbrain_triton.files import read_text

CSV_COLUMNS = ("id", "speaker", "file", "transcript")
OFFICIAL_SPLITS = ("train", "test")


class Entry(NamedTuple):
    """One utterance as the corpus lists it, and where it is listed."""

    ID: str
    speaker: str
    audio: Path
    words: str
    where: str


def prepare_an4(
    data_folder: str | Path,
    save_folder: str | Path,
    *,
    valid_speakers: int | Sequence[str] = 8,
    progress: bool = True,
) -> dict[str, Path]:
    """Writes SpeechBrain manifests of AN4, with speakers held out of training.

    Two layouts are known. The CSV layout has ``train.csv`` and ``test.csv``
    with at least the columns ``id, speaker, file, transcript``. Carnegie
    Mellon's has ``etc/an4_train.fileids``, ``etc/an4_train.transcription``
    (likewise ``test``) and ``wav/``, in ``data_folder`` or in ``an4`` below
    it. Its headerless ``.raw`` files, which SpeechBrain cannot read, are
    written as FLAC below ``save_folder``; either byte order is recognised.

    Arguments
    ---------
    data_folder : str | Path
        Where AN4 lies. The manifests name audio files relative to
        ``$data_root``, this folder; converted ones by their absolute path.
    save_folder : str | Path
        Where the manifests go; made where it is missing. Files that would
        not change are left untouched.
    valid_speakers : int | Sequence[str]
        Number of training speakers for validation, at least 2, half of them
        women (by the first letter of the speaker, ``f`` or ``m``; the odd
        one is a man), or the speakers themselves. Which ones a number takes
        depends on their names alone.
    progress : bool
        Shows a progress bar on standard error if that is a terminal.

    Returns
    -------
    dict[str, Path]
        Manifests by split: ``"train"``, ``"valid"``, ``"test"``. Their columns
        are ``ID, duration, wav, spk_id, wrd``.

    Raises
    ------
    TypeError
        If ``valid_speakers`` is neither a number nor names.
    ValueError
        If ``data_folder`` has neither layout, if an entry is broken (audio
        missing, unreadable or not 16 kHz mono, transcript empty or missing,
        identifier used twice), or if ``valid_speakers`` cannot be met.

    Example
    -------
    >>> root = getfixture("tmp_path")
    >>> for split in ("train", "test"):
    ...     lines = ["id,speaker,file,transcript"]
    ...     for speaker in ("fash", "fbbh", "mblb", "mblw"):
    ...         file = f"{split}/an1-{speaker}-b.flac"
    ...         write_flac(root / file, np.zeros(8000, np.int16))
    ...         lines.append(f"{split}-{speaker},{speaker},{file},GO")
    ...     _ = (root / f"{split}.csv").write_text("\\n".join(lines))
    >>> manifests = prepare_an4(root, root / "lists", valid_speakers=2)
    >>> print(manifests["valid"].read_text(), end="")
    ID,duration,wav,spk_id,wrd
    train-fbbh,0.5000,$data_root/train/an1-fbbh-b.flac,fbbh,GO
    train-mblb,0.5000,$data_root/train/an1-mblb-b.flac,mblb,GO
    """
    root, save = Path(data_folder), Path(save_folder)
    entries = _read_entries(root)
    speakers = {entry.speaker for entry in entries["train"]}
    held_out = _validation_speakers(speakers, valid_speakers)
    rows: dict[str, list[Row]] = {"train": [], "valid": [], "test": []}
    with progress_bar(progress) as bar:
        total = sum(len(listed) for listed in entries.values())
        task = bar.add_task("Reading AN4", total=total)
        for official, listed in entries.items():
            for entry in listed:
                valid = official == "train" and entry.speaker in held_out
                split = "valid" if valid else official
                rows[split].append(_row(entry, root, save))
                bar.advance(task)
    manifests = {split: save / f"{split}.csv" for split in rows}
    for split, path in manifests.items():
        write_manifest(path, rows[split])
    return manifests


def _read_entries(root: Path) -> dict[str, list[Entry]]:
    if all((root / f"{split}.csv").is_file() for split in OFFICIAL_SPLITS):
        read = {split: _read_csv(root, split) for split in OFFICIAL_SPLITS}
    else:
        base = _find_cmu(root)
        read = {split: _read_cmu(base, split) for split in OFFICIAL_SPLITS}
    entries = {split: list(listed) for split, listed in read.items()}
    seen: dict[str, str] = {}
    for listed in entries.values():
        for entry in listed:
            if entry.ID in seen:
                raise ValueError(
                    f"{entry.where}: id {entry.ID} is already used at "
                    f"{seen[entry.ID]}."
                )
            seen[entry.ID] = entry.where
            if not entry.words:
                raise ValueError(
                    f"{entry.where}: the transcript of {entry.ID} is empty."
                )
            if not entry.audio.is_file():
                raise ValueError(
                    f"{entry.where}: the audio file {entry.audio} of "
                    f"{entry.ID} is missing."
                )
    return entries


def _find_cmu(root: Path) -> Path:
    for base in (root, root / "an4"):
        if (base / "etc" / "an4_train.fileids").is_file():
            return base
    raise ValueError(
        f"data_folder {root} is not a copy of AN4: it has neither train.csv "
        "and test.csv nor etc/an4_train.fileids or an4/etc/an4_train.fileids."
    )


def _lines(path: Path) -> list[tuple[str, str]]:
    """Lines that are not blank, each with where it stands."""
    if not path.exists():
        raise ValueError(f"AN4 lacks {path}.")
    numbered = enumerate(read_text(path).splitlines(), start=1)
    return [
        (f"{path} line {number}", line.strip())
        for number, line in numbered
        if line.strip()
    ]


def _words(transcript: str) -> str:
    return " ".join(transcript.upper().split())


def _read_csv(root: Path, split: str) -> Iterator[Entry]:
    for where, row in read_rows(root / f"{split}.csv", CSV_COLUMNS):
        name, speaker, audio, transcript = (row[c] for c in CSV_COLUMNS)
        yield Entry(name, speaker, root / audio, _words(transcript), where)


def _read_cmu(base: Path, split: str) -> Iterator[Entry]:
    transcripts = _read_transcripts(base / "etc" / f"an4_{split}.transcription")
    for where, fileid in _lines(base / "etc" / f"an4_{split}.fileids"):
        *_, speaker, name = ("", *fileid.split("/"))
        if name not in transcripts:
            raise ValueError(f"{where}: {name} has no transcript.")
        stem = base / "wav" / fileid
        audio = stem.with_name(f"{name}.sph")
        if not audio.is_file():
            audio = stem.with_name(f"{name}.raw")
        yield Entry(name, speaker, audio, transcripts[name], where)


def _read_transcripts(path: Path) -> dict[str, str]:
    transcripts: dict[str, str] = {}
    for where, line in _lines(path):
        match = re.fullmatch(r"(.*)\((\S+)\)", line)
        if match is None:
            raise ValueError(f"{where}: {line!r} does not end with an id.")
        said, name = match.groups()
        if name in transcripts:
            raise ValueError(f"{where}: {name} has a transcript already.")
        # Training lines carry sentence marks, test lines do not.
        transcripts[name] = _words(re.sub(r"</?s>", " ", said))
    return transcripts


def _validation_speakers(
    speakers: set[str], wanted: int | Sequence[str]
) -> set[str]:
    if isinstance(wanted, bool | str) or not isinstance(wanted, int | Sequence):
        raise TypeError(
            f"valid_speakers is {wanted!r}; a number of speakers or a list of "
            "their names is allowed."
        )
    if isinstance(wanted, int):
        held_out = _balanced_speakers(speakers, wanted)
    else:
        held_out = set(wanted)
        unknown = sorted(held_out - speakers)
        if unknown or not held_out:
            raise ValueError(
                f"valid_speakers is {list(wanted)}; one or more training "
                f"speakers are allowed, and {unknown} are none."
            )
    if held_out == speakers:
        raise ValueError(
            f"valid_speakers takes all {len(speakers)} training speakers; at "
            "least one must be left to train on."
        )
    return held_out


def _balanced_speakers(speakers: set[str], count: int) -> set[str]:
    # mdcs and mdcs2 may be one person: neither may cross into validation.
    stems = [speaker.rstrip("0123456789") for speaker in speakers]
    chosen: set[str] = set()
    for letter, number in (("f", count // 2), ("m", count - count // 2)):
        candidates = [
            speaker
            for speaker, stem in zip(speakers, stems, strict=True)
            if speaker.startswith(letter) and stems.count(stem) == 1
        ]
        if count < 2 or number > len(candidates):
            raise ValueError(
                f"valid_speakers is {count}; a number of at least 2 is "
                f"allowed, and of the training speakers {len(candidates)} "
                f"whose names begin with {letter!r} can be taken."
            )
        # A digest orders the names alike everywhere, and no added speaker
        # changes the order of the others.
        candidates.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
        chosen.update(candidates[:number])
    return chosen


def _row(entry: Entry, root: Path, save: Path) -> Row:
    if entry.audio.suffix == ".raw":
        audio = save.resolve() / "flac" / f"{entry.ID}.flac"
        _convert_raw(entry, audio)
        wav = str(audio)
    else:
        audio = entry.audio
        wav = str(audio)
        if audio.is_relative_to(root):
            wav = f"$data_root/{audio.relative_to(root).as_posix()}"
    duration = sound_duration(audio, f"{entry.where}: {entry.ID}", "AN4")
    return Row(entry.ID, duration, wav, entry.speaker, entry.words)


def _convert_raw(entry: Entry, target: Path) -> None:
    source = entry.audio
    if target.is_file() and target.stat().st_mtime >= source.stat().st_mtime:
        return
    content = source.read_bytes()
    if not content or len(content) % 2:
        raise ValueError(
            f"{entry.where}: {source} of {entry.ID} has {len(content)} bytes; "
            "16-bit samples are an even number, more than none."
        )
    big = np.frombuffer(content, ">i2").astype(np.int16)
    # AN4 comes in either byte order. In the wrong one speech becomes noise:
    # neighbouring samples lie far apart.
    little = big.byteswap()
    samples = min(
        big, little, key=lambda order: np.abs(np.diff(order.astype(int))).sum()
    )
    write_flac(target, samples)
