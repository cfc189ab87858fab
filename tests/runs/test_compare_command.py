"""``speechbrain-triton compare`` on files, from the shell's point of view."""

import json
import subprocess
import sys

import pytest
from run_folders import HAND_COUNTED

from speechbrain_triton.cli import main
from speechbrain_triton.runs import command

PERFECT = {key: (text, text) for key, (text, _) in HAND_COUNTED.items()}


@pytest.fixture
def folders(make_run):
    return [
        str(make_run("aus é", conv_backend="torch")),
        str(make_run("an é", PERFECT, conv_backend="triton")),
    ]


def test_table(folders, capsys):
    assert main(["compare", *folders]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "\x1b" not in captured.out
    lines = captured.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].strip() == "test: 4 utterances, 13 words"
    assert "aus é" in captured.out and "4/5/0" in captured.out
    sentence = " ".join(captured.out.rpartition("\n\n")[2].split())
    assert sentence.startswith(
        "test: WER torch 23.08 %, triton 0.00 %, difference -23.08 points"
    )
    assert sentence.endswith("no significant difference.")


def test_json_is_all_that_is_printed(folders, capsys, tmp_path):
    output = tmp_path / "comparison.json"
    assert main(["compare", *folders, "--json", "--output", str(output)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    document = json.loads(captured.out)
    assert document["runs"][0]["path"] == folders[0]
    assert output.read_text("utf-8") == captured.out


def test_output_beside_the_table(folders, capsys, tmp_path):
    output = tmp_path / "comparison.json"
    output.write_text("old")
    assert main(["compare", *folders, "--output", str(output)]) == 0
    assert "13 words" in capsys.readouterr().out
    assert json.loads(output.read_text())["conclusions"]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("option", ["--output", "--html", "--png"])
@pytest.mark.parametrize(
    "output, reason",
    [
        ("missing/x", "folder of 'missing/x' does not exist."),
        (".", "'.' is a folder, not a file to write."),
    ],
)
def test_output_that_cannot_be_written(
    folders, capsys, tmp_path, monkeypatch, option, output, reason
):
    monkeypatch.chdir(tmp_path)
    # Found out before any run is read.
    assert main(["compare", *folders, "no such run", option, output]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert reason in captured.err


def test_page_and_picture(folders, capsys, tmp_path):
    html, png = tmp_path / "a page", tmp_path / "picture"
    html.write_text("old")
    arguments = ["--html", str(html), "--png", str(png), "--json"]
    assert main(["compare", *folders, *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == "" and json.loads(captured.out)
    page = html.read_text("utf-8")
    assert page.startswith("<!DOCTYPE html>") and "aus é" in page
    assert page.endswith("</html>\n")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob(".*"))


def test_one_file_for_two_outputs(folders, capsys, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "x")
    arguments = ["--html", f"{tmp_path}/x", "--png", f"{tmp_path}/link"]
    assert main(["compare", *folders, *arguments]) == 2
    assert "--html and --png name one file" in capsys.readouterr().err


def test_another_kind_of_picture_is_refused(folders, tmp_path, capsys):
    picture = tmp_path / "picture.gif"
    assert main(["compare", *folders, "--png", str(picture)]) == 2
    assert "--png writes a PNG picture, not a '.gif'" in capsys.readouterr().err
    assert not picture.exists()


@pytest.mark.parametrize("option", ["--html", "--png"])
def test_without_what_draws(folders, capsys, tmp_path, monkeypatch, option):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    path = tmp_path / "x"
    assert main(["compare", *folders, option, str(path)]) == 2
    captured = capsys.readouterr()
    assert "pip install matplotlib jinja2" in captured.err
    assert captured.out == "" and not path.exists()
    assert main(["compare", *folders]) == 0


def test_old_files_outlive_a_failure(folders, tmp_path, monkeypatch):
    html = tmp_path / "x.html"
    html.write_text("old")

    def fail(source, target):
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr("os.replace", fail)
    assert main(["compare", *folders, "--html", str(html)]) == 2
    assert html.read_text() == "old" and not list(tmp_path.glob(".*"))


def test_options_reach_the_comparison(folders, capsys):
    arguments = ["compare", "--group-by", "conv_backend, seed", *folders]
    assert main(arguments) == 2
    assert "Cannot group by 'seed'" in capsys.readouterr().err
    assert main(["compare", "--test-set", "dev", *folders]) == 2
    assert "has no test set 'dev'" in capsys.readouterr().err


@pytest.mark.parametrize("bad", ["missing", "file", "empty"])
def test_bad_folders(folders, capsys, tmp_path, bad):
    path = tmp_path / bad
    if bad == "file":
        path.touch()
    elif bad == "empty":
        path.mkdir()
    assert main(["compare", folders[0], str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and str(path) in captured.err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_terminal_encoding(folders, encoding):
    code = "from speechbrain_triton.cli import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", code, "compare", *folders],
        capture_output=True,
        env={"PYTHONIOENCODING": encoding, "PATH": ""}
        | {"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert "no significant difference" in done.stdout.decode(encoding)
