"""Depthwise convolution over time in (batch, time, channel) layout."""

from speechbrain_triton.ops.depthwise_conv1d.op import depthwise_conv1d
from speechbrain_triton.ops.depthwise_conv1d.reference import (
    depthwise_conv1d_reference,
)

__all__ = ["depthwise_conv1d", "depthwise_conv1d_reference"]
