"""The flag frontend on SpeechBrain's own front end: its class, and back."""

import copy
import logging

import pytest
import torch
from speechbrain.lobes.models.convolution import ConvBlock, ConvolutionFrontEnd
from speechbrain.nnet.CNN import Conv1d
from speechbrain.nnet.normalization import BatchNorm2d
from swap_kinds import (
    BLOCKS,
    KINDS,
    F,
    assert_left_alone,
    blocks,
    features,
    fingerprint,
)
from torch import nn

import speechbrain_triton as st
from speechbrain_triton.modules import (
    FastConformerFrontEnd,
    TritonConvolutionFrontEnd,
)


@pytest.mark.parametrize("flag", ["auto", "triton", "torch"])
def test_flag_changes_the_class_and_restore_brings_it_back(flag):
    module = blocks()
    before = fingerprint(module)
    report = st.apply_kernels(module, frontend=flag).frontend
    assert (report.names, report.left_alone) == ([""], {})
    if flag == "torch":
        assert fingerprint(module) == before
        assert st.restore(module) == 0
        return
    assert type(module) is TritonConvolutionFrontEnd
    assert module.backend == flag and f"backend='{flag}'" in repr(module)
    assert fingerprint(module)[1:] == before[1:]
    st.apply_kernels(module, frontend="torch")
    assert fingerprint(module) == before
    st.apply_kernels(module, frontend="triton")
    assert st.restore(module) == 1
    assert fingerprint(module) == before
    assert st.restore(module) == 0


@pytest.mark.parametrize("built", ["auto", "torch"])
def test_one_of_ours_gets_its_own_backend_back(built):
    module = TritonConvolutionFrontEnd((8, 10, F), backend=built, **BLOCKS)
    st.apply_kernels(module, frontend="triton")
    assert module.backend == "triton"
    assert st.restore(module) == 1
    assert type(module) is TritonConvolutionFrontEnd
    assert module.backend == built


def test_objects_hooks_and_optimizer_stay(device, launches):
    module = blocks().to(device)
    module.convblock_0.convs.conv_0.conv.weight.requires_grad_(False)
    calls = []
    module.register_forward_hook(lambda *_: calls.append("forward"))
    module.register_full_backward_hook(lambda *_: calls.append("backward"))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    parameters = dict(module.named_parameters())
    start = copy.deepcopy(module.state_dict())
    st.apply_kernels(module, frontend="triton")
    for name, parameter in module.named_parameters():
        assert parameter is parameters[name]
    module(features(device).requires_grad_()).pow(2).sum().backward()
    optimizer.step()
    assert calls == ["forward", "backward"] and launches
    fixed = [n for n, p in start.items() if p.equal(module.state_dict()[n])]
    assert fixed == ["convblock_0.convs.conv_0.conv.weight"]
    loaded = blocks().load_state_dict(module.state_dict(), strict=True)
    assert str(loaded) == "<All keys matched successfully>"


def test_both_front_ends_follow_the_flag(caplog):
    both = nn.ModuleDict(
        {"one": blocks(), "two": FastConformerFrontEnd(F, channels=4)}
    )
    with caplog.at_level(logging.INFO, "speechbrain_triton"):
        report = st.apply_kernels(both, frontend="torch")
    assert report.frontend.names == ["one", "two"]
    assert caplog.messages[1] == (
        "frontend=torch: 2 modules, torch path, because the flag asks for the "
        "plain PyTorch path."
    )
    st.apply_kernels(both, frontend="triton")
    assert both["one"].backend == both["two"].backend == "triton"
    assert st.restore(both) == 2


def changed(name, change):
    def build():
        module = blocks()
        change(module.get_submodule(name))
        return module

    return build


def replaced(name, layer):
    def build():
        module = blocks()
        module.set_submodule(name, layer())
        return module

    return build


def hooked(name):
    return changed(name, lambda m: m.register_forward_hook(lambda *_: None))


