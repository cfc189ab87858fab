"""The AN4 recipe's train.py under torchrun."""

import json

import pytest
import torch
from processes import HERE, run_ranks
from recipe_runs import AN4, EXACT, arguments, losses

ON_GPU = torch.cuda.is_available()
STRIDES = "strides do not match"


def train(corpus, folder, backend="gloo", **options):
    """Train in two ranks; what it printed, its losses, what the ranks saw."""
    argv = arguments(corpus, folder, streaming=True, **options)
    if backend == "nccl":
        # Of the GPUs SpeechBrain takes the one of the rank's number.
        argv.remove("--device=cpu")
    folder.mkdir()
    printed = run_ranks(
        *(HERE / "train_worker.py", folder, AN4 / "train.py", *argv),
        *(f"--distributed_backend={backend}", "--find_unused_parameters"),
        timeout=400,
    )
    seen = [json.loads((folder / f"{r}.json").read_text()) for r in range(2)]
    return printed, losses(folder), seen


@pytest.mark.skipif(ON_GPU, reason="runs kernels in Triton's interpreter")
def test_kernels_train_as_stock_in_two_processes(corpus, tmp_path):
    curves = {}
    for backend in ("triton", "torch"):
        printed, curves[backend], (first, second) = train(
            corpus,
            tmp_path / backend,
            training_steps=2,
            grad_accumulation_factor=2,
            batch_size=1,
            conv_backend=backend,
            **EXACT,
        )
        assert f"conv={backend}: 1 module, {backend} path" in printed
        assert STRIDES not in printed
        assert first["parameters"] == second["parameters"]
        assert len(first["frames"]) == len(second["frames"]) == 4
        assert first["frames"] != second["frames"]
    assert list(curves["torch"]) == [1, 2]
    assert curves["triton"] == pytest.approx(curves["torch"], rel=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_all_kernels_train_on_two_gpus(corpus, tmp_path):
    flags = ("conv_backend", "frontend_backend", "ffn_backend", "loss_backend")
    printed, curve, (first, second) = train(
        corpus,
        tmp_path / "run",
        backend="nccl",
        training_steps=3,
        grad_accumulation_factor=2,
        batch_size=1,
        precision="bf16",
        ffn="geglu",
        fused_joint=True,
        **dict.fromkeys(flags, "triton"),
    )
    assert STRIDES not in printed
    assert list(curve) == [1, 2, 3]
    assert first["parameters"] == second["parameters"]
    assert first["frames"] != second["frames"]
