"""What sdist and wheel hold, and the wheel's use in another folder."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import speechbrain_triton

pytest.importorskip("hatchling")
ROOT = Path(__file__).parents[2]
PACKAGE = "speechbrain_triton"
RECIPE = Path("recipes", "AN4", "ASR", "transducer")
# What a training and Python leave in the folder of a recipe.
LEFT_BEHIND = (
    RECIPE / "results" / "1" / "save" / "model.ckpt",
    RECIPE / "__pycache__" / "train.cpython-311.pyc",
)


def build(target, source, folder):
    subprocess.run(
        [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "-t",
            target,
            "-d",
            folder,
        ],
        cwd=source,
        check=True,
        capture_output=True,
        timeout=60,
    )
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def tree(sdist, tmp_path_factory):
    """The unpacked sdist."""
    folder = tmp_path_factory.mktemp("tree")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


@pytest.fixture(scope="module")
def wheel(tree, tmp_path_factory):
    return build("wheel", tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--isolated", "install", "--no-deps"]
    subprocess.run(
        [*pip, "--no-index", "--no-compile", "--target", folder, wheel],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return folder


def run(command, installed, folder):
    """Run a command that finds the installed package and no other."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(folder):
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file()
    }


def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_sdist_holds_all_that_is_tracked_but_dot_files(tree):
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not in a checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True
    )
    tracked = {
        name
        for name in listed.stdout.split("\0")
        if (ROOT / name).is_file() and not name.startswith(".")
    }
    assert len(tracked) > 100
    assert not tracked - files(tree)


def test_sdist_holds_what_the_tests_and_the_makefile_read(tree):
    for name in (
        "Makefile",
        "mkdocs.yml",
        "docs/index.md",
        "tests/conftest.py",
    ):
        assert (tree / name).is_file(), name


def test_wheel_holds_package_recipes_and_licence_and_nothing_else(tree, wheel):
    wanted = {f"{PACKAGE}/{name}" for name in files(tree / PACKAGE)} | {
        f"{PACKAGE}/recipes/{name}" for name in files(tree / "recipes")
    }
    info = f"{PACKAGE}-{speechbrain_triton.__version__}.dist-info"
    wanted |= {
        f"{info}/{name}"
        for name in (
            "METADATA",
            "RECORD",
            "WHEEL",
            "entry_points.txt",
            "licenses/LICENSE",
        )
    }
    assert names(wheel) == wanted
    assert f"{PACKAGE}/py.typed" in wanted


def test_wheel_leaves_out_what_trainings_left_in_a_recipe(
    tree, wheel, tmp_path
):
    used = tmp_path / "used"
    shutil.copytree(tree, used)
    for name in LEFT_BEHIND:
        (used / name).parent.mkdir(parents=True, exist_ok=True)
        (used / name).write_bytes(b"\0")
    assert names(build("wheel", used, tmp_path / "dist")) == names(wheel)


def test_command_of_the_wheel_says_its_version(installed, tmp_path):
    script = installed / "bin" / "speechbrain-triton"
    printed = run([script, "--version"], installed, tmp_path)
    assert printed == f"speechbrain-triton {speechbrain_triton.__version__}\n"


def test_demo_of_the_wheel_finds_its_recipe(installed, tmp_path):
    code = (
        "from speechbrain_triton.demo import RECIPE, find_recipe\n"
        "print(find_recipe(RECIPE))"
    )
    printed = run([sys.executable, "-c", code], installed, tmp_path)
    recipe = Path(printed.rstrip())
    assert recipe.is_relative_to(installed / PACKAGE)
    assert (recipe / "hparams" / "conformer_transducer.yaml").is_file()
