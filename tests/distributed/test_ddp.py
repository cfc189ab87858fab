"""DDP trains the Brain of the AN4 recipes on kernels as it does without."""

import json

import pytest
import torch
from brains import Case
from processes import HERE, run_ranks

ON_GPU = torch.cuda.is_available()
WIDTHS = {"d_model": 16, "nhead": 2, "num_encoder_layers": 1, "d_ffn": 32}
# So small that the interpreter takes a second for a batch.
TINY = {
    **WIDTHS,
    "n_mels": 8,
    "kernel_size": 5,
    "dec_dim": 16,
    "joint_dim": 16,
    "output_neurons": 7,
    "batch_size": 2,
    "warmup_steps": 1,
}
TINY_FAST = {**TINY, "frontend_channels": 8}
# The recipes' own sizes but for the depth.
REAL = {"num_encoder_layers": 2, "warmup_steps": 100, "batch_size": 6}


def both(name, recipe, settings, **options):
    """A case on kernels and without; kernels first."""
    return [
        Case(name + suffix, recipe, kernels, settings, **options)
        for kernels, suffix in ((True, ""), (False, " stock"))
    ]


def run_cases(cases, folder, backend, device, timeout):
    """Train in two ranks; what each of them saw, by case."""
    path = folder / "cases.json"
    path.write_text(json.dumps([vars(case) for case in cases]))
    run_ranks(
        *(HERE / "ddp_worker.py", path, folder, backend, device, timeout - 10),
        timeout=timeout,
    )
    return [
        torch.load(folder / f"{rank}.pt", weights_only=True)
        for rank in range(2)
    ]


def assert_as_stock(ranks, case, rtol, gradient_error):
    """Same bits in both ranks, and stock's losses and gradient."""
    ours = [records[case.name] for records in ranks]
    stock = [records[f"{case.name} stock"] for records in ranks]
    for records in (ours, stock):
        first, second = records
        assert first["moved"]
        assert first["parameters"] == second["parameters"]
        assert torch.equal(first["gradient"], second["gradient"])
        assert not set(first["frames"]) & set(second["frames"])
        # Most are unused only if layers are dropped, in both ranks at once.
        if not case.layerdrop:
            assert not first["without_gradient"]
    for one, other in zip(ours, stock, strict=True):
        assert one["frames"] == other["frames"]
        assert len(one["losses"]) == case.steps * case.accumulation
        assert one["losses"] == pytest.approx(other["losses"], rel=rtol)
        assert one["launches"] and not other["launches"]
        assert not [text for text in one["warnings"] if "stride" in text]
    difference = ours[0]["gradient"] - stock[0]["gradient"]
    error = difference.norm() / stock[0]["gradient"].norm()
    assert error < gradient_error


def assert_warns_of_strides(ranks):
    """Else that no case did would mean nothing."""
    for records in ranks:
        (text,) = records["stride warning"]
        assert "strides do not match bucket view strides" in text


@pytest.mark.skipif(ON_GPU, reason="runs kernels in Triton's interpreter")
def test_in_the_interpreter(tmp_path):
    plain = both("plain", "fast_conformer", TINY_FAST, steps=2, seconds=0.15)
    accumulated = both(
        *("accumulated", "conformer", TINY),
        steps=2,
        accumulation=4,
        seconds=0.15,
    )
    dropping = both(
        *("dropping", "fast_conformer", TINY_FAST),
        steps=4,
        layerdrop=0.5,
        find_unused=True,
        seconds=0.15,
    )
    cases = plain + accumulated + dropping
    ranks = run_cases(cases, tmp_path, "gloo", "cpu", 240)
    for case in (plain[0], accumulated[0], dropping[0]):
        assert_as_stock(ranks, case, rtol=1e-5, gradient_error=1e-5)
    # Layers were dropped in one rank and not in the other.
    first, second = (r["dropping"]["convolutions"] for r in ranks)
    assert first != second
    kernels = set(ranks[0]["plain"]["launches"])
    assert kernels >= {"stem_kernel", "geglu_kernel", "joint_kernel"}
    assert "reflect_kernel" in ranks[0]["accumulated"]["launches"]
    assert_warns_of_strides(ranks)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("recipe", ["fast_conformer", "conformer"])
def test_over_nccl(recipe, tmp_path):
    options = {"steps": 20, "seconds": 1.5}
    plain = both("plain", recipe, REAL, **options)
    accumulated = both("accumulated", recipe, REAL, accumulation=4, **options)
    looking = both(
        *("looking", recipe, REAL), find_unused=True, steps=5, seconds=1.5
    )
    dropping = both(
        *("dropping", recipe, REAL),
        layerdrop=0.5,
        find_unused=True,
        **options,
    )
    cases = plain + accumulated + looking + dropping
    ranks = run_cases(cases, tmp_path, "nccl", "cuda", 150)
    for ours, _ in (plain, accumulated, looking, dropping):
        assert_as_stock(ranks, ours, rtol=1e-3, gradient_error=1e-3)
    first, second = (r["dropping"]["convolutions"] for r in ranks)
    assert first != second
    assert_warns_of_strides(ranks)
