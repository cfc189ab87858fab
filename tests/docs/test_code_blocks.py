"""Every block of code in the documentation runs, loads or parses."""

import re
import subprocess
import tomllib
from copy import deepcopy

import pytest
import recipe_runs
import soundfile
import speechbrain as sb
import torch
import yaml
from blocks import ROOT, Block, blocks_of, unknown_languages
from hyperpyyaml import load_hyperpyyaml
from shell import commands
from speechbrain.lobes.models.transformer.Conformer import ConformerEncoder

import speechbrain_triton
from speechbrain_triton import cli

RECIPE = recipe_runs.AN4 / recipe_runs.YAML
HPARAMS = sorted((ROOT / "recipes").glob("*/ASR/transducer/hparams/*.yaml"))
ENTRY = re.compile(r"^(\w+):(?:.*\n)(?:(?![A-Za-z_]).*\n)*", re.MULTILINE)
STREAMING_RUN = {
    "training_steps": 1,
    "streaming": True,
    "n_mels": 16,
    "batch_size": 12,
    "valid_every": 1,
}


def test_no_block_is_passed_by():
    assert not unknown_languages()
    for language in ("python", "yaml", "bash"):
        pages = {block.page.name for block in blocks_of(language)}
        assert "README.md" in pages and len(pages) > 2


# Python


def encoder():
    """A model for examples that speak of one."""
    return ConformerEncoder(
        num_layers=1, d_model=16, d_ffn=32, nhead=2, kernel_size=5
    )


NAMES = {
    "st": lambda: speechbrain_triton,
    "model": encoder,
    "x": lambda: torch.rand(2, 20, 16),
    "weight": lambda: torch.rand(16, 1, 5),
    "bias": lambda: torch.rand(16),
    "depthwise_conv1d": lambda: speechbrain_triton.ops.depthwise_conv1d,
    "samples": lambda: torch.rand(8000) - 0.5,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A streaming run of one step."""
    folder = tmp_path_factory.mktemp("run")
    corpus = recipe_runs.write_corpus(folder / "an4")
    arguments = recipe_runs.arguments(corpus, folder / "1", **STREAMING_RUN)
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert recipe_runs.run_here(arguments, monkeypatch) == 0
    return folder / "1"


@pytest.fixture
def workplace(tmp_path, monkeypatch, request):
    """A folder with what examples of streaming read, where they do."""
    monkeypatch.chdir(tmp_path)
    code = request.node.callspec.params["block"].code
    if "my_model" in code:
        finished = tmp_path / "results" / "conformer_transducer" / "1"
        finished.parent.mkdir(parents=True)
        finished.symlink_to(request.getfixturevalue("run"))
        if "export_run" not in code:
            from speechbrain_triton.streaming import export_run

            export_run(finished, "my_model")
        soundfile.write("talk.flac", NAMES["samples"]().numpy(), 16000)
    return tmp_path


@pytest.mark.parametrize("block", blocks_of("python"), ids=lambda b: b.id)
def test_python_runs(block: Block, workplace, device):
    program = compile(block.code, block.id, "exec")
    names = {n: make() for n, make in NAMES.items() if n in program.co_names}
    if 'backend="triton"' not in block.code:
        device = "cpu"
    with torch.device(device):
        exec(program, names)


# YAML


def entries(text: str) -> dict[str, str]:
    """The entries of a YAML file at its first level, as text."""
    return {match[1]: match[0] for match in ENTRY.finditer(text)}


def completed(entry: str, other: str) -> str:
    """An entry whose comment ``# ...`` stands for the rest of another one."""
    own = set(re.findall(r"^ +(\w+):", entry, re.MULTILINE))
    rest = [
        line
        for line in other.splitlines()[1:]
        if line.strip().split(":")[0] not in own
    ]
    return entry.replace("   # ...", "\n".join(rest))


@pytest.mark.parametrize("block", blocks_of("yaml"), ids=lambda b: b.id)
def test_yaml_loads_in_a_recipe(block: Block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = entries(RECIPE.read_text(encoding="utf-8"))
    added = {
        name: completed(entry, recipe.get(name, ""))
        for name, entry in entries(block.code).items()
    }
    assert added and "".join(entries(block.code).values()) in block.code
    if "CNN" in added:
        # The size of what goes into the encoder follows from the front end.
        added.setdefault(
            "Transformer",
            recipe["Transformer"].replace(
                "!ref <n_mels> // 4 * 32", "!ref <CNN.output_size>"
            ),
        )
    sizes = {
        name: recipe_runs.TINY[name]
        for name in ("d_model", "nhead", "num_encoder_layers", "d_ffn")
    }
    text = "".join((recipe | added).values())
    hparams = load_hyperpyyaml(text, {"data_folder": ".", **sizes})
    assert added.keys() <= hparams.keys()
    assert hparams["kernels"].conv.names
    if hparams["ffn"] == "geglu":
        assert len(hparams["kernels"].ffn.names) == 2


# Shell


def check_command(words: list[str]) -> None:
    """Fail for a command that does not exist or has other options."""
    name, *arguments = words
    if name == "speechbrain-triton":
        chosen = next(w for w in arguments if not w.startswith("-"))
        cli._build_parser(chosen).parse_args(arguments)
    elif name == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(arguments) <= set(targets)
    elif name == "pip":
        check_installation(arguments)
    elif "train.py" in arguments:
        check_training(arguments[arguments.index("train.py") + 1 :])
    elif name == "python":
        check_python(arguments)
    else:
        assert name in {"cd", "export", "source", "mkdocs"}, words


def check_installation(arguments: list[str]) -> None:
    command, *packages = arguments
    assert command == "install"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for package in packages:
        if extra := re.fullmatch(r"\.\[(\w+)\]", package):
            assert extra[1] in project["optional-dependencies"]


def check_python(arguments: list[str]) -> None:
    if arguments[:2] == ["-m", "pytest"]:
        arguments = arguments[2:]
    for path in arguments:
        assert (ROOT / path).exists(), path


def check_training(arguments: list[str]) -> None:
    """Refuse options that are neither SpeechBrain's nor keys of the YAML."""
    path, _, overrides = sb.parse_arguments(arguments)
    given = set(yaml.safe_load(overrides) or {})
    files = [file for file in HPARAMS if str(file).endswith(path)]
    if path == "hparams/...":
        files = HPARAMS
    assert files
    known = [set(entries(file.read_text(encoding="utf-8"))) for file in files]
    assert any(given <= keys for keys in known), given


@pytest.mark.parametrize("block", blocks_of("bash", "sh"), ids=lambda b: b.id)
def test_commands_exist(block: Block):
    subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)
    found = commands(block.code)
    assert found
    for words in found:
        check_command(words)


@pytest.mark.parametrize(
    "words",
    [
        "speechbrain-triton compare a b --html5 c",
        "speechbrain-triton bench --op conv",
        "speechbrain-triton train",
        "make demos",
        "pip install .[plot]",
        "python train.py hparams/conformer_transducer.yaml --conv=auto",
        "python docs/scripts/drawing.py",
        "cargo build",
    ],
)
def test_a_wrong_command_is_found(words, capsys):
    with pytest.raises((AssertionError, SystemExit)):
        check_command(deepcopy(words).split())
