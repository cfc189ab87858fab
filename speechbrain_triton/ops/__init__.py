"""Functions with Triton kernels, each with a plain torch twin."""

from speechbrain_triton.ops.bias_relu import bias_relu
from speechbrain_triton.ops.conv_block import conv_block
from speechbrain_triton.ops.conv_module import (
    ConvModuleParameters,
    conv_module,
)
from speechbrain_triton.ops.conv_stem import conv_stem
from speechbrain_triton.ops.depthwise_conv1d import depthwise_conv1d
from speechbrain_triton.ops.depthwise_conv2d import depthwise_conv2d
from speechbrain_triton.ops.geglu_ffn import geglu_ffn
from speechbrain_triton.ops.geglu_linear import geglu_linear
from speechbrain_triton.ops.layer_norm import layer_norm
from speechbrain_triton.ops.reflection_pad2d import reflection_pad2d
from speechbrain_triton.ops.transducer_joint_loss import (
    transducer_joint_loss,
)
from speechbrain_triton.ops.transducer_loss import transducer_loss

__all__ = [
    "ConvModuleParameters",
    "bias_relu",
    "conv_block",
    "conv_module",
    "conv_stem",
    "depthwise_conv1d",
    "depthwise_conv2d",
    "geglu_ffn",
    "geglu_linear",
    "layer_norm",
    "reflection_pad2d",
    "transducer_joint_loss",
    "transducer_loss",
]
