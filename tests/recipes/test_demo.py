"""The demo goes from nothing to a comparison, and goes on where it was."""

import importlib.util
import json
import shutil

import pytest
import torch

from speechbrain_triton import demo
from speechbrain_triton.cli import main
from speechbrain_triton.runs import read_run

needs_espeak = pytest.mark.skipif(
    importlib.util.find_spec("espeakng_loader") is None,
    reason="needs the package espeakng-loader",
)


@needs_espeak
def test_demo_makes_trains_compares_and_resumes(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = ["demo", "--steps=4", "--seed=3", "--device=cpu"]
    assert main([*argv, "--json"]) == 0
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert document, "an empty document"
    assert "conv=auto: 3 modules, torch path, because" in err
    # Not a terminal: lines, no bars.
    assert err.count(": finished\n") == 2 and "━" not in err
    folder = tmp_path / "demo"
    for backend in ("torch", "auto"):
        run = read_run(folder / f"conv_{backend}")
        assert run.settings["conv_backend"] == backend
        assert run.settings["seed"] == 3
        assert len(run.evaluations["test"].utterances) == 150

    # One run is finished, the other one gone: only that one runs again.
    log = folder / "conv_torch" / "train_log.txt"
    before = log.stat().st_mtime_ns
    shutil.rmtree(folder / "conv_auto")
    assert main(argv) == 0
    assert log.stat().st_mtime_ns == before
    assert read_run(folder / "conv_auto").settings["training_steps"] == 4
    out, err = capfd.readouterr()
    assert "conv_auto" in out
    assert "conv_torch: finished before\n" in err

    assert main(["demo", "--steps=5", "--seed=3"]) == 2
    assert "training_steps=4, not 5; name another" in capfd.readouterr().err


def test_training_that_fails_is_shown(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(
        "speechbrain_triton.corpora.prepare_spoken_numbers", lambda folder: {}
    )
    folder = tmp_path / "d"
    (folder / "corpus").mkdir(parents=True)
    (folder / "corpus" / "train.csv").write_text("not this corpus")
    assert main(["demo", f"--folder={folder}", "--device=cpu"]) == 1
    error = capfd.readouterr().err
    assert "failed; all of its output is in" in error
    logs = [path.read_text() for path in folder.glob("conv_*/console.log")]
    assert any(log and log.splitlines()[-1] in error for log in logs)


def test_missing_espeak_is_one_sentence(tmp_path, capfd, monkeypatch):
    def missing(folder):
        raise ImportError("The package espeakng-loader is not installed.")

    monkeypatch.setattr(
        "speechbrain_triton.corpora.prepare_spoken_numbers", missing
    )
    assert main(["demo", f"--folder={tmp_path / 'd'}"]) == 2
    error = capfd.readouterr().err
    assert error.splitlines()[-1] == (
        "speechbrain-triton demo: error: The package espeakng-loader is not "
        "installed."
    )


def test_recipe_inside_the_package_comes_first(tmp_path, monkeypatch):
    beside = tmp_path / "recipes" / demo.RECIPE
    inside = tmp_path / "package" / "recipes" / demo.RECIPE
    monkeypatch.setattr(demo, "PACKAGE", tmp_path / "package")
    with pytest.raises(FileNotFoundError, match="install the package again"):
        demo.find_recipe(demo.RECIPE)
    for folder in (beside, inside):
        folder.mkdir(parents=True)
        (folder / "train.py").touch()
        assert demo.find_recipe(demo.RECIPE) == folder


def test_flags_are_checked(capfd):
    assert main(["demo", "--steps=0"]) == 2
    assert "'0' is not a whole number" in capfd.readouterr().err


def test_help_costs_no_import_of_torch_by_the_demo(capfd):
    assert torch.__name__ not in vars(demo)
    assert main(["demo", "--help"]) == 0
    assert "--folder" in capfd.readouterr().out
