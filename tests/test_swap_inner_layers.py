"""Layers that others put into a convolution module keep their effect."""

import copy

import pytest
import torch
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
from speechbrain.nnet.adapters import AdaptedModel, LoRA
from torch import nn

import speechbrain_triton as st
from speechbrain_triton.modules import TritonConvolutionModule

C = 8


def model_of(count, device):
    modules = (ConvolutionModule(C, 3) for _ in range(count))
    return nn.Sequential(*modules).to(device)


def frames(device):
    return torch.randn(2, 5, C, device=device)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("layer", ["0.bottleneck.0", "0.after_conv.2"])
def test_adapters_keep_their_effect(layer, when, device, launches):
    """LoRA in place of an inner layer, put there before the swap or after."""
    model = model_of(2, device)
    reference = copy.deepcopy(model)

    def adapt(model):
        torch.manual_seed(1)
        adapted = AdaptedModel(model, LoRA, target_layers=[layer])
        for name, parameter in adapted.named_parameters():
            if "adapter" in name:
                nn.init.normal_(parameter)
        return adapted.to(device)

    if when == "after":
        st.apply_kernels(model, conv="auto")
    model, reference = adapt(model), adapt(reference)
    report = st.apply_kernels(model, conv="auto").conv
    covered = layer == "0.after_conv.2"
    assert ("LoRA in place of bottleneck.0" in str(report)) == (not covered)
    for module in model.modules():
        if isinstance(module, TritonConvolutionModule) and covered:
            module.backend = "triton"
    x = frames(device)
    torch.testing.assert_close(model(x), reference(x))
    if covered:
        assert launches["conv_kernel"] == 2


def put_lora(module):
    module.bottleneck[0] = LoRA(module.bottleneck[0], rank=2)
    module.to(module.conv.weight.device)


def hook(name):
    def put(module):
        layer = module.get_submodule(name)
        layer.register_forward_hook(lambda *_: None)

    return put


def reflect(module):
    padded = nn.Conv1d(C, C, 3, padding=1, groups=C, padding_mode="reflect")
    module.conv = padded.to(module.conv.weight.device)


def dense(module):
    module.conv = nn.Conv1d(C, C, 3, padding=1).to(module.conv.weight.device)


def own_forward(module):
    module.conv.forward = lambda x: x


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put_lora, "LoRA in place of bottleneck.0"),
        (reflect, "a conv that is not the depthwise one SpeechBrain built"),
        (dense, "a conv that is not the depthwise one SpeechBrain built"),
        (own_forward, "a forward of its own on conv"),
        (hook("bottleneck"), "hooks on bottleneck"),
        (hook("bottleneck.1"), "hooks on bottleneck.1"),
        (hook("conv"), "hooks on conv"),
    ],
)
def test_change_after_the_swap_is_seen_by_the_next_call(
    change, reason, device, launches
):
    model = model_of(1, device)
    st.apply_kernels(model, conv="triton")
    model(frames(device))
    assert launches["conv_kernel"] == 1
    change(model[0])
    with pytest.raises(RuntimeError, match=reason):
        model(frames(device))
    assert launches["conv_kernel"] == 1
    assert reason in str(st.apply_kernels(model, conv="auto"))
    model(frames(device))
    assert launches["conv_kernel"] == 1


@pytest.mark.parametrize(
    "inner", ["bottleneck", "bottleneck.0", "bottleneck.1", "conv"]
)
def test_hooks_on_inner_layers_are_not_passed_by(inner, device):
    """The Triton path calls none of these layers: it must not be taken."""
    model = model_of(1, device)
    calls = []
    layer = model[0].get_submodule(inner)
    layer.register_forward_hook(lambda *_: calls.append(inner))
    report = st.apply_kernels(model, conv="auto").conv
    assert f"hooks on {inner}" in str(report)
    model(frames(device))
    assert calls == [inner]
    with pytest.raises(ValueError, match=f"hooks on {inner}"):
        st.apply_kernels(model, conv="triton")


def test_gate_of_another_kind_is_not_passed_by(device):
    model = model_of(1, device)
    model[0].bottleneck[1] = nn.Sequential(nn.GLU(dim=1), nn.Tanh())
    report = st.apply_kernels(model, conv="auto").conv
    assert "Sequential in place of bottleneck.1" in str(report)


def test_bottleneck_of_another_kind_is_left_alone(device):
    model = model_of(1, device)
    model[0].bottleneck = nn.Conv1d(C, C, 1)
    report = st.apply_kernels(model, conv="auto").conv
    assert "Conv1d in place of bottleneck" in str(report)


def test_weight_norm_is_not_passed_by(device):
    model = model_of(1, device)
    nn.utils.parametrizations.weight_norm(model[0].conv)
    report = st.apply_kernels(model, conv="auto").conv
    assert "ParametrizedConv1d in place of conv" in str(report)


class Wrapped(nn.Module):
    """A layer without a weight of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return 2 * self.inner(x)


@pytest.mark.parametrize(
    "place", ["conv", "layer_norm", "bottleneck.0", "after_conv.2"]
)
def test_any_layer_may_take_a_place_after_the_switch(place, device):
    module = ConvolutionModule(C, 3).to(device)
    reference = copy.deepcopy(module)
    st.apply_kernels(module, conv="auto")
    for model in (module, reference):
        parent, _, name = place.rpartition(".")
        parent = model.get_submodule(parent)
        setattr(parent, name, Wrapped(getattr(parent, name)))
    x = frames(device)
    torch.testing.assert_close(module(x), reference(x))


def test_activation_with_a_forward_of_its_own_is_called(device, launches):
    module = ConvolutionModule(C, 3).to(device)
    reference = copy.deepcopy(module)
    st.apply_kernels(module, conv="triton")
    for model in (module, reference):
        model.after_conv[1].forward = torch.tanh
    x = frames(device)
    torch.testing.assert_close(module(x), reference(x))
    assert launches["conv_kernel"] == 1


def test_containers_with_names_of_their_own_are_left_alone(device):
    module = ConvolutionModule(C, 3).to(device)
    pointwise, gate = module.bottleneck
    module.bottleneck = nn.Sequential()
    module.bottleneck.add_module("pointwise", pointwise)
    module.bottleneck.add_module("gate", gate)
    report = st.apply_kernels(module, conv="auto").conv
    assert "in place of bottleneck" in str(report)


def test_replicas_with_plain_tensors_run(device, launches):
    """As torch.nn.DataParallel makes them: without parameters."""
    module = ConvolutionModule(C, 3).to(device)
    st.apply_kernels(module, conv="triton")
    x = frames(device)
    expected = module(x)
    for inner in module.modules():
        for name, parameter in list(inner._parameters.items()):
            del inner._parameters[name]
            setattr(inner, name, parameter.detach().clone())
    torch.testing.assert_close(module(x), expected)
    assert launches["conv_kernel"] == 2


def test_tracing_takes_the_torch_path(device):
    module = ConvolutionModule(C, 3).to(device).eval()
    x = frames(device)
    expected = module(x)
    st.apply_kernels(module, conv="auto")
    traced = torch.jit.trace(module, x, check_trace=False)
    torch.testing.assert_close(traced(x), expected)
