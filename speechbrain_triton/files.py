"""Reading text of unknown origin, and files that are whole or absent."""

import contextlib
import math
import os
from pathlib import Path

# More than any run writes; what is larger would keep a reader busy for long.
LARGEST = 100_000_000


class RunError(ValueError):
    """A file or folder of a run that is not usable, said in one sentence."""


def read_text(path: Path, largest: int = LARGEST) -> str:
    """Returns the text of a regular UTF-8 file.

    Arguments
    ---------
    path : Path
        The file.
    largest : int
        Most bytes that it may have.

    Returns
    -------
    str
        Its text, with Windows line ends made plain.

    Raises
    ------
    RunError
        If it is no regular file, cannot be opened, is empty, too large or not
        UTF-8 text; the message names the file.

    Example
    -------
    >>> path = Path(getfixture("tmp_path")) / "wer_test.txt"
    >>> _ = path.write_bytes(b"%WER 0.00\\r\\n")
    >>> read_text(path)
    '%WER 0.00\\n'
    """
    try:
        check_file(path, largest)
        content = path.read_bytes()
    except OSError as error:
        raise RunError(f"'{path}' cannot be read: {error.strerror}.") from error
    if not content.strip():
        raise RunError(f"'{path}' is empty.")
    if b"\0" in content:
        raise RunError(f"'{path}' is a binary file where text is expected.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RunError(
            f"'{path}' is not UTF-8 text: byte 0x{content[error.start]:02x} at "
            f"offset {error.start}."
        ) from error
    return text.replace("\r\n", "\n")


def check_file(path: Path, largest: float = math.inf) -> int:
    """Refuse a file that a reader would wait for, or be busy with, for long.

    Arguments
    ---------
    path : Path
        The file.
    largest : float
        Most bytes that it may have.

    Returns
    -------
    int
        How many it has.

    Raises
    ------
    RunError
        If it is no regular file, or too large.
    """
    # A named pipe would block for ever.
    if not path.is_file():
        raise RunError(f"'{path}' is not a regular file.")
    size = path.stat().st_size
    if size > largest:
        raise RunError(
            f"'{path}' has {size:,} bytes; at most {largest:,} are read."
        )
    return size


def check_writable(path: Path) -> None:
    """Makes sure that a file can be written, before long work is begun.

    Arguments
    ---------
    path : Path
        The file.

    Raises
    ------
    OSError
        If it is there and no regular file, or its folder does not exist or
        cannot be written.

    Example
    -------
    >>> check_writable(Path("no such folder/page.html"))
    Traceback (most recent call last):
    FileNotFoundError: The folder of 'no such folder/page.html' does not exist.
    """
    if path.is_dir():
        raise IsADirectoryError(f"'{path}' is a folder, not a file to write.")
    # A rename would take the place of a device or a pipe.
    target = _target(path)
    if os.path.lexists(target) and not target.is_file():
        raise OSError(f"'{path}' is there and is not a regular file.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"The folder of '{path}' does not exist.")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"The folder of '{path}' cannot be written.")


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees the old one or all of the new.

    Arguments
    ---------
    path : Path
        The file to write, in a folder that exists.
    content : bytes
        All that it will hold.

    Raises
    ------
    OSError
        If the file cannot be written; the message names it.

    Example
    -------
    >>> path = Path(getfixture("tmp_path")) / "comparison.json"
    >>> write_atomically(path, b"{}\\n")
    >>> path.read_text()
    '{}\\n'
    """
    check_writable(path)
    # Cut, as a name may have 255 bytes.
    target = _target(path)
    draft = target.with_name(f".{target.name[:50]}.{os.getpid()}.tmp")
    try:
        draft.write_bytes(content)
        os.replace(draft, target)
    except OSError as error:
        raise OSError(
            f"'{path}' cannot be written: {error.strerror}."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def _target(path: Path) -> Path:
    """The file itself: a rename would take the place of a link to it."""
    return Path(os.path.realpath(path))
