"""The whole Conformer convolution module as one differentiable function."""

from speechbrain_triton.ops.conv_module.op import conv_module
from speechbrain_triton.ops.conv_module.reference import (
    ConvModuleParameters,
    conv_module_reference,
)

__all__ = ["ConvModuleParameters", "conv_module", "conv_module_reference"]
