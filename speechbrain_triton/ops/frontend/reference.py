"""Plain PyTorch twin of the front end."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from speechbrain_triton.ops.bias_relu.reference import bias_relu_reference
from speechbrain_triton.ops.conv_stem.reference import conv_stem_reference
from speechbrain_triton.ops.depthwise_conv2d.reference import (
    depthwise_conv2d_reference,
)
from speechbrain_triton.ops.sizes import out_length

STRIDE = 2


class SeparableConv(NamedTuple):
    """Parameters of a depthwise convolution and the pointwise one behind."""

    depthwise_weight: torch.Tensor
    """(C, 1, K, K)."""
    depthwise_bias: torch.Tensor
    """(C,)."""
    pointwise_weight: torch.Tensor
    """(C, C, 1, 1)."""
    pointwise_bias: torch.Tensor
    """(C,)."""


class FrontEndParameters(NamedTuple):
    """Parameters of a front end, in the order of their use."""

    conv_weight: torch.Tensor
    """(C, 1, K, K)."""
    conv_bias: torch.Tensor
    """(C,)."""
    blocks: tuple[SeparableConv, ...]
    """At least one."""

    def flat(self) -> tuple[torch.Tensor, ...]:
        """All of them, as autograd takes them."""
        return *self[:2], *(t for block in self.blocks for t in block)

    @classmethod
    def of(cls, tensors: tuple[torch.Tensor, ...]) -> "FrontEndParameters":
        """The inverse of :meth:`flat`."""
        weight, bias, *others = tensors
        size = len(SeparableConv._fields)
        starts = range(0, len(others), size)
        blocks = (SeparableConv(*others[i : i + size]) for i in starts)
        return cls(weight, bias, tuple(blocks))


def frontend_reference(
    x: torch.Tensor,
    parameters: FrontEndParameters,
    frames: torch.Tensor | None = None,
    *,
    padding: str = "same",
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Strided convolution, then separable ones, with ReLU between all.

    Specification and test oracle of :func:`run_frontend`; it runs on any
    device, in any floating dtype, and supports double backward.

    Arguments
    ---------
    x : torch.Tensor
        Features (B, T, F).
    parameters : FrontEndParameters
        Of any floating dtype.
    frames : torch.Tensor, optional
        Of each utterance (B,), whole numbers.
    padding : str
        ``"same"`` or ``"causal"``.
    dtype : torch.dtype, optional
        Of products and result; by default x's.

    Returns
    -------
    torch.Tensor
        (B, T', F', C).
    """
    dtype = x.dtype if dtype is None else dtype
    tensors = tuple(t.to(dtype) for t in parameters.flat())
    return in_parts(
        conv_stem_reference,
        depthwise_conv2d_reference,
        bias_relu_reference,
        x.to(dtype),
        FrontEndParameters.of(tensors),
        frames,
        padding=padding,
        dtype=dtype,
    )


def in_parts(
    conv_stem: Callable[..., torch.Tensor],
    depthwise_conv2d: Callable[..., torch.Tensor],
    bias_relu: Callable[..., torch.Tensor],
    x: torch.Tensor,
    parameters: FrontEndParameters,
    frames: torch.Tensor | None,
    *,
    padding: str,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The front end, of three given parts and PyTorch's linear layers.

    Arguments
    ---------
    conv_stem, depthwise_conv2d, bias_relu : callable
        The twins, or what takes the same arguments.
    x, parameters, ...
        As for :func:`frontend_reference`, all of them.

    Returns
    -------
    torch.Tensor
        (B, T', F', C) in ``dtype``.
    """
    options = {"stride": STRIDE, "padding": padding}
    block, *others = parameters.blocks
    u = conv_stem(x, *parameters[:2], *block[:2], lengths=frames, **options)
    frames = halved(halved(frames))
    for following in others:
        # A bias is added, and its gradient summed, by what comes next.
        u = depthwise_conv2d(
            linear(u, block, dtype),
            *following[:2],
            relu="before",
            input_bias=block.pointwise_bias,
            lengths=frames,
            **options,
        )
        frames, block = halved(frames), following
    return bias_relu(linear(u, block, dtype), block.pointwise_bias, frames)


def linear(
    u: torch.Tensor, block: SeparableConv, dtype: torch.dtype
) -> torch.Tensor:
    """The pointwise convolution of u (..., C), without its bias."""
    return F.linear(u, block.pointwise_weight.flatten(1).to(dtype))


def halved(frames: torch.Tensor | None) -> torch.Tensor | None:
    """What a convolution of the front end makes of so many frames."""
    # As many for every odd kernel.
    return None if frames is None else out_length(frames, 1, STRIDE, "same")
