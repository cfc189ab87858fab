"""The loss with its joint network: what is checked and timed, when tiny."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from speechbrain_triton.bench import measure, timing, transducer_joint_loss
from speechbrain_triton.bench.cases import CASES, JOINT
from speechbrain_triton.bench.check import CheckFailed
from speechbrain_triton.bench.shapes import JointCase

CASE = JointCase("transducer_joint_loss", 8, 5, 3, 7, "float16", J=16)
FLOAT32 = replace(CASE, dtype="float32")
FUSED = "triton_fused_joint"
PEERS = ("torchaudio", "numba", "triton")
BOTH = ("fwd", "fwd_bwd")

pytestmark = pytest.mark.filterwarnings(
    # Of Triton's interpreter.
    "ignore:divide by zero",
    "ignore:invalid value",
)


def run(case, impl, device):
    return [name for name, _ in measure.measure(case, impl, device)]


@pytest.mark.parametrize("case", [CASE, FLOAT32], ids=str)
@pytest.mark.parametrize("impl", ["triton", FUSED])
def test_kernels_pass_the_gate(case, impl, device, launches):
    measure.check(case, impl, device)
    assert launches.total()


@pytest.mark.parametrize(
    "impl, expected",
    [("limit", BOTH), ("stock", ()), ("compile", ()), ("triton_inplace", ())],
)
def test_passes_of_others(impl, expected, device, calls):
    assert run(CASE, impl, device) == list(expected)
    assert list(calls) == list(expected)


def test_all_implementations_are_timed_alike():
    passes = measure.PASSES["transducer_joint_loss"]
    assert {p.timer for p in passes} == {timing.time_calls}


@pytest.mark.parametrize("impl", [*PEERS, FUSED])
def test_timed_calls_return_the_mean_or_all_gradients(
    impl, device, calls, numba
):
    case = FLOAT32 if impl == "numba" else CASE
    assert run(case, impl, device) == list(BOTH)
    assert list(calls) == list(BOTH)
    for name, results in calls.items():
        assert len(results) >= timing.FEWEST_SETS
        if name == "fwd_bwd":
            assert [(g.shape, g.dtype) for g in results[0]] == [
                ((8, 5, 16), case.torch_dtype),
                ((8, 4, 16), case.torch_dtype),
                ((7, 16), torch.float32),
                ((7,), torch.float32),
            ]
            assert all(grad.isfinite().all() for grad in results[0])
            results = [grads[0] for grads in results]
        else:
            assert results[0].shape == () and results[0].isfinite()
            assert results[0].dtype is torch.float32
            assert not results[0].requires_grad
        # Rotated inputs give different results.
        assert not torch.equal(*results[:2])


def test_only_the_fused_one_never_has_all_logits(device, monkeypatch, numba):
    """Else its row would be another's under a new name."""
    made = []

    class Joint(nn.Module):
        def forward(self, encoder, predictor):
            made.append(encoder.dtype)
            return nn.functional.gelu(encoder + predictor)

    monkeypatch.setattr(transducer_joint_loss, "JOINT", Joint())
    variants = transducer_joint_loss.variants(FLOAT32, device)
    drawn = transducer_joint_loss.draw(FLOAT32, device)
    for impl in (*PEERS, FUSED):
        made.clear()
        variant = variants[impl]
        variant.run_both(*variant.inputs(*drawn))
        assert made == [torch.float32] * (impl != FUSED)


@pytest.mark.parametrize("impl", PEERS)
def test_logits_are_made_under_autocast(impl, device, monkeypatch, numba):
    losses = transducer_joint_loss.transducer_loss.variants(CASE, device)
    given = []

    def watched(logits, *labels):
        given.append(logits.dtype)
        return losses["twin"].forward(logits, *labels)

    monkeypatch.setattr(
        transducer_joint_loss.transducer_loss,
        "variants",
        lambda case, device: {
            name: replace(loss, forward=watched)
            for name, loss in losses.items()
        },
    )
    variants = transducer_joint_loss.variants(CASE, device)
    inputs = transducer_joint_loss.draw(CASE, device)
    for name, dtype in ((impl, torch.float16), ("exact", torch.float64)):
        given.clear()
        variants[name].run_forward(*variants[name].inputs(*inputs))
        assert given == [dtype]


