"""Files and manifests are whole or absent, and rewritten only when changed."""

import csv
import os
from pathlib import Path

import pytest
from rich.console import Console

from speechbrain_triton.corpora import files
from speechbrain_triton.corpora.files import progress_bar, write_atomically
from speechbrain_triton.corpora.manifest import Row, write_manifest


def test_failed_write_keeps_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_bytes(b"old")

    def fail(source, target):
        raise OSError(28, "no rename")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="a.csv' cannot be written: no rename"):
        write_atomically(path, b"new")
    assert os.listdir(tmp_path) == ["a.csv"]
    assert path.read_bytes() == b"old"


def test_manifest_keeps_awkward_fields(tmp_path):
    path = tmp_path / "new" / "train.csv"
    row = Row("a,1", 1 / 3, '$data_root/with "quotes".flac', "é", "IT'S")
    assert write_manifest(path, [row])
    with open(path, newline="", encoding="utf-8") as file:
        assert list(csv.DictReader(file)) == [
            row._replace(duration="0.3333")._asdict()
        ]


def test_manifest_is_written_only_when_it_changes(tmp_path):
    path = tmp_path / "train.csv"
    row = Row("a", 1.0, "a.flac", "s", "GO")
    assert write_manifest(path, [row])
    os.utime(path, ns=(1, 1))
    assert not write_manifest(path, iter([row]))
    assert path.stat().st_mtime_ns == 1
    assert write_manifest(path, [row._replace(wrd="STOP")])
    assert Path(path).read_text().endswith(",STOP\n")


@pytest.mark.parametrize(
    ("shown", "terminal", "visible"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_progress_needs_a_terminal(monkeypatch, shown, terminal, visible):
    monkeypatch.setattr(
        files,
        "Console",
        lambda stderr: Console(stderr=stderr, force_terminal=terminal),
    )
    bar = progress_bar(shown)
    assert bar.console.stderr
    assert bar.disable is not visible
