"""Manifests of LibriSpeech and mini-LibriSpeech: read English books.

Both come as ``SPLIT/SPEAKER/CHAPTER/SPEAKER-CHAPTER-NUMBER.flac`` with the
transcripts of a chapter in ``SPEAKER-CHAPTER.trans.txt`` beside the audio.
"""

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from speechbrain_triton.corpora.files import (
    progress_bar,
    read_rows,
    sound_duration,
)
from speechbrain_triton.corpora.manifest import Row, write_manifest
from speechbrain_triton.files import read_text


def split_manifests(
    folder: str | Path, splits: str | Sequence[str]
) -> dict[str, str]:
    """Names the manifest of each split, as a recipe's test sets.

    Arguments
    ---------
    folder : str | Path
        The ``splits_folder`` of :func:`prepare_librispeech`.
    splits : str | Sequence[str]
        One split or several.

    Returns
    -------
    dict[str, str]
        Split to path, in the order given.

    Raises
    ------
    ValueError
        If there is no split, one twice, or a name that is no plain folder.

    Example
    -------
    >>> split_manifests("save/splits", ["test-clean"])
    {'test-clean': 'save/splits/test-clean.csv'}
    """
    names = _split_names("test_splits", splits)
    return {name: str(Path(folder) / f"{name}.csv") for name in names}


def prepare_librispeech(
    data_folder: str | Path,
    save_folder: str | Path,
    *,
    train_splits: str | Sequence[str],
    valid_splits: str | Sequence[str],
    test_splits: str | Sequence[str],
    splits_folder: str | Path | None = None,
    sort_by_duration: bool = False,
    workers: int | None = None,
    progress: bool = True,
) -> dict[str, Path]:
    """Writes SpeechBrain manifests of LibriSpeech's splits.

    Each split gets a manifest of its own; those for training are joined, and
    so are those for validation. Durations come from the headers of the audio
    files. A preparation that was killed goes on with the split that it was
    at, and durations that a manifest already holds are not read again.

    Arguments
    ---------
    data_folder : str | Path
        Folder of the splits, or the one with ``LibriSpeech/`` in it. The
        manifests name audio files relative to ``$data_root``, this folder.
    save_folder : str | Path
        Where the joined manifests go; made where it is missing. Files that
        would not change are left untouched.
    train_splits : str | Sequence[str]
        Such as ``["train-clean-100", "train-clean-360"]``; for
        mini-LibriSpeech ``"train-clean-5"``.
    valid_splits : str | Sequence[str]
        Such as ``"dev-clean"`` or ``"dev-clean-2"``.
    test_splits : str | Sequence[str]
        Such as ``["test-clean", "test-other"]``. A split may be both for
        validation and for tests.
    splits_folder : str | Path | None
        Where the manifests of the splits go, which several runs may share;
        by default the folder ``splits`` in ``save_folder``.
    sort_by_duration : bool
        Sorts the training manifest, shortest first. Otherwise it is in the
        order of splits, speakers, chapters and numbers.
    workers : int | None
        Threads that read; by default a few more than there are cores.
    progress : bool
        Shows a progress bar on standard error if that is a terminal.

    Returns
    -------
    dict[str, Path]
        Manifests: ``"train"``, ``"valid"`` and each split of ``test_splits``
        by its name. Their columns are ``ID, duration, wav, spk_id, wrd``.

    Raises
    ------
    ValueError
        If a split is missing or named wrongly, if a chapter is broken
        (transcripts missing, an utterance without audio or without words,
        audio that is unreadable or not 16 kHz mono), if training utterances
        occur twice, or if they are also in validation or test.

    Example
    -------
    >>> import numpy as np
    >>> from speechbrain_triton.corpora.files import write_flac
    >>> root = getfixture("tmp_path")
    >>> for split, chapter in (("train-clean-5", 11), ("dev-clean-2", 12)):
    ...     folder = root / split / "7" / str(chapter)
    ...     name = f"7-{chapter}-0000"
    ...     write_flac(folder / f"{name}.flac", np.zeros(8000, np.int16))
    ...     text = folder / f"7-{chapter}.trans.txt"
    ...     _ = text.write_text(f"{name} GO ON\\n")
    >>> manifests = prepare_librispeech(
    ...     root,
    ...     root / "save",
    ...     train_splits="train-clean-5",
    ...     valid_splits="dev-clean-2",
    ...     test_splits="dev-clean-2",
    ... )
    >>> list(manifests)
    ['train', 'valid', 'dev-clean-2']
    >>> print(manifests["train"].read_text(), end="")
    ID,duration,wav,spk_id,wrd
    7-11-0000,0.5000,$data_root/train-clean-5/7/11/7-11-0000.flac,7,GO ON
    """
    root, save = Path(data_folder), Path(save_folder)
    parts = Path(splits_folder) if splits_folder else save / "splits"
    uses = {
        use: _split_names(f"{use}_splits", splits)
        for use, splits in zip(
            ("train", "valid", "test"),
            (train_splits, valid_splits, test_splits),
            strict=True,
        )
    }
    names = dict.fromkeys(name for listed in uses.values() for name in listed)
    rows: dict[str, list[Row]] = {}
    with progress_bar(progress) as bar, ThreadPoolExecutor(workers) as pool:
        for name, folder in _find_splits(root, names).items():
            manifest = parts / f"{name}.csv"
            chapters = _find_chapters(folder)
            task = bar.add_task(f"Reading {name}", total=len(chapters))
            read = functools.partial(
                _read_chapter, root=root, known=_read_durations(manifest)
            )
            rows[name] = []
            for chapter_rows in pool.map(read, chapters):
                rows[name] += chapter_rows
                bar.advance(task)
            write_manifest(manifest, rows[name])
    joined = {
        use: [row for name in uses[use] for row in rows[name]] for use in uses
    }
    _check_disjoint(joined)
    if sort_by_duration:
        joined["train"].sort(key=lambda row: (row.duration, row.ID))
    manifests = {use: save / f"{use}.csv" for use in ("train", "valid")}
    for use, path in manifests.items():
        write_manifest(path, joined[use])
    return manifests | {name: parts / f"{name}.csv" for name in uses["test"]}


