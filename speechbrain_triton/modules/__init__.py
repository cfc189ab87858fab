"""Modules that mirror SpeechBrain's and run this package's kernels."""

from speechbrain_triton.modules.architecture import use_feedforward
from speechbrain_triton.modules.convolution import TritonConvolutionModule
from speechbrain_triton.modules.convolution_frontend import (
    TritonConvolutionFrontEnd,
)
from speechbrain_triton.modules.encoder import TritonConformerEncoderLayer
from speechbrain_triton.modules.feedforward import GEGLUFeedForward
from speechbrain_triton.modules.frontend import FastConformerFrontEnd

__all__ = [
    "FastConformerFrontEnd",
    "GEGLUFeedForward",
    "TritonConformerEncoderLayer",
    "TritonConvolutionFrontEnd",
    "TritonConvolutionModule",
    "use_feedforward",
]
