"""The flag frontend: the backend of every front end, and back."""

import copy
import logging
import pickle

import pytest
import torch
from hyperpyyaml import load_hyperpyyaml
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
from torch import nn

import speechbrain_triton as st
from speechbrain_triton.modules import (
    FastConformerFrontEnd,
    TritonConvolutionModule,
)

YAML = """
frontend_backend: torch
CNN: !new:speechbrain_triton.modules.FastConformerFrontEnd
   channels: 8
Encoder: !new:speechbrain.lobes.models.transformer.Conformer.ConvolutionModule
   input_size: 8
   kernel_size: 3
kernels: !apply:speechbrain_triton.apply_kernels
   model: [!ref <CNN>, !ref <Encoder>]
   frontend: !ref <frontend_backend>
modules:
   CNN: !ref <CNN>
   enc: !ref <Encoder>
"""


def frontend(**options):
    return FastConformerFrontEnd(9, **{"channels": 8, **options})


def model():
    return nn.ModuleDict({"CNN": frontend(), "enc": ConvolutionModule(8, 3)})


def state(module):
    return type(module), dict(vars(module)), module.training


def features(device):
    return torch.randn(2, 20, 9, device=device)


@pytest.mark.parametrize("flag", ["auto", "triton", "torch"])
@pytest.mark.parametrize("built", ["auto", "triton", "torch"])
def test_flag_is_set_and_restore_brings_back_what_was(built, flag):
    module = frontend(backend=built)
    before = state(module)
    report = st.apply_kernels(module, frontend=flag).frontend
    assert (report.kind, report.requested) == ("frontend", flag)
    assert (report.names, report.left_alone) == ([""], {})
    assert module.backend == flag
    st.apply_kernels(module, frontend="torch")
    assert module.backend == "torch"
    assert st.restore(module) == 1
    assert state(module) == before
    assert st.restore(module) == 0


def test_second_call_changes_only_the_flag(device, launches):
    both = model().to(device)
    identities = [id(p) for p in both.parameters()]
    for flag in ("triton", "triton", "auto", "torch", "triton"):
        report = st.apply_kernels(both, conv="torch", frontend=flag)
        assert report.frontend.names == ["CNN"]
        assert report.conv.names == ["enc"]
        assert both["CNN"].backend == flag
        assert type(both["enc"]) is ConvolutionModule
    assert [id(p) for p in both.parameters()] == identities
    both["CNN"](features(device))
    assert launches
    assert st.restore(both) == 1
    assert both["CNN"].backend == "auto"


def test_results_are_the_same_before_with_and_after(device, launches):
    module = frontend(backend="torch").to(device)
    x, lengths = features(device), torch.tensor([0.4, 1.0], device=device)
    before = module(x, lengths)
    assert not launches
    st.apply_kernels(module, frontend="triton")
    torch.testing.assert_close(module(x, lengths), before)
    assert launches
    st.restore(module)
    assert torch.equal(module(x, lengths), before)


def test_both_kinds_are_switched_and_restored_together():
    both = model()
    report = st.apply_kernels(both, conv="triton", frontend="triton")
    assert type(both["enc"]) is TritonConvolutionModule
    first, second = report.lines()
    assert first.startswith("conv=triton: 1 module, triton path, because ")
    assert second.startswith("frontend=triton: 1 module, triton path, because")
    assert str(report) == f"{first} {second}"
    assert st.restore(both) == 2
    assert type(both["enc"]) is ConvolutionModule
    assert both["CNN"].backend == "auto"


def test_every_front_end_is_named_once():
    one, two = frontend(), frontend(subsampling=4)
    report = st.apply_kernels({"a": one, "b": nn.ModuleList([two, one])})
    assert report.frontend.names == ["a", "b.0"]


def test_each_kind_is_a_line_of_the_log(caplog):
    with caplog.at_level(logging.INFO, "speechbrain_triton"):
        report = st.apply_kernels(model(), conv="torch", frontend="torch")
    assert caplog.messages == report.lines()
    assert caplog.messages[1] == (
        "frontend=torch: 1 module, torch path, because the flag asks for the "
        "plain PyTorch path."
    )


@pytest.mark.parametrize("flag", ["auto", "torch"])
def test_model_without_front_end_is_not_talked_about(flag, caplog):
    with caplog.at_level(logging.INFO, "speechbrain_triton"):
        report = st.apply_kernels(ConvolutionModule(8, 3), frontend=flag)
    assert caplog.messages == [str(report.conv)]
    assert report.frontend.names == []
    assert str(report.frontend).endswith(
        "no FastConformerFrontEnd or ConvolutionFrontEnd to switch."
    )


def test_triton_without_a_front_end_is_refused_and_changes_nothing():
    module = ConvolutionModule(8, 3)
    with pytest.raises(ValueError, match="has no FastConformerFrontEnd"):
        st.apply_kernels(module, conv="triton", frontend="triton")
    assert type(module) is ConvolutionModule


def hooked():
    module = frontend()
    module.conv.register_forward_hook(lambda *_: None)
    return module


class Variant(FastConformerFrontEnd):
    pass


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: frontend(activation=nn.SiLU), "the activation SiLU"),
        (lambda: frontend(kernel_size=7), "kernel_size 7, above 5"),
        (hooked, "hooks on conv"),
        (lambda: Variant(9, channels=8), "its class Variant"),
    ],
)
def test_uncovered_front_end_refuses_triton_and_is_left_alone_by_auto(
    build, reason, device, launches
):
    both = nn.ModuleDict({"one": frontend(), "other": build()}).to(device)
    with pytest.raises(ValueError, match=f"{reason} .*'other'") as caught:
        st.apply_kernels(both, frontend="triton")
    assert "\n" not in str(caught.value)
    assert "_backend_before" not in vars(both["one"])
    report = st.apply_kernels(both, frontend="auto").frontend
    assert report.names == ["one"]
    assert f"other is left alone for {reason}" in str(report)
    if not reason.startswith("its class"):
        both["other"](features(device))
    assert not launches


def test_front_end_hooked_after_the_switch_is_given_back():
    module = frontend(backend="torch")
    st.apply_kernels(module, frontend="auto")
    module.conv.register_forward_hook(lambda *_: None)
    assert st.apply_kernels(module, frontend="auto").frontend.names == []
    assert module.backend == "torch"


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["deepcopy", "pickle"],
)
def test_copy_of_a_switched_front_end_restores(duplicate):
    module = frontend(backend="torch")
    st.apply_kernels(module, frontend="triton")
    other = duplicate(module)
    assert st.restore(other) == 1
    assert (other.backend, module.backend) == ("torch", "triton")


@pytest.mark.parametrize("flag", ["auto", "triton", "torch"])
def test_yaml_flag_switches_the_front_end_that_the_recipe_trains(flag):
    hparams = load_hyperpyyaml(YAML, {"frontend_backend": flag})
    assert hparams["modules"]["CNN"] is hparams["CNN"]
    assert hparams["CNN"].backend == flag
    assert hparams["kernels"].frontend.names == ["0"]
    assert hparams["kernels"].conv.names == ["1"]


@pytest.mark.parametrize("value", ["", "'False'", "no", "1.0", "Triton"])
def test_yaml_flag_that_only_looks_set_is_refused(value):
    text = YAML.replace("torch", value, 1)
    with pytest.raises(ValueError, match="frontend=.*'auto', 'triton', 'tor"):
        load_hyperpyyaml(text)
