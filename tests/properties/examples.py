"""One plain call of each op, and each module, at any number of frames."""

import torch
from op_table import OPS
from property_cases import Case
from speechbrain.lobes.models.transformer.Conformer import (
    ConformerEncoderLayer,
    ConvolutionModule,
)

import speechbrain_triton
from speechbrain_triton.modules import (
    FastConformerFrontEnd,
    GEGLUFeedForward,
    TritonConvolutionFrontEnd,
    TritonConvolutionModule,
)

C, K = 8, 5


def example(name: str, B: int = 2, T: int = 9, mode: str = "float32") -> Case:
    """A small call of an op that is smooth enough to be differentiated."""
    lengths = tuple(max(1, T - 3 * b) for b in range(B))
    shapes, integers, options = {
        "depthwise_conv1d": (
            {"x": (B, T, C), "weight": (C, 1, K), "bias": (C,)},
            {},
            {"chunk_size": 4},
        ),
        "layer_norm": (
            {"x": (B, T, C), "weight": (C,), "bias": (C,)},
            {},
            {"activation": "swish", "dtype": None},
        ),
        "conv_block": (
            {"h": (B, T, 2 * C), **_block(), "glu_bias": (2 * C,)},
            {},
            {"chunk_size": 4},
        ),
        "conv_module": (_conv_module(B, T), {}, _SAME),
        "conv_stem": (
            {"x": (B, T, 6), **_stem()},
            {"lengths": lengths},
            {},
        ),
        "depthwise_conv2d": (
            {
                "x": (B, T, 4, C),
                "weight": (C, 1, 3, 3),
                "bias": (C,),
                "input_bias": (C,),
            },
            {"lengths": lengths},
            {"stride": 2, "relu": "before"},
        ),
        "bias_relu": (
            {"x": (B, T, 3, C), "bias": (C,)},
            {"lengths": lengths},
            {},
        ),
        "reflection_pad2d": (
            {"x": (B, T, 4, C)},
            {},
            {"pad": (1, 2), "dtype": None},
        ),
        "frontend": (
            {"x": (B, T, 6), "conv_weight": (C, 1, 3, 3), "conv_bias": (C,)}
            | _separable(0)
            | _separable(1),
            {"frames": lengths},
            {"padding": "same"},
        ),
        "geglu_linear": (_geglu(B, T), {}, {"dropout": 0.2, "seed": 3}),
        "geglu_ffn": (
            {**_geglu(B, T), "out_weight": (C, 6), "out_bias": (C,)},
            {},
            {"dropout": 0.2, "seed": 3},
        ),
        "transducer_loss": ({"logits": (B, T, 3, 5)}, _lattice(lengths), {}),
        "transducer_joint_loss": (
            {
                "encoder": (B, T, C),
                "predictor": (B, 3, C),
                "weight": (5, C),
                "bias": (5,),
            },
            _lattice(lengths),
            {},
        ),
    }[name]
    return Case(name, mode, shapes, integers, options, seed=1)


_SAME = {"padding": "same", "activation": "swish", "chunk_size": 4}


def _block():
    vectors = dict.fromkeys(("bias", "norm_weight", "norm_bias"), (C,))
    return {"weight": (C, 1, K), **vectors}


def _conv_module(B, T):
    return {
        "x": (B, T, C),
        "layer_norm_weight": (C,),
        "layer_norm_bias": (C,),
        "bottleneck_weight": (2 * C, C, 1),
        "bottleneck_bias": (2 * C,),
        "conv_weight": (C, 1, K),
        "conv_bias": (C,),
        "norm_weight": (C,),
        "norm_bias": (C,),
        "linear_weight": (C, C),
        "linear_bias": (C,),
    }


def _stem():
    weight = (C, 1, 3, 3)
    biases = dict.fromkeys(("bias", "depthwise_bias"), (C,))
    return {"weight": weight, "depthwise_weight": weight, **biases}


def _separable(n):
    return {
        f"depthwise_weight{n}": (C, 1, 3, 3),
        f"depthwise_bias{n}": (C,),
        f"pointwise_weight{n}": (C, C, 1, 1),
        f"pointwise_bias{n}": (C,),
    }


def _geglu(B, T):
    return {"x": (B, T, C), "weight": (12, C), "bias": (12,)}


def _lattice(lengths):
    rows = [((1, 2), (3, 4), (4, 4))[b % 3] for b in range(len(lengths))]
    return {
        "targets": tuple(rows),
        "logit_lengths": lengths,
        "target_lengths": tuple((2, 1, 0)[b % 3] for b in range(len(lengths))),
    }


MODULES = (
    "TritonConvolutionModule",
    "TritonConvolutionFrontEnd",
    "FastConformerFrontEnd",
    "GEGLUFeedForward",
    "ConformerEncoderLayer",
)


def module(name: str, device: str) -> torch.nn.Module:
    """A small module on the kernels, which maps x to y."""
    torch.manual_seed(0)
    made = _MODULES[name]().to(device)
    if name == "ConformerEncoderLayer":
        speechbrain_triton.apply_kernels(made, conv="triton")
        return _Alone(made)
    return made


def features(device: str, B: int = 2, T: int = 9) -> torch.Tensor:
    """What every one of the modules takes: (B, T, C)."""
    return torch.randn(B, T, C, device=device)


class _Alone(torch.nn.Module):
    """An encoder layer without what a model gives it besides x."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        positions = x.new_zeros(1, 2 * x.shape[1] - 1, C)
        return self.layer(x, pos_embs=positions)[0]


def _conv():
    made = TritonConvolutionModule(C, K, backend="triton")
    made.load_state_dict(ConvolutionModule(C, K).state_dict())
    return made


_MODULES = {
    "TritonConvolutionModule": _conv,
    "TritonConvolutionFrontEnd": lambda: TritonConvolutionFrontEnd(
        (2, 9, C),
        num_blocks=1,
        num_layers_per_block=1,
        out_channels=[16],
        strides=[2],
        residuals=[False],
        dropout=0.1,
        backend="triton",
    ),
    "FastConformerFrontEnd": lambda: FastConformerFrontEnd(
        n_mels=C, channels=16, backend="triton"
    ),
    "GEGLUFeedForward": lambda: GEGLUFeedForward(
        2 * C, input_size=C, dropout=0.1, backend="triton"
    ),
    "ConformerEncoderLayer": lambda: ConformerEncoderLayer(
        C, 2 * C, 2, kernel_size=K, dropout=0.1
    ),
}

assert set(_MODULES) == set(MODULES)
assert all(example(name).op == name for name in OPS)
