"""Functions with Triton kernels, each with a plain torch twin."""

from speechbrain_triton.ops.depthwise_conv1d import depthwise_conv1d

__all__ = ["depthwise_conv1d"]
