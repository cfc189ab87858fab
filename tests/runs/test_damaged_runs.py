"""``compare`` on files that are no run's: one sentence, and nothing written."""

import json
import os
from pathlib import Path

import pytest
from damaged_files import (
    directory,
    endless,
    huge,
    locked,
    loop,
    pipe,
    put,
)
from run_folders import HAND_COUNTED

from speechbrain_triton.cli import main

PERFECT = {key: (text, text) for key, (text, _) in HAND_COUNTED.items()}
LOG = b"epoch: 1 - train loss: 2.5\nEpoch loaded: 1 - test loss: 1.5\n"


@pytest.fixture
def folders(make_run, tmp_path):
    make_run("off", conv_backend="torch")
    make_run("on", PERFECT, conv_backend="triton")
    for name in ("off", "on"):
        (tmp_path / name / "train_log.txt").write_bytes(LOG)
    return tmp_path


NO_FILE = "is not a regular file"
REFUSED = [
    ("wer_test.txt", b"", "is empty"),
    ("wer_test.txt", b"\0" * 9, "is a binary file"),
    ("wer_test.txt", "%WER é".encode("utf-16"), "is a binary file"),
    ("wer_test.txt", "%WER é".encode("latin-1"), "is not UTF-8 text: byte"),
    ("wer_test.txt", b"a" * 1_000_000, "is not a WER file"),
    ("wer_test.txt", b"ID,duration\nutt1,2.5\n", "is not a WER file"),
    ("wer_test.txt", b"%%WER 1.00 [ 1 / %s, 0 ins, 0 del, 1 sub ]\n"
     % (b"9" * 5000), "is not a WER file"),
    ("wer_test.txt", huge, "has 200,000,000 bytes; at most 100,000,000"),
    ("wer_test.txt", directory, NO_FILE),
    ("wer_test.txt", pipe, NO_FILE),
    ("wer_test.txt", loop, NO_FILE),
    ("wer_test.txt", endless, NO_FILE),
    ("wer_test.txt", locked, "cannot be read: Permission denied"),
    ("hyperparams.yaml", b"seed: [1", "is not valid YAML"),
    ("hyperparams.yaml", b"seed: \xe9\n", "is not UTF-8 text"),
    ("hyperparams.yaml", b"[" * 9_000, "is nested too deeply"),
    ("hyperparams.yaml", b"a word\n" * 500_000, "has 3,500,000 bytes; at most"),
    ("hyperparams.yaml", pipe, NO_FILE),
    ("train_log.txt", b"", "is empty"),
    ("train_log.txt", b"a: 1, " * 5_000_000, "has 30,000,000 bytes; at most"),
    ("train_log.txt", b"epoch: 1 - train loss: 2\n", "is unfinished"),
    ("train_log.txt", pipe, NO_FILE),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "reason"), REFUSED)
