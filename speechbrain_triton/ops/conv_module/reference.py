"""Plain PyTorch twin of the convolution module."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from speechbrain_triton.ops.conv_block.reference import conv_block_reference
from speechbrain_triton.ops.layer_norm.reference import layer_norm_reference


class ConvModuleParameters(NamedTuple):
    """Parameters of a convolution module, in the order of their use.

    All in one floating dtype, except under autocast.
    """

    layer_norm_weight: torch.Tensor
    """(C,), of the layer norm at the entrance."""
    layer_norm_bias: torch.Tensor
    """(C,)."""
    bottleneck_weight: torch.Tensor
    """(2 C, C, 1), of the pointwise convolution in front of the gate."""
    bottleneck_bias: torch.Tensor | None
    """(2 C,)."""
    conv_weight: torch.Tensor
    """(C, 1, K), of the depthwise convolution."""
    conv_bias: torch.Tensor | None
    """(C,)."""
    norm_weight: torch.Tensor
    """(C,), of the layer norm behind the depthwise convolution."""
    norm_bias: torch.Tensor
    """(C,)."""
    linear_weight: torch.Tensor
    """(C, C), of the linear layer at the exit."""
    linear_bias: torch.Tensor | None
    """(C,)."""


def conv_module_reference(
    x: torch.Tensor,
    parameters: ConvModuleParameters,
    *,
    layer_norm_eps: float = 1e-5,
    norm_eps: float = 1e-5,
    activation: str = "swish",
    padding: str = "same",
    chunk_size: int | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Layer norm, linear, convolution block, linear.

    Specification, fallback and test oracle of
    :func:`~speechbrain_triton.ops.conv_module`, with the same arguments but
    ``backend``.

    Example
    -------
    >>> ones, zeros = torch.ones(8), torch.zeros(8)
    >>> parameters = ConvModuleParameters(
    ...     ones, zeros, torch.rand(16, 8, 1), None, torch.rand(8, 1, 5), None,
    ...     ones, zeros, torch.rand(8, 8), zeros,
    ... )
    >>> conv_module_reference(torch.rand(2, 20, 8), parameters).shape
    torch.Size([2, 20, 8])
    """
    return in_parts(
        layer_norm_reference,
        conv_block_reference,
        x,
        parameters,
        layer_norm_eps=layer_norm_eps,
        norm_eps=norm_eps,
        activation=activation,
        padding=padding,
        chunk_size=chunk_size,
        dtype=x.dtype if dtype is None else dtype,
    )


def in_parts(
    layer_norm: Callable[..., torch.Tensor],
    conv_block: Callable[..., torch.Tensor],
    x: torch.Tensor,
    parameters: ConvModuleParameters,
    *,
    layer_norm_eps: float,
    norm_eps: float,
    activation: str,
    padding: str,
    chunk_size: int | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The module, of two given parts and PyTorch's linear layers.

    Arguments
    ---------
    layer_norm, conv_block : callable
        The twins, or what takes the same arguments.
    x, parameters, ...
        As for :func:`conv_module_reference`, all of them.

    Returns
    -------
    torch.Tensor
        (B, T, C) in ``dtype``.
    """
    p = parameters
    n = layer_norm(
        x,
        p.layer_norm_weight,
        p.layer_norm_bias,
        eps=layer_norm_eps,
        activation="none",
        dtype=dtype,
    )
    z = conv_block(
        F.linear(n, p.bottleneck_weight.squeeze(-1).to(dtype)),
        p.conv_weight,
        p.conv_bias,
        p.norm_weight,
        p.norm_bias,
        p.bottleneck_bias,
        eps=norm_eps,
        activation=activation,
        padding=padding,
        chunk_size=chunk_size,
    )
    bias = None if p.linear_bias is None else p.linear_bias.to(dtype)
    return F.linear(z, p.linear_weight.to(dtype), bias)
