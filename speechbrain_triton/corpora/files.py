"""Files that are whole or absent, and the progress bar over long work."""

import contextlib
import csv
import fcntl
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import soundfile
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from speechbrain_triton import files
from speechbrain_triton.files import read_text

SAMPLE_RATE = 16000
"""Sampling rate of every corpus here, in Hz."""


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file under a temporary name beside it, then renames.

    Whatever interrupts the program, ``path`` holds either all of ``content``
    or what it held before.

    Arguments
    ---------
    path : Path
        File to write; its folder is made where it is missing.
    content : bytes
        What the file holds afterwards.

    Raises
    ------
    OSError
        If the file cannot be written; the message names it.

    Example
    -------
    >>> path = getfixture("tmp_path") / "new" / "a.txt"
    >>> write_atomically(path, b"whole")
    >>> path.read_bytes()
    b'whole'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(path, content)


def remove_temporaries(folder: Path) -> None:
    """Removes what a killed :func:`write_atomically` left under ``folder``.

    Arguments
    ---------
    folder : Path
        Folder to clean, with all folders below it. No other process may be
        writing there; see :func:`exclusive`.
    """
    for stray in folder.rglob(".*.tmp"):
        stray.unlink(missing_ok=True)


def write_flac(path: Path, samples: np.ndarray) -> None:
    """Writes mono 16-bit FLAC at 16 kHz, atomically.

    Arguments
    ---------
    path : Path
        File to write.
    samples : np.ndarray
        Shape (samples,), dtype int16.

    Example
    -------
    >>> path = getfixture("tmp_path") / "silence.flac"
    >>> write_flac(path, np.zeros(8000, np.int16))
    >>> soundfile.info(path).duration
    0.5
    """
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, SAMPLE_RATE, "PCM_16", format="FLAC")
    write_atomically(path, buffer.getvalue())


def sound_duration(path: Path, entry: str, corpus: str) -> float:
    """Reads the header of a sound file that must be mono at 16 kHz.

    Arguments
    ---------
    path : Path
        The file.
    entry : str
        Where it is listed, for messages.
    corpus : str
        Name of the corpus, for messages.

    Returns
    -------
    float
        In seconds.

    Raises
    ------
    ValueError
        If it is no such file; the message names both.

    Example
    -------
    >>> path = getfixture("tmp_path") / "silence.flac"
    >>> write_flac(path, np.zeros(8000, np.int16))
    >>> sound_duration(path, "train.csv line 2", "AN4")
    0.5
    """
    # libsndfile would wait for a named pipe for ever.
    if not path.is_file():
        raise ValueError(f"{entry}: {path} is not a regular file.")
    try:
        info = soundfile.info(path)
    # The second for a name that is no UTF-8, which no manifest can hold.
    except (soundfile.LibsndfileError, UnicodeEncodeError) as error:
        raise ValueError(f"{entry}: {path} is not readable audio.") from error
    if info.samplerate != SAMPLE_RATE or info.channels != 1 or not info.frames:
        raise ValueError(
            f"{entry}: {path} has {info.channels} channels, "
            f"{info.samplerate} Hz and {info.frames} frames; {corpus} is "
            f"mono at {SAMPLE_RATE} Hz."
        )
    return info.duration


def read_rows(
    path: Path, columns: Sequence[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Reads a CSV file, each row with where it stands.

    Arguments
    ---------
    path : Path
        UTF-8 text with a line of column names.
    columns : Sequence[str]
        Those that must be there.

    Yields
    ------
    where : str
        For messages.
    row : dict[str, str]
        Column to field.

    Raises
    ------
    ValueError
        If the file cannot be read, is no such table, lacks a column or has a
        row without a field of these columns; the message names it.

    Example
    -------
    >>> path = getfixture("tmp_path") / "a.csv"
    >>> _ = path.write_text("id,words\\n7,GO ON\\n")
    >>> [(where.split()[-1], row) for where, row in read_rows(path, ["id"])]
    [('2', {'id': '7', 'words': 'GO ON'})]
    """
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    try:
        absent = set(columns) - set(reader.fieldnames or ())
        if absent:
            raise ValueError(f"{path} lacks the columns {sorted(absent)}.")
        for row in reader:
            where = f"{path} line {reader.line_num}"
            if any(row[column] is None for column in columns):
                raise ValueError(f"{where}: the row is too short.")
            yield where, row
    except csv.Error as error:
        raise ValueError(
            f"{path} line {reader.line_num + 1} is no row of a table: {error}."
        ) from error


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Keeps other processes that ask for the same folder waiting.

    Arguments
    ---------
    folder : Path
        Folder to work in, made where it is missing. The lock ends with the
        process, however that ends.

    Yields
    ------
    None
        Once this process alone holds the folder.

    Example
    -------
    >>> with exclusive(getfixture("tmp_path")):
    ...     print("alone here")
    alone here
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Unlike open(), this neither empties a file nor waits for a pipe's reader.
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def progress_bar(shown: bool) -> Progress:
    """Makes a progress bar on standard error.

    Arguments
    ---------
    shown : bool
        ``False`` hides it. It is hidden, too, where standard error is not a
        terminal.

    Returns
    -------
    Progress
        A context manager; ``add_task`` and ``advance`` move the bar.

    Example
    -------
    >>> with progress_bar(False) as bar:
    ...     task = bar.add_task("Working", total=2)
    ...     bar.advance(task)
    """
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not (shown and console.is_terminal),
    )
