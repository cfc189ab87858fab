"""Modules that mirror SpeechBrain's and run this package's kernels."""

from speechbrain_triton.modules.convolution import TritonConvolutionModule
from speechbrain_triton.modules.encoder import TritonConformerEncoderLayer
from speechbrain_triton.modules.frontend import FastConformerFrontEnd

__all__ = [
    "FastConformerFrontEnd",
    "TritonConformerEncoderLayer",
    "TritonConvolutionModule",
]