def test_numba_is_held_to_its_own_scale(device, numba):
    measure.check(FLOAT32, "numba", device)
    numba(per_frame_gradient=True)
    with pytest.raises(CheckFailed, match="numba: the gradient of encoder has"):
        measure.check(FLOAT32, "numba", device)


def wrong(monkeypatch, **options):
    right = transducer_joint_loss.transducer_joint_loss
    monkeypatch.setattr(
        transducer_joint_loss,
        "transducer_joint_loss",
        lambda *args, **kwargs: right(*args, **{**kwargs, **options}),
    )


def test_another_nonlinearity_is_refused(device, monkeypatch, calls):
    wrong(monkeypatch, nonlinearity="tanh")
    sentence = "V7_J16 float16 triton_fused_joint: the mean has relative error"
    with pytest.raises(CheckFailed, match=sentence):
        run(CASE, FUSED, device)
    assert not calls


def test_a_changed_gradient_is_refused(device, monkeypatch):
    wrong(monkeypatch, fastemit_lambda=0.1)
    with pytest.raises(CheckFailed, match="joint: the gradient of encoder"):
        measure.check(CASE, FUSED, device)


@pytest.mark.parametrize("name", ["encoder", "predictor", "weight", "bias"])
def test_each_gradient_is_checked(name, device, monkeypatch):
    right = transducer_joint_loss.transducer_joint_loss
    names = ("encoder", "predictor", "weight", "bias")

    def changed(*tensors, **options):
        tensors = list(tensors)
        x = tensors[names.index(name)]
        tensors[names.index(name)] = x.detach() + 1.1 * (x - x.detach())
        return right(*tensors, **options)

    monkeypatch.setattr(transducer_joint_loss, "transducer_joint_loss", changed)
    with pytest.raises(CheckFailed, match=f"the gradient of {name} has"):
        measure.check(CASE, FUSED, device)


def test_losses_that_are_wrong_one_by_one_are_refused(device, monkeypatch):
    """Their mean may be right: two utterances exchanged."""
    right = transducer_joint_loss.transducer_joint_loss

    def exchanged(*tensors, reduction, **options):
        loss = right(*tensors, reduction=reduction, **options)
        return loss.flip(0) if reduction == "none" else loss

    monkeypatch.setattr(
        transducer_joint_loss, "transducer_joint_loss", exchanged
    )
    with pytest.raises(CheckFailed, match="each utterance's loss without"):
        measure.check(CASE, FUSED, device)


def test_limit_is_the_matmuls_of_the_joint(device):
    call, sets = transducer_joint_loss.limit(CASE, False, device)
    rows = 8 * 5 * 4
    assert call(*sets[0]).shape == (rows, 7)
    call, sets = transducer_joint_loss.limit(CASE, True, device)
    results = call(*sets[0])
    assert [tuple(result.shape) for result in results] == [
        *[(rows, 7), (rows, 16), (7, 16)],
    ]
    assert {result.dtype for result in results} == {torch.float16}


def test_rounding_of_logits_is_allowed_for():
    """It hides no error: a gradient's own is ten times as large."""
    assert 1e-4 < JOINT.rounding < 2e-4
    assert replace(JOINT, dtype="float32").rounding < 2e-6


def test_the_lengths_are_those_of_the_loss_alone():
    shapes = {
        op: [(c.B, c.T, c.U, c.V) for c in CASES if c.op == op]
        for op in ("transducer_loss", "transducer_joint_loss")
    }
    assert shapes["transducer_loss"] == shapes["transducer_joint_loss"]
    assert len(shapes["transducer_loss"]) == 4
