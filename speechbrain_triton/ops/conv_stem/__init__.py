"""The front end's first two convolutions, with ReLU between them."""

from speechbrain_triton.ops.conv_stem.op import conv_stem
from speechbrain_triton.ops.conv_stem.reference import conv_stem_reference

__all__ = ["conv_stem", "conv_stem_reference"]
