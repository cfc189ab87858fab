"""The convolution block: the public function."""

import torch

from speechbrain_triton.backend import check_choice, use_triton
from speechbrain_triton.ops.conv_block.autograd import run_conv_block
from speechbrain_triton.ops.conv_block.reference import conv_block_reference
from speechbrain_triton.ops.depthwise_conv1d.op import (
    check_arguments,
    taps_obstacle,
)
from speechbrain_triton.ops.inputs import as_autocast, check_vector
from speechbrain_triton.ops.layer_norm.op import channels_obstacle
from speechbrain_triton.ops.layer_norm.reference import ACTIVATIONS


def conv_block(
    h: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    glu_bias: torch.Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str = "swish",
    padding: str = "same",
    chunk_size: int | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """Gated linear unit, depthwise convolution, layer norm and activation.

    What the Conformer's convolution module does between its two pointwise
    layers (Gulati et al., "Conformer", Interspeech 2020; with layer norm in
    place of batch norm, as in SpeechBrain). See
    :func:`~speechbrain_triton.ops.depthwise_conv1d` for padding and chunks.
    Under autocast h is cast to autocast's dtype, and parameters are read as
    they are. For backward h and the convolution's output are kept. Double
    backward is supported.

    Arguments
    ---------
    h : torch.Tensor
        (B, T, 2 C), the first pointwise layer's output, in float32, bfloat16
        or float16 (float64 on the torch path).
    weight : torch.Tensor
        (C, 1, K), of the depthwise convolution.
    bias : torch.Tensor or None
        (C,), of the depthwise convolution.
    norm_weight : torch.Tensor
        (C,), of the layer norm.
    norm_bias : torch.Tensor
        (C,), of the layer norm.
    glu_bias : torch.Tensor, optional
        (2 C,), added to h: the first pointwise layer's bias, whose gradient
        is then summed in the pass that computes that of h.
    eps : float
        Of the layer norm.
    activation : str
        ``"none"``, ``"swish"``, ``"gelu"`` (exact), ``"relu"`` or
        ``"leaky_relu"`` (of slope 0.01).
    padding : str
        ``"same"``, ``"causal"`` or ``"valid"``.
    chunk_size : int, optional
        Frames in a chunk; only with ``padding="same"``.
    backend : str
        ``"auto"``, ``"triton"`` or ``"torch"``.

    Returns
    -------
    torch.Tensor
        (B, T, C) in h's dtype, or autocast's.

    Raises
    ------
    ValueError
        For a shape or option that is not allowed.
    TypeError
        If dtypes differ outside autocast.
    RuntimeError
        If ``backend="triton"`` cannot run.

    Example
    -------
    >>> h, weight = torch.rand(4, 100, 128), torch.rand(64, 1, 31)
    >>> ones, zeros = torch.ones(64), torch.zeros(64)
    >>> conv_block(h, weight, zeros, ones, zeros, chunk_size=16).shape
    torch.Size([4, 100, 64])
    """
    check_choice("activation", activation, tuple(ACTIVATIONS))
    (h,) = as_autocast({"h": h}, {"weight": weight, "bias": bias})
    if h.dim() != 3 or h.shape[2] % 2:
        raise ValueError(
            "h must be (batch, time, 2 C) with an even last dimension, got "
            f"shape {tuple(h.shape)}."
        )
    C = h.shape[2] // 2
    check_arguments(
        (*h.shape[:2], C), h.device, weight, bias, padding, chunk_size
    )
    check_vector("norm_weight", norm_weight, C, h)
    check_vector("norm_bias", norm_bias, C, h)
    if glu_bias is not None:
        check_vector("glu_bias", glu_bias, 2 * C, h)
    options = {
        "eps": float(eps),
        "activation": activation,
        "padding": padding,
        "chunk_size": chunk_size,
    }
    inputs = (h, weight, bias, norm_weight, norm_bias, glu_bias)
    obstacle = taps_obstacle(weight) or channels_obstacle(C)
    if not use_triton(backend, "conv_block", h.device, h.dtype, obstacle):
        return conv_block_reference(*inputs, **options)
    return run_conv_block(*inputs, **options)
