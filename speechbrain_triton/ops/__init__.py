"""Functions with Triton kernels, each with a plain torch twin."""

from speechbrain_triton.ops.conv_block import conv_block
from speechbrain_triton.ops.conv_module import (
    ConvModuleParameters,
    conv_module,
)
from speechbrain_triton.ops.depthwise_conv1d import depthwise_conv1d
from speechbrain_triton.ops.layer_norm import layer_norm

__all__ = [
    "ConvModuleParameters",
    "conv_block",
    "conv_module",
    "depthwise_conv1d",
    "layer_norm",
]
