"""The flag fused_joint in a recipe: training, testing, refusing."""

import pytest
from recipe_runs import EXACT, arguments, losses, run_here

from speechbrain_triton.runs import read_run


def test_a_step_by_step_training_is_the_same(
    corpus, tmp_path, monkeypatch, launches
):
    """The kernels run in Triton's interpreter where there is no GPU."""
    runs = {}
    for fused in (False, True):
        launches.clear()
        argv = arguments(
            corpus,
            tmp_path / str(fused),
            training_steps=4,
            loss_backend="triton",
            conv_backend="torch",
            fused_joint=fused,
            test_beam_search=True,
            joint_dim=8,
            **EXACT,
        )
        assert run_here(argv, monkeypatch) == 0
        assert ("joint_grad_kernel" in launches) == fused
        assert ("log_probs_kernel" in launches) != fused
        runs[fused] = tmp_path / str(fused)
    curve = losses(runs[True])
    assert len(curve) == 4
    assert curve == pytest.approx(losses(runs[False]), rel=1e-4)
    ours, other = (read_run(folder).evaluations for folder in runs.values())
    assert sorted(ours) == ["test", "test_beam"]
    for name in ours:
        assert ours[name].utterances == other[name].utterances


def test_without_a_gpu_the_flag_only_says_so(corpus, tmp_path, monkeypatch):
    argv = arguments(corpus, tmp_path, training_steps=1, fused_joint=True)
    assert run_here(argv, monkeypatch) == 0
    assert len(losses(tmp_path)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fused_joint": "yes"}, "fused_joint='yes' is not one of True, False"),
        (
            {"fused_joint": True, "loss_backend": "torchaudio"},
            "loss_backend with fused_joint='torchaudio' is not one of",
        ),
    ],
)
def test_wrong_flags_get_a_sentence(
    corpus, tmp_path, monkeypatch, capsys, options, message
):
    argv = arguments(corpus, tmp_path, training_steps=1, **options)
    assert run_here(argv, monkeypatch) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
