"""The transducer loss: what is checked and timed, on tiny lattices."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from speechbrain_triton.bench import measure, timing, transducer_loss
from speechbrain_triton.bench.cases import TRANSDUCER
from speechbrain_triton.bench.check import CheckFailed
from speechbrain_triton.bench.shapes import TransducerCase
from speechbrain_triton.training import losses

CASE = TransducerCase("transducer_loss", 3, 5, 4, 7, "float16")
FLOAT32 = replace(CASE, dtype="float32")
BOTH = ("fwd", "fwd_bwd")

pytestmark = pytest.mark.filterwarnings(
    # Of Triton's interpreter.
    "ignore:divide by zero",
    "ignore:invalid value",
)


def run(case, impl, device):
    return [name for name, _ in measure.measure(case, impl, device)]


@pytest.mark.parametrize("impl", ["triton", "triton_inplace"])
@pytest.mark.parametrize(
    "case", [CASE, FLOAT32, replace(FLOAT32, T=2, U=6)], ids=str
)
def test_kernels_pass_the_gate(case, impl, device, launches):
    measure.check(case, impl, device)
    assert launches.total()


@pytest.mark.parametrize(
    "impl, expected",
    [
        ("torchaudio", BOTH),
        ("numba", BOTH),
        ("triton", BOTH),
        ("triton_inplace", BOTH[1:]),
        ("limit", BOTH),
        ("stock", ()),
        ("compile", ()),
    ],
)
def test_passes_of_each_implementation(impl, expected, device, calls, numba):
    assert run(FLOAT32, impl, device) == list(expected)
    assert list(calls) == list(expected)


def test_all_implementations_are_timed_alike():
    passes = measure.PASSES["transducer_loss"]
    assert {p.timer for p in passes} == {timing.time_calls}


@pytest.mark.parametrize(
    "impl", ["torchaudio", "numba", "triton", "triton_inplace"]
)
def test_timed_calls_return_costs_or_the_gradient(impl, device, calls, numba):
    case = FLOAT32 if impl == "numba" else CASE
    run(case, impl, device)
    for name, results in calls.items():
        assert len(results) == timing.FEWEST_SETS
        if name == "fwd_bwd":
            results = [grad for (grad,) in results]
            assert results[0].shape == (3, 5, 5, 7)
            assert results[0].dtype is case.torch_dtype
        else:
            assert results[0].shape == (3,)
            assert results[0].dtype is torch.float32
            assert not results[0].requires_grad
        assert results[0].isfinite().all()
        # Rotated inputs give different results.
        assert not torch.equal(*results[:2])


def test_only_the_variant_in_place_writes_over_its_logits(device):
    variants = transducer_loss.variants(CASE, device)
    drawn = transducer_loss.draw(CASE, device)
    before = drawn[0].clone()
    for impl in ("torchaudio", "triton", "triton_inplace"):
        inputs = variants[impl].inputs(*drawn)
        variants[impl].run_forward(*inputs)
        assert torch.equal(inputs[0], before)
        (grad,) = variants[impl].run_both(*inputs)
        assert torch.equal(inputs[0], before) == (impl != "triton_inplace")
        assert torch.equal(inputs[0], grad) == (impl == "triton_inplace")
    assert torch.equal(drawn[0], before)


def test_numba_is_held_to_its_own_scale(device, numba):
    measure.check(FLOAT32, "numba", device)
    numba(per_frame_gradient=True)
    with pytest.raises(CheckFailed, match="numba: the gradient of logits has"):
        measure.check(FLOAT32, "numba", device)


def test_a_loss_per_frame_is_refused(device, monkeypatch, calls):
    right = transducer_loss.transducer_loss
    monkeypatch.setattr(
        transducer_loss,
        "transducer_loss",
        lambda *args, **kwargs: right(*args, **kwargs) / CASE.T,
    )
    with pytest.raises(CheckFailed, match="U4_V7 float16 triton: y has"):
        run(CASE, "triton", device)
    assert not calls


def test_a_changed_gradient_is_refused(device, monkeypatch):
    monkeypatch.setattr(
        transducer_loss,
        "transducer_loss",
        partial(transducer_loss.transducer_loss, fastemit_lambda=0.05),
    )
    with pytest.raises(CheckFailed, match="triton: the gradient of logits"):
        measure.check(CASE, device=device)


def test_obstacles_are_those_of_training(monkeypatch):
    for impl in ("torchaudio", "numba"):
        for reason in (f"{impl} is broken", None):
            monkeypatch.setattr(losses, f"{impl}_obstacle", lambda r=reason: r)
            assert transducer_loss.obstacle(impl) == reason


def test_all_utterances_have_the_full_lengths(device):
    logits, targets, frames, labels, dcost = transducer_loss.draw(CASE, device)
    assert frames.tolist() == [5, 5, 5] and labels.tolist() == [4, 4, 4]
    assert logits.shape == (3, 5, 5, 7) and logits.dtype is torch.float16
    assert targets.shape == (3, 4) and 1 <= targets.min() <= targets.max() < 7
    # Else a gradient that mixes up utterances could pass.
    assert len(set(dcost.tolist())) == 3


@pytest.mark.parametrize("backward, tensors", [(False, 1), (True, 3)])
def test_limit_copies_so_many_bytes(backward, tensors, device):
    logits, *_ = transducer_loss.draw(CASE, device)
    count = transducer_loss.least_bytes(CASE, backward)
    assert count == tensors * logits.nbytes
    call, sets = transducer_loss.limit(CASE, backward, device)
    for source, target in sets:
        target.zero_()
        call(source, target)
        assert torch.equal(source, target)
        assert source.nbytes + target.nbytes == count


def test_rounding_along_a_path_is_allowed_for():
    """About what float32 costs: it hides no error in the lattice."""
    assert 1e-6 < TRANSDUCER.rounding < 2e-6
