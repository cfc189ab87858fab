"""Reading a run folder's text files, and writing files of a comparison."""

import contextlib
import os
from pathlib import Path


class RunError(ValueError):
    """A run folder that cannot be read or compared, said in one sentence."""


def read_text(path: Path) -> str:
    """Returns the text of a regular UTF-8 file.

    Arguments
    ---------
    path : Path
        The file.

    Returns
    -------
    str
        Its text, with Windows line ends made plain.

    Raises
    ------
    RunError
        If it is no regular file, cannot be opened, is empty or is not UTF-8
        text; the message names the file.

    Example
    -------
    >>> path = Path(getfixture("tmp_path")) / "wer_test.txt"
    >>> _ = path.write_bytes(b"%WER 0.00\\r\\n")
    >>> read_text(path)
    '%WER 0.00\\n'
    """
    # A named pipe would block for ever.
    if not path.is_file():
        raise RunError(f"'{path}' is not a regular file.")
    try:
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


def check_writable(path: Path) -> None:
    """Makes sure that a file can be written, before long work is begun.

    Arguments
    ---------
    path : Path
        The file.

    Raises
    ------
    OSError
        If it is a folder, or its folder does not exist or cannot be written.

    Example
    -------
    >>> check_writable(Path("no such folder/page.html"))
    Traceback (most recent call last):
    FileNotFoundError: The folder of 'no such folder/page.html' does not exist.
    """
    if path.is_dir():
        raise IsADirectoryError(f"'{path}' is a folder, not a file to write.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The folder of '{path}' does not exist.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
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
        If the folder does not exist or cannot be written.

    Example
    -------
    >>> path = Path(getfixture("tmp_path")) / "comparison.json"
    >>> write_atomically(path, b"{}\\n")
    >>> path.read_text()
    '{}\\n'
    """
    check_writable(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_bytes(content)
        os.replace(draft, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
