"""The flag ffn: the backend of every gated feed-forward, and back."""

import copy
import logging
import pickle

import pytest
import torch
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
from speechbrain.nnet.attention import PositionalwiseFeedForward
from torch import nn

import speechbrain_triton as st
from speechbrain_triton.modules import (
    GEGLUFeedForward,
    TritonConvolutionModule,
)

D = 8


def feedforward(**options):
    return GEGLUFeedForward(**{"d_ffn": 16, "input_size": D, **options})


def model():
    return nn.ModuleDict(
        {"ffn": feedforward(), "conv": ConvolutionModule(D, 3)}
    )


def state(module):
    return type(module), dict(vars(module)), module.training


def frames(device):
    return torch.randn(2, 5, D, device=device)


@pytest.mark.parametrize("flag", ["auto", "triton", "torch"])
@pytest.mark.parametrize("built", ["auto", "triton", "torch"])
def test_flag_is_set_and_restore_brings_back_what_was(built, flag):
    module = feedforward(backend=built)
    before = state(module)
    report = st.apply_kernels(module, ffn=flag).ffn
    assert (report.kind, report.requested) == ("ffn", flag)
    assert (report.names, report.left_alone) == ([""], {})
    assert module.backend == flag
    st.apply_kernels(module, ffn="torch")
    assert module.backend == "torch"
    assert st.restore(module) == 1
    assert state(module) == before
    assert st.restore(module) == 0


def test_second_call_changes_only_the_flag(device, launches):
    both = model().to(device)
    identities = [id(p) for p in both.parameters()]
    for flag in ("triton", "triton", "auto", "torch", "triton"):
        report = st.apply_kernels(both, conv="torch", ffn=flag)
        assert report.ffn.names == ["ffn"]
        assert report.conv.names == ["conv"]
        assert both["ffn"].backend == flag
        assert type(both["conv"]) is ConvolutionModule
    assert [id(p) for p in both.parameters()] == identities
    both["ffn"](frames(device))
    assert launches
    assert st.restore(both) == 1
    assert both["ffn"].backend == "auto"


def test_results_are_the_same_before_with_and_after(device, launches):
    module = feedforward(backend="torch").to(device)
    x = frames(device)
    before = module(x)
    assert not launches
    st.apply_kernels(module, ffn="triton")
    torch.testing.assert_close(module(x), before, rtol=1e-4, atol=1e-4)
    assert launches
    st.restore(module)
    assert torch.equal(module(x), before)


def test_kinds_are_switched_and_restored_together():
    both = model()
    report = st.apply_kernels(both, conv="triton", ffn="triton")
    assert type(both["conv"]) is TritonConvolutionModule
    first, second = report.lines()
    assert first.startswith("conv=triton: 1 module, triton path, because ")
    assert second.startswith("ffn=triton: 1 module, triton path, because ")
    assert str(report) == f"{first} {second}"
    assert st.restore(both) == 2
    assert type(both["conv"]) is ConvolutionModule
    assert both["ffn"].backend == "auto"


def test_every_feed_forward_is_named_once():
    one, two = feedforward(), feedforward(d_ffn=8)
    report = st.apply_kernels({"a": one, "b": nn.ModuleList([two, one])})
    assert report.ffn.names == ["a", "b.0"]


def test_each_kind_is_a_line_of_the_log(caplog):
    with caplog.at_level(logging.INFO, "speechbrain_triton"):
        report = st.apply_kernels(model(), conv="torch", ffn="torch")
    assert caplog.messages == report.lines()
    assert caplog.messages[1] == (
        "ffn=torch: 1 module, torch path, because the flag asks for the plain "
        "PyTorch path."
    )


@pytest.mark.parametrize("flag", ["auto", "torch"])
def test_speechbrains_feed_forward_is_not_talked_about(flag, caplog):
    both = nn.ModuleList(
        [PositionalwiseFeedForward(4, input_size=D), ConvolutionModule(D, 3)]
    )
    with caplog.at_level(logging.INFO, "speechbrain_triton"):
        report = st.apply_kernels(both, ffn=flag)
    assert caplog.messages == [str(report.conv)]
    assert report.ffn.names == []
    assert type(both[0]) is PositionalwiseFeedForward


def test_triton_without_a_gated_feed_forward_changes_nothing():
    both = nn.ModuleList(
        [PositionalwiseFeedForward(4, input_size=D), ConvolutionModule(D, 3)]
    )
    with pytest.raises(ValueError, match="has no GEGLUFeedForward.*ffn: geglu"):
        st.apply_kernels(both, conv="triton", ffn="triton")
    assert type(both[1]) is ConvolutionModule


def hooked():
    module = feedforward()
    module.linear_in.register_forward_hook(lambda *_: None)
    return module


class Variant(GEGLUFeedForward):
    pass


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (hooked, "hooks on linear_in"),
        (lambda: Variant(16, input_size=D), "its class Variant"),
    ],
)
def test_uncovered_feed_forward_refuses_triton_and_is_left_alone_by_auto(
    build, reason, device, launches
):
    both = nn.ModuleDict({"one": feedforward(), "other": build()}).to(device)
    with pytest.raises(ValueError, match=f"{reason} .*'other'") as caught:
        st.apply_kernels(both, ffn="triton")
    assert "\n" not in str(caught.value)
    assert "_backend_before" not in vars(both["one"])
    report = st.apply_kernels(both, ffn="auto").ffn
    assert report.names == ["one"]
    assert f"other is left alone for {reason}" in str(report)
    if not reason.startswith("its class"):
        both["other"](frames(device))
    assert not launches


def test_feed_forward_hooked_after_the_switch_is_given_back():
    module = feedforward(backend="torch")
    st.apply_kernels(module, ffn="auto")
    module.linear_in.register_forward_hook(lambda *_: None)
    assert st.apply_kernels(module, ffn="auto").ffn.names == []
    assert module.backend == "torch"


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["deepcopy", "pickle"],
)
def test_copy_of_a_switched_feed_forward_restores(duplicate):
    module = feedforward(backend="torch")
    st.apply_kernels(module, ffn="triton")
    other = duplicate(module)
    assert st.restore(other) == 1
    assert (other.backend, module.backend) == ("torch", "triton")