def own_forward(module):
    module.forward = lambda x: x


def max_norm(conv):
    conv.max_norm = 1.0


class Variant(ConvolutionFrontEnd):
    pass


CONV, NORM = "convblock_0.convs.conv_0", "convblock_0.convs.norm_0"
DROPOUT = "convblock_1.convs.dropout_0"
UNCOVERED = {
    "subclass": (lambda: Variant((8, 10, F), **BLOCKS), "its class Variant"),
    "no blocks": (
        lambda: ConvolutionFrontEnd((8, 10, F), num_blocks=0),
        "blocks other than SpeechBrain built",
    ),
    "Conv1d": (
        lambda: blocks(conv_module=Conv1d, residuals=[False, False]),
        f"a Conv1d in place of {CONV}",
    ),
    "BatchNorm": (
        lambda: blocks(norm=BatchNorm2d),
        f"a BatchNorm2d in place of {NORM}",
    ),
    "wide": (
        lambda: blocks(out_channels=[2049, 4]),
        f"the size of {NORM}, 8196, above 8192",
    ),
    "one channel": (
        lambda: blocks(out_channels=[1, 4]),
        f"the 1 channel of {CONV}, which SpeechBrain takes away",
    ),
    "weight norm": (
        changed(f"{CONV}.conv", nn.utils.parametrizations.weight_norm),
        f"a ParametrizedConv2d in place of {CONV}.conv",
    ),
    "max norm": (changed(CONV, max_norm), f"a {CONV} other than SpeechBrain"),
    "layer": (
        replaced("convblock_1", nn.Identity),
        "a Identity in place of convblock_1",
    ),
    "dropout": (
        replaced(DROPOUT, nn.Dropout2d),
        f"a Dropout2d in place of {DROPOUT}",
    ),
    "added": (
        changed("convblock_0.convs", lambda m: m.append(nn.Identity())),
        "layers of convblock_0.convs other than SpeechBrain built",
    ),
    "forward": (changed(NORM, own_forward), f"a forward of its own on {NORM}"),
    **{
        f"hook on {name}": (hooked(name), f"hooks on {name}")
        for name in (
            "convblock_0",
            "convblock_0.convs",
            f"{CONV}.conv",
            NORM,
            DROPOUT,
            "convblock_1.reduce_conv",
            "convblock_1.reduce_conv.conv",
            "convblock_1.drop",
        )
    },
}


@pytest.mark.parametrize("case", UNCOVERED)
def test_uncovered_front_end_refuses_triton_and_is_left_alone_by_auto(case):
    build, reason = UNCOVERED[case]
    assert_left_alone(KINDS["blocks"], build(), reason)


def test_activations_with_hooks_are_called(device, launches):
    module = blocks(activation=nn.ReLU).to(device)
    calls = []
    for layer in module.modules():
        if isinstance(layer, nn.ReLU):
            layer.register_forward_hook(lambda *_: calls.append(1))
    st.apply_kernels(module, frontend="triton")
    module(features(device))
    assert calls == [1, 1] and launches["layer_norm_kernel"] == 3


def test_change_after_the_switch_is_seen_by_the_next_call(device, launches):
    module = blocks().to(device)
    st.apply_kernels(module, frontend="triton")
    calls = []
    module.get_submodule(NORM).register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(RuntimeError, match=f"hooks on {NORM}"):
        module(features(device))
    report = st.apply_kernels(module, frontend="auto").frontend
    assert report.names == [] and type(module) is ConvolutionFrontEnd
    module(features(device))
    assert calls == [1] and not launches


def test_blocks_by_themselves_are_no_front_end():
    block = ConvBlock(1, 4, input_shape=(8, 10, F))
    assert st.apply_kernels(block).frontend.names == []
    with pytest.raises(ValueError, match="or ConvolutionFrontEnd to switch"):
        st.apply_kernels(block, frontend="triton")
