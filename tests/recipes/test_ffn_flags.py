"""The flags ffn and ffn_backend in a recipe: training, testing, comparing."""

import pytest
import torch
from recipe_runs import EXACT, arguments, losses, run_here

from speechbrain_triton.runs import read_run
from speechbrain_triton.runs.settings import (
    differing_settings,
    shared_settings,
)

ON_GPU = torch.cuda.is_available()


@pytest.mark.skipif(ON_GPU, reason="runs kernels in Triton's interpreter")
def test_kernels_give_the_losses_of_torch(
    corpus, tmp_path, monkeypatch, launches
):
    runs = {}
    for backend in ("torch", "triton"):
        argv = arguments(
            corpus,
            tmp_path / backend,
            training_steps=3,
            ffn="geglu",
            ffn_backend=backend,
            conv_backend="torch",
            streaming=True,
            **EXACT,
        )
        assert run_here(argv, monkeypatch) == 0
        assert bool(launches) is (backend == "triton")
        runs[backend] = read_run(tmp_path / backend)
        log = (tmp_path / backend / "log.txt").read_text()
        assert "feedforwards: ffn=geglu: 2 modules" in log
        assert f"ffn={backend}: 2 modules, {backend} path" in log
    curves = {name: losses(tmp_path / name) for name in runs}
    assert len(curves["torch"]) == 3
    assert curves["triton"] == pytest.approx(curves["torch"], rel=1e-4)
    settings = [run.settings for run in runs.values()]
    assert differing_settings(settings) == {"ffn_backend": ("torch", "triton")}
    assert shared_settings(settings)["ffn"] == "geglu"


def test_checkpoint_knows_its_architecture(corpus, tmp_path, monkeypatch):
    options = {"training_steps": 1, "ffn_backend": "torch", **EXACT}
    for ffn in ("standard", "geglu"):
        argv = arguments(corpus, tmp_path / ffn, ffn=ffn, **options)
        assert run_here(argv, monkeypatch) == 0
    settings = [
        read_run(tmp_path / ffn).settings for ffn in ("standard", "geglu")
    ]
    assert differing_settings(settings) == {"ffn": ("standard", "geglu")}

    def test_again(trained, name, **flags):
        argv = arguments(
            corpus,
            tmp_path / name,
            skip_training=True,
            save_folder=tmp_path / trained / "save",
            **{**options, **flags},
        )
        return run_here(argv, monkeypatch)

    assert test_again("geglu", "same", ffn="geglu") == 0
    same = [read_run(tmp_path / name) for name in ("geglu", "same")]
    assert same[0].evaluations["test"].utterances == (
        same[1].evaluations["test"].utterances
    )
    with pytest.raises(RuntimeError, match="ffn: standard, as in its train"):
        test_again("standard", "wrong", ffn="geglu")
    with pytest.raises(RuntimeError, match="trained with approximate='none'"):
        test_again("geglu", "tanh", ffn="geglu", geglu_approximate="tanh")
