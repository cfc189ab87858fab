"""apply_kernels and restore: one model, in place, counted, reversible."""

import copy
import pickle
from collections import OrderedDict

import pytest
import torch
from speechbrain.lobes.models.transformer.Conformer import (
    ConformerDecoder,
    ConformerEncoder,
    ConvolutionModule,
)
from speechbrain.lobes.models.transformer.TransformerASR import TransformerASR
from swap_kinds import fingerprint
from torch import nn

import speechbrain_triton as st
from speechbrain_triton.modules import TritonConvolutionModule

C = 8
REFUSED = [None, "False", "no", "triton ", "Triton", "", 1.0, 1, True, ["auto"]]


def convolutions(*shapes):
    """A model of several convolution modules, of kernel size 3 by default."""
    return nn.Sequential(
        *(ConvolutionModule(C, *s) for s in shapes or ((3,),) * 2)
    )


def frames(device="cpu"):
    return torch.randn(2, 5, C, device=device)


def classes(model):
    return [
        type(module)
        for module in model.modules()
        if isinstance(module, ConvolutionModule)
    ]


def test_every_conformer_layer_is_counted_and_named():
    model = TransformerASR(
        tgt_vocab=5,
        input_size=C,
        d_model=C,
        nhead=2,
        num_encoder_layers=12,
        num_decoder_layers=1,
        d_ffn=8,
        encoder_module="conformer",
        attention_type="RelPosMHAXL",
        normalize_before=True,
        causal=False,
    )
    report = st.apply_kernels(model).conv
    assert report.kind == "conv" and report.requested == "auto"
    assert report.names == [
        f"encoder.layers.{i}.convolution_module" for i in range(12)
    ]
    assert report.left_alone == {}
    assert classes(model) == [TritonConvolutionModule] * 12
    assert str(report).startswith("conv=auto: 12 modules, ")
    assert st.restore(model) == 12
    assert classes(model) == [ConvolutionModule] * 12


def test_conformer_decoder_is_reached_too(launches, device):
    decoder = ConformerDecoder(1, 2, 8, C, attention_type="regularMHA").to(
        device
    )
    target, memory = frames(device), frames(device)
    stock = decoder(target, memory)[0]
    assert len(st.apply_kernels(decoder, conv="triton").conv.names) == 1
    torch.testing.assert_close(decoder(target, memory)[0], stock)
    assert launches["conv_kernel"] == 1


@pytest.mark.parametrize("conv", ["auto", "triton", "torch"])
def test_restore_is_the_exact_inverse(conv):
    model = convolutions()
    model[0].conv.weight.requires_grad_(False)
    model[1].eval()
    before = fingerprint(model)
    text = repr(model)
    st.apply_kernels(model, conv=conv)
    st.apply_kernels(model, conv="auto")
    assert st.restore(model) == 2
    assert fingerprint(model) == before
    assert repr(model) == text
    assert st.restore(model) == 0


