"""The command line, in processes of their own where that matters."""

import json
import os
import subprocess
import sys

import pytest

import speechbrain_triton
from speechbrain_triton import cli, doctor


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "speechbrain_triton", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


@pytest.fixture
def command(monkeypatch):
    """Makes ``bench`` a command whose work is the given function."""

    def install(work):
        class Module:
            @staticmethod
            def add_arguments(parser):
                parser.add_argument("--times", type=int, default=1)

            run = staticmethod(work)

        real = cli.importlib.import_module

        def import_module(name):
            return Module if name.endswith("bench.command") else real(name)

        monkeypatch.setattr(cli.importlib, "import_module", import_module)

    return install


def test_help_names_all_commands_and_loads_none():
    code = (
        "import sys\n"
        "from speechbrain_triton.cli import main\n"
        "assert main(['--help']) == 0\n"
        "heavy = {'torch', 'speechbrain', 'scipy', 'triton', 'rich'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules)"
        " else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for name in ("compare", "demo", "doctor", "bench"):
        assert f"\n    {name} " in done.stdout


def test_doctor_says_what_each_flag_would_take(capsys):
    assert cli.main(["doctor"]) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    for kind in ("conv", "frontend", "ffn"):
        assert any(line.startswith(f"{kind}: 'auto' takes ") for line in lines)
    cli.main(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)
    assert sorted(findings["kinds"]) == ["conv", "ffn", "frontend"]
    for finding in findings["kinds"].values():
        assert (finding["path"] == "triton") == (finding["error"] is not None)
        assert finding["verdict"] == "ok"


def test_doctor_finds_a_kernel_that_computes_something_else(
    monkeypatch, capsys
):
    monkeypatch.setattr(
        "speechbrain_triton.kinds.expected_path", lambda flag: ("triton", "so")
    )
    monkeypatch.setattr(doctor, "_try_conv", lambda: 1e-8)
    monkeypatch.setattr(doctor, "_try_frontend", lambda: float("nan"))
    monkeypatch.setattr(doctor, "_try_ffn", lambda: 1e-3)
    assert cli.main(["doctor", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)
    verdicts = {k: f["verdict"] for k, f in findings["kinds"].items()}
    assert verdicts == {"conv": "ok", "frontend": "bad", "ffn": "bad"}


def test_help_of_compare(capsys):
    assert cli.main(["compare", "--help"]) == 0
    assert "--group-by" in capsys.readouterr().out


def test_version_and_module():
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.split()[-1] == speechbrain_triton.__version__


@pytest.mark.parametrize(
    "arguments", [[], ["train"], ["compare"], ["compare", "--group-by", "a,"]]
)
def test_bad_usage(arguments, capsys):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "error: " in captured.err


def test_exit_code_is_that_of_the_command(command):
    command(lambda args: args.times)
    assert cli.main(["bench", "--times", "3"]) == 3


@pytest.mark.parametrize(
    "error, sentence",
    [
        (
            ValueError("conv must be 'auto',\nnot 'on'"),
            "conv must be 'auto', not",
        ),
        (FileNotFoundError("There is no run 'x'."), "There is no run 'x'."),
        (
            PermissionError(13, "Permission denied", "out.csv"),
            "'out.csv': Perm",
        ),
    ],
)
def test_mistakes_of_the_user_are_one_sentence(
    command, capsys, error, sentence
):
    def fail(args):
        raise error

    command(fail)
    assert cli.main(["bench"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(
        f"speechbrain-triton bench: error: {sentence}"
    )
    assert captured.err.count("\n") == 1
    assert cli.main(["--traceback", "bench"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_mistakes_of_the_program_are_not_hidden(command):
    def fail(args):
        raise TypeError("a bug")

    command(fail)
    with pytest.raises(TypeError, match="a bug"):
        cli.main(["bench"])


def test_interrupt(command, capsys):
    def stop(args):
        raise KeyboardInterrupt

    command(stop)
    assert cli.main(["bench"]) == 130
    assert capsys.readouterr().err == "speechbrain-triton bench: interrupted\n"


TALKATIVE = (
    "import sys\n"
    "from speechbrain_triton import cli\n"
    "class Module:\n"
    "    add_arguments = staticmethod(lambda parser: None)\n"
    "    run = staticmethod(lambda args: print('x' * 2**20) or 0)\n"
    "cli.importlib.import_module = lambda name: Module\n"
    "sys.exit(cli.main(['bench']))\n"
)


@pytest.mark.parametrize(
    ("redirection", "code", "error"),
    [
        ("| true", 141, ""),
        ("2>&1 | true", 141, ""),
        (">&-", 0, ""),
        (">&- 2>&-", 0, ""),
        (">/dev/full", 2, "speechbrain-triton bench: error: No space left on"),
        (">/dev/full 2>/dev/full", 2, ""),
    ],
)
def test_output_that_nobody_reads(redirection, code, error, tmp_path):
    (tmp_path / "talk.py").write_text(TALKATIVE)
    paths = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        f"{{ {sys.executable} {tmp_path}/talk.py; echo $? >{tmp_path}/code; }} "
        f"{redirection}",
        shell=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert (tmp_path / "code").read_text() == f"{code}\n"
    assert done.stdout == "" and done.stderr.count("\n") == bool(error)
    assert done.stderr.startswith(error)


def test_any_file_name_can_be_said(tmp_path):
    name = os.fsdecode(b"results of Zo\xc3\xab \xff")
    done = run("compare", name, "x", env=os.environ | {"LC_ALL": "C"})
    assert done.returncode == 2
    assert "does not exist" in done.stderr and "Traceback" not in done.stderr


def test_what_a_terminal_would_obey_is_spelled_out(command, capsys):
    def fail(args):
        raise FileNotFoundError(2, "No such file", "a\x1b[31m\nb")

    command(fail)
    assert cli.main(["bench"]) == 2
    assert capsys.readouterr().err == (
        "speechbrain-triton bench: error: 'a\\x1b[31m\\nb': No such file.\n"
    )
