"""The training step: what is built, checked and timed, on a tiny model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_step import CHUNKED, FAST, FULL
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from speechbrain_triton.bench import measure, step_profile, train_step
from speechbrain_triton.bench.cases import TRAINING
from speechbrain_triton.bench.check import CheckFailed
from speechbrain_triton.modules import TritonConvolutionModule
from speechbrain_triton.training import TransducerBrain

pytestmark = pytest.mark.filterwarnings(
    # Of Triton's interpreter.
    "ignore:divide by zero",
    "ignore:invalid value",
)


def build(case, impl, device="cpu", dropout=True):
    return train_step.build_brain(
        case, device, train_step.FLAGS[impl], dropout=dropout
    )


@pytest.mark.parametrize(
    ("fast", "kernel"), [(False, 31), (True, 9)], ids=["conformer", "fast"]
)
def test_the_model_is_the_recipes(fast, kernel):
    brain = build(replace(TRAINING, dtype="float32", fast=fast), "torchaudio")
    layers = brain.hparams.Transformer.encoder.layers
    assert len(layers) == 12
    assert layers[0].mha_layer.embed_dim == 512
    conv = layers[0].convolution_module.conv
    assert conv.weight.shape == (512, 1, kernel)
    assert brain.modules.joint.linear.w.weight.shape == (1000, 640)
    assert brain.modules.proj_ctc.w.weight.shape == (1000, 512)
    rates = {
        module.p
        for module in brain.modules.modules()
        if isinstance(module, torch.nn.Dropout)
    }
    assert rates == ({0.1, 0.2} if fast else {0.1, 0.15, 0.2})


def test_a_batch_has_the_lengths_that_the_shape_says():
    case = replace(TRAINING, B=9)
    batch = train_step.make_batch(*train_step.draw(case, "cpu"))
    assert batch.sig.data.shape == (9, 15 * 16000)
    assert batch.tokens.data.shape == (9, 69)
    assert batch.tokens_bos.data.shape == (9, 70)
    assert torch.equal(batch.tokens_bos.data[:, 1:], batch.tokens.data)
    assert not batch.tokens_bos.data[:, 0].any()
    assert 1 <= batch.tokens.data.min() and batch.tokens.data.max() < 1000
    counts = batch.tokens.lengths * 69
    assert torch.allclose(counts, counts.round(), atol=1e-4)
    assert counts[0] == 69 and counts.min().round() >= 41
    assert len(counts.round().unique()) > 3


@pytest.mark.parametrize("case", [FULL, CHUNKED, FAST], ids=lambda c: c.shape)
@pytest.mark.parametrize("impl", ["triton", "triton_fused_joint"])
def test_kernels_run_and_give_what_stock_gives(case, impl, device, launches):
    measure.check(case, impl, device)
    assert launches["conv_kernel"]
    assert launches["stem_kernel" if case.fast else "reflect_kernel"]
    fused = impl == "triton_fused_joint"
    assert bool(launches["joint_kernel"]) == fused
    assert bool(launches["log_probs_kernel"]) != fused


@pytest.mark.parametrize("impl", ["torchaudio", "twin"])
def test_stock_runs_no_kernel(impl, launches):
    drawn = train_step.draw(CHUNKED, "cpu")
    variants = train_step.variants(CHUNKED, "cpu")
    ours, exact = (variants[i].outcome(*drawn) for i in (impl, "exact"))
    assert list(ours) == list(exact)
    for name in ours:
        torch.testing.assert_close(ours[name], exact[name], msg=name)
    assert not launches


def test_flags_change_no_parameter():
    stock, ours = build(FAST, "torchaudio"), build(FAST, "triton_fused_joint")
    for (name, p), (other, q) in zip(
        stock.modules.named_parameters(),
        ours.modules.named_parameters(),
        strict=True,
    ):
        assert name == other and torch.equal(p, q)
    switched = [
        type(module)
        for module in ours.modules.modules()
        if isinstance(module, TritonConvolutionModule)
    ]
    assert len(switched) == 1


@pytest.mark.parametrize("case", [FULL, FAST], ids=lambda c: c.shape)
def test_the_check_has_no_dropout_and_the_step_has(case):
    batch = train_step.make_batch(*train_step.draw(case, "cpu"))

    def losses(dropout):
        brain = build(case, "twin", dropout=dropout)
        for seed in (1, 2):
            torch.manual_seed(seed)
            yield train_step.run_backward(brain, batch, 1.0)

    first, second = losses(False)
    assert first == second
    first, second = losses(True)
    assert first != second


def test_a_step_trains(calls, monkeypatch):
    steps = []
    step = TransducerBrain.optimizers_step

    def counted(brain):
        step(brain)
        steps.append(brain.optimizer.state_dict()["state"][0]["step"].item())

    monkeypatch.setattr(TransducerBrain, "optimizers_step", counted)
    list(measure.measure(CHUNKED, "torchaudio", "cpu"))
    assert list(calls) == ["step"]
    # One model, from step to step.
    assert steps == list(range(1, len(calls["step"]) + 1))


def test_another_loss_is_refused(monkeypatch):
    flags = {**train_step.FLAGS["twin"], "ctc_weight": 0.5}
    monkeypatch.setitem(train_step.FLAGS, "triton", flags)
    with pytest.raises(CheckFailed, match="triton: the loss has relative err"):
        measure.check(FULL, "triton", "cpu")


def test_other_gradients_are_refused(monkeypatch):
    build_brain = train_step.build_brain

    def wrong(case, device, flags, dropout):
        brain = build_brain(case, device, flags, dropout)
        if flags is train_step.FLAGS["triton"]:
            weight = brain.modules.CNN.get_parameter(
                next(name for name, _ in brain.modules.CNN.named_parameters())
            )
            weight.register_hook(lambda grad: 1.001 * grad)
        return brain

    monkeypatch.setattr(train_step, "build_brain", wrong)
    monkeypatch.setitem(
        train_step.FLAGS, "triton", dict(train_step.FLAGS["twin"])
    )
    with pytest.raises(CheckFailed, match="the gradient of CNN has relative"):
        measure.check(FULL, "triton", "cpu")


def test_a_loss_that_is_not_finite_has_no_time():
    variant = train_step.variants(FULL, "cpu")["twin"]
    audio, *labels = train_step.draw(FULL, "cpu")
    variant.run_forward(audio * torch.nan, *labels)
    with pytest.raises(CheckFailed, match="the loss is not finite"):
        variant.run_forward(audio, *labels)


def test_a_step_without_an_update_has_no_time():
    variant = train_step.variants(FULL, "cpu")["twin"]
    variant.brain.modules.proj_ctc.w.weight.register_hook(
        lambda grad: grad * torch.nan
    )
    variant.run_forward(*train_step.draw(FULL, "cpu"))
    with pytest.raises(CheckFailed, match="gradients are not finite"):
        variant.run_forward(*train_step.draw(FULL, "cpu"))


def test_without_the_recipe_the_reason_is_given(monkeypatch):
    assert train_step.obstacle() is None
    monkeypatch.setattr(train_step, "RECIPE", Path("Nowhere"))
    assert train_step.obstacle().startswith("The recipe Nowhere is in neither")


def test_a_profile_has_every_part(monkeypatch):
    monkeypatch.setattr(step_profile, "UNTIMED_TRAINING_STEPS", 1)
    monkeypatch.setattr(step_profile, "PROFILED_STEPS", 1)
    times = step_profile.profile_step(CHUNKED, "twin", "cpu")
    assert tuple(times) == step_profile.PARTS
    assert all(ms > 0 for ms in times.values())


def test_backward_counts_for_the_part_of_its_forward():
    variant = train_step.variants(CHUNKED, "cpu")["twin"]
    inputs = train_step.draw(CHUNKED, "cpu")
    variant.run_forward(*inputs)
    events = step_profile._record(variant, [inputs])
    nodes = {}
    for event in events:
        if event.name.startswith(step_profile._NODE):
            nodes.setdefault(event.name.rpartition(" ")[2], []).append(event)
    assert len(nodes["GluBackward0"]) == 1 and nodes["GeluBackward0"]
    whole = step_profile.times_by_part(events)
    for node, part in (
        ("GluBackward0", "convolution modules"),
        ("ScaledDotProductAttentionBackward0", "attention"),
        ("CudnnRnnBackward0", "prediction network"),
    ):
        for event in nodes.get(node, []):
            event.name = step_profile._NODE + "moved"
            event.sequence_nr = -1
        less = step_profile.times_by_part(events)
        if node in nodes:
            assert less[part] < whole[part]
            assert less["rest"] > whole["rest"]
        whole = less
    assert "GluBackward0" in nodes


def test_a_profile_leaves_the_model_as_it_was():
    brain = build(CHUNKED, "twin")
    before = set(vars(brain))
    with step_profile._ranges(brain):
        assert any(m._forward_hooks for m in brain.modules.modules())
        assert set(vars(brain)) - before
    assert not any(
        hooks
        for module in (*brain.modules.modules(), brain.hparams.compute_features)
        for hooks in (module._forward_hooks, module._forward_pre_hooks)
    )
    assert set(vars(brain)) == before


def event(name, start, end, number=-1, parent=None, gpu=False, user=False):
    made = FunctionEvent(
        id=0,
        name=name,
        thread=0,
        start_us=start,
        end_us=end,
        sequence_nr=number,
        device_type=DeviceType.CUDA if gpu else DeviceType.CPU,
        is_user_annotation=user,
    )
    made.cpu_parent = parent
    return made


def test_time_on_a_gpu_is_that_of_kernels():
    around = event(step_profile._RANGE + "attention", 0, 50, user=True)
    forward = event("aten::mm", 10, 20, number=3, parent=around)
    forward.append_kernel("mm", 0, 3000)
    # A range has the time of all that is in it.
    around.append_kernel("attention", 0, 3000)
    node = event(step_profile._NODE + "MmBackward0", 60, 70, number=3)
    inner = event("aten::mm", 62, 68, parent=node)
    inner.append_kernel("mm", 0, 5000)
    other = event("aten::add", 80, 90, number=4)
    other.append_kernel("add", 0, 1000)
    kernels = [
        event("mm", 100, 3100, gpu=True),
        event("mm", 3100, 8100, gpu=True),
        event("add", 8100, 9100, gpu=True),
        event("copy", 9100, 9600, gpu=True),
        event(
            step_profile._RANGE + "attention", 100, 3100, gpu=True, user=True
        ),
    ]
    times = step_profile.times_by_part(
        [around, forward, node, inner, other, *kernels]
    )
    # The copy was started by nothing that the host recorded.
    assert dict(times) == pytest.approx({"attention": 8.0, "rest": 1.5})


def test_a_profile_without_the_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(step_profile, "UNTIMED_TRAINING_STEPS", 0)
    monkeypatch.setattr(
        step_profile, "variants", lambda *_: train_step.variants(FULL, "cpu")
    )
    drawn = train_step.draw(FULL, "cpu")
    monkeypatch.setattr(step_profile, "draw", lambda *_: drawn)
    with pytest.raises(CheckFailed, match="recorded no work of the GPU"):
        step_profile.profile_step(FULL, "twin", "cuda")
