"""Runs of two steps on tones, and their exported folders."""

import sys
from pathlib import Path

import pytest
from global_settings import undo_global_settings  # noqa: F401

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))

import recipe_runs  # noqa: E402

OPTIONS = {
    "training_steps": 2,
    "streaming": True,
    "num_encoder_layers": 2,
    "n_mels": 16,
    # Both are validated and kept.
    "batch_size": 12,
    "valid_every": 1,
    "avg_checkpoints": 2,
}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder in AN4's layout with a dozen utterances of tones."""
    return recipe_runs.write_corpus(tmp_path_factory.mktemp("an4"))


@pytest.fixture(scope="session")
def runs(corpus, tmp_path_factory):
    """Trained runs: ``conformer``, and ``fast_conformer`` with GEGLU."""
    folder = tmp_path_factory.mktemp("runs")
    fast = {**recipe_runs.FAST, "ffn": "geglu"}
    for name, options in (("conformer", {}), ("fast_conformer", fast)):
        argv = recipe_runs.arguments(
            corpus, folder / name, **OPTIONS, **options
        )
        with pytest.MonkeyPatch.context() as monkeypatch:
            assert recipe_runs.run_here(argv, monkeypatch) == 0
    return folder


@pytest.fixture(scope="session")
def folders(runs, tmp_path_factory):
    """The exported folders of :func:`runs`, by the same names."""
    from speechbrain_triton.streaming import export_run

    folder = tmp_path_factory.mktemp("exported")
    for name in ("conformer", "fast_conformer"):
        export_run(runs / name, folder / name)
    return folder
