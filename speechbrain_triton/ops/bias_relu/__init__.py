"""A bias and ReLU behind a layer, in one pass over memory."""

from speechbrain_triton.ops.bias_relu.op import bias_relu
from speechbrain_triton.ops.bias_relu.reference import bias_relu_reference

__all__ = ["bias_relu", "bias_relu_reference"]