def test_swap_keeps_every_object_and_setting(device, launches):
    model = convolutions().to(device)
    model[0].conv.weight.requires_grad_(False)
    model[1].eval()
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append("forward"))
    model[0].register_full_backward_hook(lambda *_: calls.append("backward"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [entry[:2] + entry[5:] for entry in fingerprint(model)]
    start = copy.deepcopy(model.state_dict())

    st.apply_kernels(model, conv="triton")
    assert [entry[:2] + entry[5:] for entry in fingerprint(model)] == before
    model(frames(device).requires_grad_()).pow(2).sum().backward()
    optimizer.step()
    assert calls == ["forward", "backward"]
    assert launches["conv_kernel"] == 4
    changed = {
        name
        for name, value in model.state_dict().items()
        if not torch.equal(value, start[name])
    }
    assert "1.conv.weight" in changed and "0.conv.weight" not in changed


def test_results_are_stocks_before_with_and_after(device, launches):
    model = convolutions().to(device)
    x = frames(device)
    stock = model(x)
    st.apply_kernels(model, conv="triton")
    torch.testing.assert_close(model(x), stock)
    assert launches["conv_kernel"] == 2
    st.restore(model)
    assert torch.equal(model(x), stock)
    assert launches["conv_kernel"] == 2


def test_second_call_changes_only_the_flag(device, launches):
    model = convolutions().to(device)
    first = st.apply_kernels(model, conv="torch").conv
    assert classes(model) == [ConvolutionModule] * 2
    for conv in ("triton", "triton", "auto", "triton"):
        report = st.apply_kernels(model, conv=conv).conv
        assert report.names == first.names == ["0", "1"]
        assert classes(model) == [TritonConvolutionModule] * 2
        assert [module.backend for module in model] == [conv] * 2
    model(frames(device))
    assert launches["conv_kernel"] == 2
    st.apply_kernels(model, conv="torch")
    assert classes(model) == [ConvolutionModule] * 2
    assert st.restore(model) == 0


def test_another_model_stays_as_it_is(device, launches):
    other = convolutions().to(device)
    before = fingerprint(other)
    st.apply_kernels(convolutions(), conv="triton")
    assert fingerprint(other) == before
    other(frames(device))
    assert not launches
    assert type(ConvolutionModule(C, 3)) is ConvolutionModule


@pytest.mark.parametrize(
    ("container", "names"),
    [
        (lambda m: nn.ModuleList(m), ["0", "1"]),
        (lambda m: nn.ModuleDict({"a": m[0], "b": m[1]}), ["a", "b"]),
        (lambda m: {"enc": m, "lr": 1.0, "none": None}, ["enc.0", "enc.1"]),
        (lambda m: OrderedDict(x=m[1], y=m), ["x", "y.0"]),
        (lambda m: (m[0], "text", m[1]), ["0", "2"]),
        (lambda m: [m, m], ["0.0", "0.1"]),
    ],
    ids=["ModuleList", "ModuleDict", "dict", "shared", "tuple", "twice"],
)
def test_containers_are_searched_and_each_module_counted_once(container, names):
    model = container(convolutions())
    assert st.apply_kernels(model).conv.names == names
    assert st.restore(model) == 2


@pytest.mark.parametrize("model", [None, 3, "model", {}, [], {"lr": 1.0}])
def test_model_without_modules_is_refused(model):
    for function in (st.apply_kernels, st.restore):
        with pytest.raises(TypeError, match="model must be a torch.nn.Module"):
            function(model)


@pytest.mark.parametrize("flag", ["conv", "frontend", "ffn"])
@pytest.mark.parametrize("value", REFUSED, ids=repr)
def test_unknown_flag_value_is_refused_and_changes_nothing(flag, value):
    model = convolutions()
    before = fingerprint(model)
    with pytest.raises(ValueError, match=f"^{flag}=.* is not one of 'auto'"):
        st.apply_kernels(model, **{flag: value})
    assert fingerprint(model) == before


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((3, True, nn.SiLU, 0.0, False, 2), "dilation 2"),
        ((4,), "even kernel_size 4"),
        ((1, True, nn.SiLU, 0.0, True), "causal module with kernel_size 1"),
    ],
)
def test_uncovered_module_refuses_triton_and_is_left_alone_by_auto(
    shape, reason, device, launches
):
    model = convolutions((3,), shape).to(device)
    before = fingerprint(model)
    with pytest.raises(ValueError, match=f"{reason}.*'1'") as caught:
        st.apply_kernels(model, conv="triton")
    assert "\n" not in str(caught.value)
    assert fingerprint(model) == before

    report = st.apply_kernels(model, conv="auto").conv
    assert report.names == ["0"]
    assert reason in report.left_alone["1"] and reason in str(report)
    assert classes(model) == [TritonConvolutionModule, ConvolutionModule]


def test_subclass_is_left_alone_by_name():
    class Variant(ConvolutionModule):
        pass

    model = nn.Sequential(ConvolutionModule(C, 3), Variant(C, 3))
    report = st.apply_kernels(model).conv
    assert report.names == ["0"]
    assert "1 is left alone for its class Variant" in str(report)
    with pytest.raises(ValueError, match="class Variant .*'1'"):
        st.apply_kernels(model, conv="triton")


def test_restore_keeps_a_module_built_with_a_backend_of_its_own():
    model = nn.Sequential(TritonConvolutionModule(C, 3, backend="torch"))
    before = fingerprint(model)
    st.apply_kernels(model, conv="auto")
    assert model[0].backend == "auto"
    st.restore(model)
    assert fingerprint(model) == before


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "pickle"],
)
def test_copy_of_a_swapped_model_is_swapped_and_restores(
    duplicate, device, launches
):
    model = convolutions().to(device)
    st.apply_kernels(model, conv="triton")
    other = duplicate(model)
    x = frames(device)
    torch.testing.assert_close(other(x), model(x))
    assert launches["conv_kernel"] == 4
    assert st.restore(other) == 2
    assert classes(other) == [ConvolutionModule] * 2
    assert classes(model) == [TritonConvolutionModule] * 2


def test_encoder_alone_can_be_switched(device, launches):
    encoder = ConformerEncoder(2, C, 8, 2, kernel_size=3).to(device)
    report = st.apply_kernels(encoder, conv="triton").conv
    assert report.names[0] == "layers.0.convolution_module"
    positions = torch.randn(1, 9, C, device=device)
    encoder(frames(device), pos_embs=positions)
    assert launches["conv_kernel"] == 2


def test_triton_without_a_convolution_module_is_refused():
    """Else the flag would point at the wrong object and nobody would know."""
    with pytest.raises(ValueError, match="has no ConvolutionModule to switch"):
        st.apply_kernels(nn.Linear(2, 2), conv="triton")
    report = st.apply_kernels(nn.Linear(2, 2), conv="auto")
    assert "0 modules, torch path" in str(report)
