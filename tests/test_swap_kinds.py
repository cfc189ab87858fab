"""The flags ffn and frontend: the backend of every such module, and back."""

import copy
import logging
import pickle

import pytest
import torch
from hyperpyyaml import load_hyperpyyaml
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
from swap_kinds import (
    KINDS,
    F,
    assert_left_alone,
    backend,
    features,
    feedforward,
    fingerprint,
    front_end,
)
from torch import nn

import speechbrain_triton as st
from speechbrain_triton.modules import (
    FastConformerFrontEnd,
    GEGLUFeedForward,
    TritonConvolutionModule,
)

FLAGS = ("auto", "triton", "torch")
YAML = """
flag: torch
it: !new:{kind.yaml}
conv: !new:speechbrain.lobes.models.transformer.Conformer.ConvolutionModule
   input_size: 8
   kernel_size: 3
kernels: !apply:speechbrain_triton.apply_kernels
   model: [!ref <it>, !ref <conv>]
   {kind.flag}: !ref <flag>
modules:
   it: !ref <it>
   conv: !ref <conv>
"""


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("built", FLAGS)
@pytest.mark.parametrize("build", [feedforward, front_end])
def test_flag_is_set_and_restore_brings_back_what_was(build, built, flag):
    kind = KINDS["ffn" if build is feedforward else "frontend"]
    module = build(backend=built)
    before = fingerprint(module)
    report = kind.apply(module, flag)
    assert (report.kind, report.requested) == (kind.flag, flag)
    assert (report.names, report.left_alone) == ([""], {})
    assert module.backend == flag
    kind.apply(module, "torch")
    assert module.backend == "torch"
    assert st.restore(module) == 1
    assert fingerprint(module) == before
    assert st.restore(module) == 0


def test_second_call_changes_only_the_flag(kind, device, launches):
    both = kind.model().to(device)
    before = fingerprint(both)
    for flag in ("triton", "triton", "auto", "torch", "triton"):
        assert kind.apply(both, flag, conv="torch").names == ["it"]
        assert backend(both["it"]) == flag
        assert type(both["conv"]) is ConvolutionModule
    both["it"](features(device))
    assert launches
    assert st.restore(both) == 1
    assert fingerprint(both) == before


def test_results_are_the_same_before_with_and_after(kind, device, launches):
    module = kind.build().to(device).eval()
    x = features(device)
    before = module(x)
    assert not launches
    kind.apply(module, "triton")
    torch.testing.assert_close(module(x), before, rtol=1e-4, atol=1e-4)
    assert launches
    st.restore(module)
    assert torch.equal(module(x), before)


def test_kinds_are_switched_and_restored_together(kind):
    both = kind.model()
    before = fingerprint(both)
    report = st.apply_kernels(both, conv="triton", **{kind.flag: "triton"})
    assert type(both["conv"]) is TritonConvolutionModule
    first, second = report.lines()
    assert first.startswith("conv=triton: 1 module, triton path, because ")
    assert second.startswith(
        f"{kind.flag}=triton: 1 module, triton path, because "
    )
    assert str(report) == f"{first} {second}"
    assert st.restore(both) == 2
    assert fingerprint(both) == before


def test_every_module_is_named_once(kind):
    one, two = kind.build(), kind.build()
    model = {"a": one, "b": nn.ModuleList([two, one])}
    assert kind.apply(model, "auto").names == ["a", "b.0"]


def test_each_kind_is_a_line_of_the_log(kind, caplog):
    flags = {"conv": "torch", kind.flag: "torch"}
    with caplog.at_level(logging.INFO, "speechbrain_triton"):
        report = st.apply_kernels(kind.model(), **flags)
    assert caplog.messages == report.lines()
    assert caplog.messages[1] == (
        f"{kind.flag}=torch: 1 module, torch path, because the flag asks for "
        "the plain PyTorch path."
    )


@pytest.mark.parametrize("flag", ["auto", "torch"])
def test_model_without_one_is_not_talked_about(flag, kind, caplog):
    model = kind.without()
    before = fingerprint(model)
    with caplog.at_level(logging.INFO, "speechbrain_triton"):
        report = st.apply_kernels(model, **{kind.flag: flag})
    assert caplog.messages == [str(report.conv)]
    assert getattr(report, kind.flag).names == []
    st.restore(model)
    assert fingerprint(model) == before


def test_triton_without_one_is_refused_and_changes_nothing(kind):
    model = kind.without()
    before = fingerprint(model)
    with pytest.raises(ValueError, match=kind.refusal):
        kind.apply(model, "triton", conv="triton")
    assert fingerprint(model) == before


class FeedForward(GEGLUFeedForward):
    pass


class FrontEnd(FastConformerFrontEnd):
    pass


UNCOVERED = {
    "ffn hook": ("ffn", KINDS["ffn"].hooked, "hooks on linear_in"),
    "ffn class": (
        "ffn",
        lambda: FeedForward(16, input_size=F),
        "its class FeedForward",
    ),
    "frontend hook": ("frontend", KINDS["frontend"].hooked, "hooks on conv"),
    "frontend class": (
        "frontend",
        lambda: FrontEnd(F, channels=8),
        "its class FrontEnd",
    ),
    "activation": (
        "frontend",
        lambda: front_end(activation=nn.SiLU, backend="auto"),
        "the activation SiLU",
    ),
    "kernel": (
        "frontend",
        lambda: front_end(kernel_size=7, backend="auto"),
        "kernel_size 7, above 5",
    ),
}


@pytest.mark.parametrize("case", UNCOVERED)
def test_uncovered_module_refuses_triton_and_is_left_alone_by_auto(
    case, device, launches
):
    kind, build, reason = UNCOVERED[case]
    module = build().to(device)
    assert_left_alone(KINDS[kind], module, reason)
    if not reason.startswith("its class"):
        module(features(device))
    assert not launches


def test_module_hooked_after_the_switch_is_given_back(kind):
    module = kind.build()
    before = type(module)
    kind.apply(module, "auto")
    kind.hook(module)
    assert kind.apply(module, "auto").names == []
    assert (type(module), backend(module)) == (before, "torch")


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["deepcopy", "pickle"],
)
def test_copy_of_a_switched_module_restores(duplicate, kind):
    module = kind.build()
    before = type(module)
    kind.apply(module, "triton")
    switched = type(module)
    other = duplicate(module)
    assert st.restore(other) == 1
    assert (type(other), backend(other)) == (before, "torch")
    assert (type(module), backend(module)) == (switched, "triton")


@pytest.mark.parametrize("flag", FLAGS)
def test_yaml_flag_switches_the_module_that_the_recipe_trains(flag, kind):
    hparams = load_hyperpyyaml(YAML.format(kind=kind), {"flag": flag})
    assert hparams["modules"]["it"] is hparams["it"]
    assert backend(hparams["it"]) == flag
    assert getattr(hparams["kernels"], kind.flag).names == ["0"]
    assert hparams["kernels"].conv.names == ["1"]


@pytest.mark.parametrize("value", ["", "'False'", "no", "1.0", "Triton"])
def test_yaml_flag_that_only_looks_set_is_refused(value, kind):
    text = YAML.format(kind=kind).replace("torch", value, 1)
    match = f"{kind.flag}=.*'auto', 'triton', 'tor"
    with pytest.raises(ValueError, match=match):
        load_hyperpyyaml(text)
