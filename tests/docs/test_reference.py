"""What the pages say of flags and messages is what the package does."""

import re

import pytest
from blocks import ROOT
from hyperpyyaml import load_hyperpyyaml

DOCS = ROOT / "docs"
RECIPES = sorted((ROOT / "recipes").glob("*/ASR/transducer/hparams/*.yaml"))
FLAGS = (DOCS / "flags.md").read_text(encoding="utf-8")
TROUBLES = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
# key, values and default: a line of three columns or more, of which the third
# has a default.
FLAG = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|", re.MULTILINE)
# Adjacent literals are one message.
SOURCE = re.sub(
    r'"\s*\n\s*f?"',
    "",
    "\n".join(
        path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "speechbrain_triton").rglob("*.py"))
    ),
)


def section(text: str, title: str) -> str:
    """What stands below a heading, up to the next one of its level."""
    level = title.split()[0]
    below = text.split(f"\n{title}\n")[1]
    return re.split(rf"\n{level} ", below)[0]


def flags_of(title: str) -> dict[str, tuple[str, str]]:
    """Key to values and default, in the first table below a heading."""
    table = re.search(r"(^\|.*\n)+", section(FLAGS, title), re.MULTILINE)[0]
    return {m[1]: (m[2], m[3]) for m in FLAG.finditer(table)}


KERNELS = flags_of("## Kernels")
ARCHITECTURE = flags_of("## Architecture")
TRAINING = flags_of("## Training")


@pytest.fixture(scope="module")
def hparams(tmp_path_factory):
    """Each recipe's hyperparameters, by its path."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(tmp_path_factory.mktemp("recipes"))
        return {
            path: load_hyperpyyaml(
                path.read_text(encoding="utf-8"),
                {"data_folder": ".", "num_encoder_layers": 1},
            )
            for path in RECIPES
        }


def test_defaults_are_those_of_the_recipes(hparams):
    documented = KERNELS | ARCHITECTURE | TRAINING
    assert len(documented) > 18
    for path, values in hparams.items():
        for key, (_, default) in documented.items():
            if key == "frontend_channels" and "fast" not in path.name:
                continue
            found = str(values[key])
            if default == "per recipe" or key == "cudnn_attention":
                continue
            first, _, other = default.partition("; LibriSpeech ")
            expected = other if other and "LibriSpeech" in str(path) else first
            assert f"`{found}`" == expected, (path, key)


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: "/".join(p.parts[-5:]))
def test_no_flag_is_left_out(path):
    text = path.read_text(encoding="utf-8")
    block = text.split("# Flags\n")[1].split("\n\n")[0]
    keys = set(re.findall(r"^(\w+):", block, re.MULTILINE))
    assert len(keys) > 5
    assert keys <= KERNELS.keys() | ARCHITECTURE.keys() | TRAINING.keys()


@pytest.mark.parametrize(
    ("key", "call"),
    [
        ("conv_backend", "BACKENDS"),
        ("frontend_backend", "BACKENDS"),
        ("ffn_backend", "BACKENDS"),
        ("loss_backend", "LOSSES"),
        ("ffn", "FEEDFORWARDS"),
        ("geglu_keep", "KEEPS"),
        ("geglu_approximate", "APPROXIMATIONS"),
    ],
)
def test_values_are_those_that_are_allowed(key, call):
    from speechbrain_triton.backend import BACKENDS
    from speechbrain_triton.modules.architecture import FEEDFORWARDS, KEEPS
    from speechbrain_triton.ops.geglu_linear.reference import APPROXIMATIONS
    from speechbrain_triton.training.losses import BACKENDS as LOSSES

    allowed = {
        "BACKENDS": BACKENDS,
        "LOSSES": LOSSES,
        "FEEDFORWARDS": FEEDFORWARDS,
        "KEEPS": KEEPS,
        "APPROXIMATIONS": APPROXIMATIONS,
    }[call]
    values = (KERNELS | ARCHITECTURE)[key][0]
    assert tuple(re.findall(r"`(\w+)`", values)) == tuple(allowed)


def messages() -> list[str]:
    """What the page quotes of the package, in tables and headings."""
    found = []
    for line in TROUBLES.splitlines():
        if line.startswith("| `") and " " in line.split("`")[1]:
            found += re.findall(r"`([^`]+)`", line.split(" | ")[0])
    for heading in re.findall(r'^## "([^"]+)"', TROUBLES, re.MULTILINE):
        found.append(heading)
    return found


# Of the system and of PyTorch.
FOREIGN = {"Permission denied"}


@pytest.mark.parametrize("message", sorted(set(messages()) - FOREIGN))
def test_messages_are_those_of_the_package(message):
    pieces = [piece.strip(" ,.") for piece in message.split("...")]
    assert any(pieces)
    for piece in filter(None, pieces):
        # What the program fills in may be a name in the page.
        variable = re.escape(piece)
        for name in ("ConvolutionModule", "'geglu'"):
            variable = variable.replace(re.escape(name), "(.{1,40})")
        assert re.search(variable, SOURCE), piece


def test_there_are_messages():
    assert len(messages()) > 20
