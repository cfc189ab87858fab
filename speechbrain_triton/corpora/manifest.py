"""CSV manifests as SpeechBrain's ``DynamicItemDataset.from_csv`` reads them."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from speechbrain_triton.corpora.files import write_atomically


class Row(NamedTuple):
    """One utterance of a manifest; the fields are the columns, in order.

    Arguments
    ---------
    ID : str
        Unique within a corpus.
    duration : float
        In seconds.
    wav : str
        Audio file, below ``$data_root`` or absolute.
    spk_id : str
        Speaker.
    wrd : str
        Transcript, upper case, one space between words.
    """

    ID: str
    duration: float
    wav: str
    spk_id: str
    wrd: str


def write_manifest(path: Path, rows: Iterable[Row]) -> bool:
    """Writes a manifest unless it already says the same.

    Arguments
    ---------
    path : Path
        CSV file to write, atomically.
    rows : Iterable[Row]
        Utterances, in the order wanted.

    Returns
    -------
    bool
        Whether the file was written; one with the same content stays
        untouched, its time of modification included.

    Example
    -------
    >>> path = getfixture("tmp_path") / "train.csv"
    >>> row = Row("a1", 0.5, "$data_root/a1.flac", "anna", "GO")
    >>> write_manifest(path, [row])
    True
    >>> print(path.read_text(), end="")
    ID,duration,wav,spk_id,wrd
    a1,0.5000,$data_root/a1.flac,anna,GO
    >>> write_manifest(path, [row])
    False
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    for row in rows:
        writer.writerow(row._replace(duration=f"{row.duration:.4f}"))
    content = text.getvalue().encode()
    if path.is_file() and path.read_bytes() == content:
        return False
    write_atomically(path, content)
    return True
