"""Modules that mirror SpeechBrain's and run this package's kernels."""

from speechbrain_triton.modules.convolution import TritonConvolutionModule

__all__ = ["TritonConvolutionModule"]
