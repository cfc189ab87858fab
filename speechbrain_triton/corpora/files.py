"""Files that are whole or absent, and the progress bar over long work."""

import contextlib
import fcntl
import io
import os
from collections.abc import Iterator
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

    Example
    -------
    >>> path = getfixture("tmp_path") / "new" / "a.txt"
    >>> write_atomically(path, b"whole")
    >>> path.read_bytes()
    b'whole'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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
    with open(folder / ".lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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
