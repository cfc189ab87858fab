"""Every op with the calls that its properties are tested on."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from op_draws import (
    Parts,
    draw_bias_relu,
    draw_conv_block,
    draw_conv_module,
    draw_conv_stem,
    draw_depthwise_conv1d,
    draw_depthwise_conv2d,
    draw_frontend,
    draw_geglu_ffn,
    draw_geglu_linear,
    draw_layer_norm,
    draw_reflection_pad2d,
    draw_transducer_joint_loss,
    draw_transducer_loss,
)
from property_cases import MODES

from speechbrain_triton import ops
from speechbrain_triton.backend import autocast_dtype, use_triton
from speechbrain_triton.ops.frontend import (
    FrontEndParameters,
    frontend_reference,
    run_frontend,
)
from speechbrain_triton.ops.inputs import PADDINGS
from speechbrain_triton.ops.layer_norm.reference import ACTIVATIONS
from speechbrain_triton.ops.transducer_joint_loss import NONLINEARITIES

BOTH = (True, False)
TENSOR_MODES = tuple(mode for mode in MODES if mode != "autocast")


@dataclass(frozen=True)
class Op:
    """How an op is called, and on what.

    Arguments
    ---------
    call : callable
        Takes tensors and options by name, and ``backend``.
    constants : dict
        What kernels are compiled for, with the values that it may have.
    draw : callable
        Takes hypothesis' ``draw``, a value of each constant and a ``Size``;
        returns ``Parts``.
    modes : tuple of str
        Of ``MODES``.
    """

    call: Callable[..., torch.Tensor]
    constants: dict[str, tuple]
    draw: Callable[..., Parts]
    modes: tuple[str, ...] = tuple(MODES)


def with_absent(function, *names):
    """The function, for arguments that have no default but may be None."""

    def call(**arguments):
        return function(**dict.fromkeys(names) | arguments)

    return call


def with_dtype(function):
    """The function, for a result dtype by name; float64 stays as it is."""

    def call(x, *, dtype, **arguments):
        exact = dtype is None or x.dtype is torch.float64
        dtype = None if exact else getattr(torch, dtype)
        return function(x, dtype=dtype, **arguments)

    return call


def conv_module(
    x, *, activation, padding, chunk_size=None, backend, **parameters
):
    absent = dict.fromkeys(ops.ConvModuleParameters._fields)
    return ops.conv_module(
        x,
        ops.ConvModuleParameters(**absent | parameters),
        activation=activation,
        padding=padding,
        chunk_size=chunk_size,
        backend=backend,
    )


def frontend(x, frames=None, *, padding, backend, **parameters):
    parameters = FrontEndParameters.of(tuple(parameters.values()))
    frames = None if frames is None else frames.long().contiguous()
    dtype = autocast_dtype(x) or x.dtype
    taken = use_triton(backend, "frontend", x.device, dtype)
    run = run_frontend if taken else frontend_reference
    return run(x, parameters, frames, padding=padding, dtype=dtype)


def transducer_loss(logits, *, inplace=False, **arguments):
    # What is overwritten must be nobody's leaf.
    logits = logits * 1 if inplace else logits
    return ops.transducer_loss(logits, inplace=inplace, **arguments)


CHANNELS = (1, 7, 24, 64, 130)
# A normalized channel, or two, would be no more than a sign.
NORMALIZED = (3, 24, 64, 130)
RESULT_DTYPES = (None, "float32", "float16", "bfloat16")
BLOCK = {
    "C": NORMALIZED,
    "K": (1, 4, 9, 15, 31),
    "bias": BOTH,
    "activation": tuple(ACTIVATIONS),
}
GEGLU = {
    # The last one has a kernel of its own on Hopper, for many rows.
    "widths": ((1, 1), (9, 33), (64, 20), (72, 64), (136, 1024)),
    "bias": BOTH,
    "approximate": ("none", "tanh"),
    "dropout": (0.0, 0.3, 1.0),
}
LATTICE = {"V": (2, 5, 40, 1000), "blank": (0, 1, -1), "clamp": BOTH}

# Those with most kernels to compile come last.
OPS = {
    "layer_norm": Op(
        with_dtype(ops.layer_norm),
        {
            "C": (*NORMALIZED, 700),
            "activation": tuple(ACTIVATIONS),
            "dtype": RESULT_DTYPES,
        },
        draw_layer_norm,
        TENSOR_MODES,
    ),
    "bias_relu": Op(
        ops.bias_relu,
        {"C": (1, 7, 24, 300), "lengths": BOTH},
        draw_bias_relu,
        TENSOR_MODES,
    ),
    "geglu_linear": Op(ops.geglu_linear, GEGLU, draw_geglu_linear),
    "geglu_ffn": Op(
        with_absent(ops.geglu_ffn, "bias", "out_bias"),
        {**GEGLU, "out": (1, 24), "out_bias": BOTH},
        draw_geglu_ffn,
    ),
    "reflection_pad2d": Op(
        with_dtype(ops.reflection_pad2d),
        {
            "C": (1, 7, 24, 300),
            "pad": ((0, 0), (1, 1), (2, 0), (0, 3), (3, 2)),
            "dtype": RESULT_DTYPES,
        },
        draw_reflection_pad2d,
        TENSOR_MODES,
    ),
    "depthwise_conv1d": Op(
        ops.depthwise_conv1d,
        {"C": CHANNELS, "K": (1, 2, 4, 9, 15, 31), "bias": BOTH},
        draw_depthwise_conv1d,
    ),
    "depthwise_conv2d": Op(
        ops.depthwise_conv2d,
        {
            "C": CHANNELS,
            "kernel": ((3, 3), (5, 5), (1, 3), (3, 1), (1, 1)),
            "stride": (1, 2, (1, 2), (2, 1)),
            "padding": PADDINGS,
            "relu": (None, "before", "after"),
            "bias": BOTH,
            "input_bias": BOTH,
            "lengths": BOTH,
        },
        draw_depthwise_conv2d,
    ),
    "conv_stem": Op(
        with_absent(ops.conv_stem, "bias", "depthwise_bias"),
        {
            "C": (1, 16, 70),
            "K": (1, 3, 5),
            "stride": (1, 2),
            "padding": PADDINGS,
            "bias": BOTH,
            "depthwise_bias": BOTH,
            "lengths": BOTH,
        },
        draw_conv_stem,
    ),
    "conv_block": Op(
        with_absent(ops.conv_block, "bias"),
        {**BLOCK, "glu_bias": BOTH},
        draw_conv_block,
    ),
    "transducer_loss": Op(
        transducer_loss, LATTICE, draw_transducer_loss, TENSOR_MODES
    ),
    "transducer_joint_loss": Op(
        with_absent(ops.transducer_joint_loss, "bias"),
        {
            **LATTICE,
            "J": (1, 24, 130),
            "nonlinearity": tuple(NONLINEARITIES),
            "bias": BOTH,
        },
        draw_transducer_joint_loss,
    ),
    "conv_module": Op(
        conv_module, {**BLOCK, "bottleneck_bias": BOTH}, draw_conv_module
    ),
    "frontend": Op(
        frontend,
        {
            "C": (16, 40),
            "K": (3, 5),
            "blocks": (1, 2, 3),
            "padding": ("same", "causal"),
            "lengths": BOTH,
        },
        draw_frontend,
    ),
}