def test_refused(name, content, reason, folders, capsys):
    put(folders / "on" / name, content)
    (folders / "old.json").write_text("old")
    before = sorted(folders.rglob("*"))
    output = ["--output", str(folders / "old.json"), "--html"]
    output.append(str(folders / "page.html"))
    runs = [str(folders / "off"), str(folders / "on")]
    assert main(["compare", *runs, *output]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1, error
    assert name in error or name == "train_log.txt" and "/on'" in error
    assert reason in error
    assert sorted(folders.rglob("*")) == before
    assert (folders / "old.json").read_text() == "old"


# What helps to compare is left out where it cannot be understood.
PASSED_OVER = [
    ("steps.csv", b"%s,1\n1,%s\n2,nan\n3,inf\n" % (b"9" * 5000, b"9" * 400)),
    ("steps.csv", b"1,1e308\n2,-1e308\n"),
    ("steps.csv", pipe),
    # A word without end, which a careless search reads from each letter on.
    ("log.txt", b"a" * 300_000),
    ("log.txt", b"\xff\xfe\0\n"),
    ("env.log", b"torch==" + b"-/" * 100_000),
    ("hyperparams.yaml", b"a: !!bool maybe\nb: !!int ''\nc: !!float ''\n"),
    ("hyperparams.yaml", b"a: " + b"1:" * 3000 + b"1\nb: &b [*b]\n"),
    ("hyperparams.yaml", b"? [a, b]\n: 1\n? {c: d}\n: 2\n"),
    ("train_log.txt", b"epoch: %s, steps: %s - train loss: %s\n"
     % (b"9" * 5000, b"9" * 5000, b"9" * 400) + LOG),
    ("train_log.txt", b"epoch: 1, steps: 9%s, seconds: nan, peak_mib: inf - "
     b"train loss: 1e308\n" % (b"9" * 30) + LOG.replace(b"1", b"2")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content"), PASSED_OVER)
def test_passed_over(name, content, folders, capsys, recwarn):
    put(folders / "on" / name, content)
    html, output = folders / "page.html", folders / "all.json"
    drawn = name in ("steps.csv", "train_log.txt")
    arguments = [str(folders / "off"), str(folders / "on")]
    arguments += [f"--output={output}", *[f"--html={html}"][:drawn]]
    assert main(["compare", *arguments]) == 0
    assert "13 words" in capsys.readouterr().out
    assert not recwarn.list
    assert json.loads(output.read_text())["conclusions"]
    assert not drawn or html.read_text("utf-8").endswith("</html>\n")


@pytest.mark.parametrize(
    "name",
    ["a  b", "Zoë 漢", "new\nline", "-dash", "\x1b[31mred", "$x_{", "x" * 250,
     os.fsdecode(b"\xff"), "[bold]x", "{{ x }}"],
    ids=ascii,
)  # fmt: skip
def test_any_name_of_a_folder(name, folders, capsys, monkeypatch):
    monkeypatch.chdir(folders)
    (folders / "on").rename(name)
    assert main(["compare", "--output=o.json", "--", "off", name]) == 0
    out, error = capsys.readouterr()
    assert error == "" and "\x1b" not in out
    assert json.loads(Path("o.json").read_text())["runs"][1]["path"] == name
    assert main(["compare", "--", "off", f"{name}/wer_test.txt"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "\x1b" not in error
    assert "give the folder of a finished run" in error


OUTPUTS = [
    (pipe, "is there and is not a regular file"),
    (lambda path: path.symlink_to("/dev/null"), "is not a regular file"),
    (loop, "is not a regular file"),
    (directory, "is a folder"),
]


@pytest.mark.parametrize(("make", "reason"), OUTPUTS)
@pytest.mark.parametrize("option", ["--output", "--html", "--png"])
def test_output_that_is_no_file(make, reason, option, folders, capsys):
    path = folders / "out"
    make(path)
    kind = path.lstat().st_mode
    runs = [str(folders / "off"), str(folders / "on")]
    assert main(["compare", *runs, option, str(path)]) == 2
    out, error = capsys.readouterr()
    assert out == "" and f"'{path}' {reason[:3]}" in error and reason in error
    assert path.lstat().st_mode == kind


def test_outputs_behind_links_and_long_names(folders, capsys, monkeypatch):
    monkeypatch.chdir(folders)
    Path("link").symlink_to("old")
    Path("old").write_text("old")
    for name in ("link", "x" * 255):
        assert main(["compare", "off", "on", "--output", name]) == 0
        assert json.loads(Path(name).read_text())["runs"]
    assert Path("link").is_symlink()
    assert main(["compare", "off", "on", "--output", "x" * 256]) == 2
    assert "File name too long" in capsys.readouterr().err


def test_folder_that_may_not_be_read(folders, capsys):
    (folders / "on").chmod(0)
    try:
        if os.access(folders / "on", os.R_OK):
            pytest.skip("this user may read everything")
        assert main(["compare", str(folders / "off"), str(folders / "on")]) == 2
        assert f"'{folders / 'on'}': Permission denied." in (
            capsys.readouterr().err
        )
    finally:
        (folders / "on").chmod(0o700)
