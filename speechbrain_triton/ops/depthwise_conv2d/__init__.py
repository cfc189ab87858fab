"""Strided depthwise convolution over time and frequency, channels last."""

from speechbrain_triton.ops.depthwise_conv2d.op import depthwise_conv2d
from speechbrain_triton.ops.depthwise_conv2d.reference import (
    depthwise_conv2d_reference,
)

__all__ = ["depthwise_conv2d", "depthwise_conv2d_reference"]
