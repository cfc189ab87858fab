"""What a Conformer convolution module does between its two linear layers."""

from speechbrain_triton.ops.conv_block.op import conv_block
from speechbrain_triton.ops.conv_block.reference import conv_block_reference

__all__ = ["conv_block", "conv_block_reference"]