def _split_names(argument: str, splits: str | Sequence[str]) -> list[str]:
    names = [splits] if isinstance(splits, str) else splits
    if (
        not isinstance(names, Sequence)
        or not names
        or any(names.count(name) > 1 for name in names)
    ):
        raise ValueError(
            f"{argument} is {splits!r}; one or more splits, each of them "
            "once, are allowed."
        )
    for name in names:
        if not isinstance(name, str) or name in ("", "..", ".") or "/" in name:
            raise ValueError(
                f"{argument} has {name!r}; names of folders in the corpus, "
                "such as train-clean-100, are allowed."
            )
    return list(names)


def _find_splits(root: Path, names: Iterable[str]) -> dict[str, Path]:
    bases = [base for base in (root, root / "LibriSpeech") if base.is_dir()]
    folders = {}
    for name in names:
        found = [base / name for base in bases if (base / name).is_dir()]
        if not found:
            there = sorted(
                path.name
                for base in bases
                for path in base.iterdir()
                if path.is_dir() and path.name.partition("-")[2]
            )
            raise ValueError(
                f"data_folder {root} lacks the split {name}, as a folder in "
                "it or in its LibriSpeech; the splits there are: "
                f"{', '.join(there) or 'none'}."
            )
        folders[name] = found[0]
    return folders


def _find_chapters(split: Path) -> list[Path]:
    chapters = [
        chapter
        for speaker in split.iterdir()
        if speaker.is_dir()
        for chapter in speaker.iterdir()
        if chapter.is_dir()
    ]
    if not chapters:
        raise ValueError(f"the split {split} has no folders SPEAKER/CHAPTER.")
    return sorted(chapters, key=lambda path: _numbers(path.parts[-2:]))


def _numbers(names: Iterable[str]) -> list[tuple[int, str]]:
    """Orders numbers by value: 19 comes before 103."""
    return [(int(n) if n.isdecimal() else 0, n) for n in names]


def _read_durations(manifest: Path) -> dict[str, float]:
    """Seconds by audio file, as far as a manifest has them.

    What is broken there is read from the audio, and written, again.
    """
    durations = {}
    with contextlib.suppress(ValueError, OSError):
        for _, row in read_rows(manifest, ("wav", "duration")):
            seconds = float(row["duration"])
            if math.isfinite(seconds) and seconds > 0:
                durations[row["wav"]] = seconds
    return durations


def _read_chapter(
    chapter: Path, root: Path, known: Mapping[str, float]
) -> list[Row]:
    speaker = chapter.parent.name
    text = chapter / f"{speaker}-{chapter.name}.trans.txt"
    if not text.is_file():
        raise ValueError(f"the chapter {chapter} lacks its {text.name}.")
    audio = {path.name for path in chapter.glob("*.flac")}
    rows, seen = [], set()
    for where, name, words in _read_transcripts(text):
        path = chapter / f"{name}.flac"
        if name in seen:
            raise ValueError(f"{where}: {name} has a transcript already.")
        seen.add(name)
        if path.name not in audio:
            raise ValueError(f"{where}: the audio file {path} is missing.")
        wav = f"$data_root/{path.relative_to(root).as_posix()}"
        duration = known.get(wav) or sound_duration(path, where, "LibriSpeech")
        rows.append(Row(name, duration, wav, speaker, words))
    silent = audio - {f"{row.ID}.flac" for row in rows}
    if silent:
        raise ValueError(
            f"{text} has no transcript of {min(silent)}, which lies beside it."
        )
    return rows


def _read_transcripts(text: Path) -> Iterator[tuple[str, str, str]]:
    """Yields where each utterance stands, its name and its words."""
    for number, line in enumerate(read_text(text).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{text} line {number}"
        name, *words = line.split()
        if not words:
            raise ValueError(f"{where}: the transcript of {name} is empty.")
        yield where, name, " ".join(words).upper()


def _check_disjoint(joined: Mapping[str, Sequence[Row]]) -> None:
    for use in ("train", "valid"):
        counts = Counter(row.ID for row in joined[use])
        for name, count in counts.most_common(1):
            if count > 1:
                raise ValueError(
                    f"{use}_splits hold the utterance {name} {count} times; "
                    "the splits of mini-LibriSpeech are parts of "
                    "LibriSpeech's."
                )
    trained = {row.ID for row in joined["train"]}
    for use in ("valid", "test"):
        for row in joined[use]:
            if row.ID in trained:
                raise ValueError(
                    f"the utterance {row.ID} of {use}_splits is in "
                    "train_splits too; a model must not be trained on what "
                    "it is tested on."
                )
