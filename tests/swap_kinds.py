"""The kinds of modules that ``apply_kernels`` switches by their backend."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from speechbrain.lobes.models.convolution import ConvolutionFrontEnd
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
from speechbrain.nnet.attention import PositionalwiseFeedForward
from torch import nn

import speechbrain_triton as st
from speechbrain_triton.modules import FastConformerFrontEnd, GEGLUFeedForward

F = 8
BLOCKS = {
    "num_blocks": 2,
    "num_layers_per_block": 1,
    "out_channels": [4, 4],
    "strides": [2, 2],
    "residuals": [False, True],
}


def feedforward(**options):
    options = {"d_ffn": 16, "input_size": F, "backend": "torch", **options}
    return GEGLUFeedForward(**options)


def front_end(**options):
    options = {"channels": 8, "backend": "torch", **options}
    return FastConformerFrontEnd(F, **options)


def blocks(**options):
    return ConvolutionFrontEnd((8, 10, F), **{**BLOCKS, **options})


class Kind(NamedTuple):
    """A module's flag, how to build it on its torch path, and as YAML.

    ``hookable`` is a layer that the kernels take the place of, ``stock`` what
    SpeechBrain has instead, if anything, and ``refusal`` what is said of a
    model that has only that.
    """

    flag: str
    build: Callable[..., nn.Module]
    yaml: str
    hookable: str
    stock: Callable[[], list[nn.Module]]
    refusal: str

    def apply(self, model, flag, **others):
        report = st.apply_kernels(model, **{self.flag: flag}, **others)
        return getattr(report, self.flag)

    def model(self):
        return nn.ModuleDict(
            {"it": self.build(), "conv": ConvolutionModule(F, 3)}
        )

    def without(self):
        return nn.ModuleList([*self.stock(), ConvolutionModule(F, 3)])

    def hooked(self):
        module = self.build(backend="auto")
        self.hook(module)
        return module

    def hook(self, module):
        layer = module.get_submodule(self.hookable)
        layer.register_forward_hook(lambda *_: None)


NO_FRONT_END = "has no FastConformerFrontEnd or ConvolutionFrontEnd to switch"
KINDS = {
    "ffn": Kind(
        "ffn",
        feedforward,
        """speechbrain_triton.modules.GEGLUFeedForward
   d_ffn: 16
   input_size: 8""",
        "linear_in",
        lambda: [PositionalwiseFeedForward(4, input_size=F)],
        "has no GEGLUFeedForward.*ffn: geglu",
    ),
    "frontend": Kind(
        "frontend",
        front_end,
        """speechbrain_triton.modules.FastConformerFrontEnd
   channels: 8""",
        "conv",
        list,
        NO_FRONT_END,
    ),
    "blocks": Kind(
        "frontend",
        blocks,
        """speechbrain.lobes.models.convolution.ConvolutionFrontEnd
   input_shape: [8, 10, 8]
   num_blocks: 2
   num_layers_per_block: 1
   out_channels: [4, 4]
   strides: [2, 2]
   residuals: [False, False]""",
        "convblock_0.convs.norm_0",
        list,
        NO_FRONT_END,
    ),
}


def features(device):
    return torch.randn(2, 20, F, device=device)


def fingerprint(model):
    """All that must come back: classes, attributes, and what they hold."""
    return [
        (
            name,
            id(module),
            type(module),
            list(module.__dict__),
            [id(value) for value in module.__dict__.values()],
            [(n, id(p), p.requires_grad) for n, p in module.named_parameters()],
            module.training,
        )
        for name, module in model.named_modules()
    ]


def backend(module):
    """What a call would take; SpeechBrain's own classes know one path."""
    return getattr(module, "backend", "torch")


def assert_left_alone(kind, other, reason):
    """Beside a covered module, which switches, one that does not."""
    both = nn.ModuleDict({"one": kind.build(), "other": other})
    before, other_before = fingerprint(both), fingerprint(other)
    with pytest.raises(ValueError, match=f"{reason}.*'other'") as caught:
        kind.apply(both, "triton")
    assert "\n" not in str(caught.value)
    assert fingerprint(both) == before
    report = kind.apply(both, "auto")
    assert report.names == ["one"]
    assert f"other is left alone for {reason}" in str(report)
    assert fingerprint(other) == other_before
