"""The convolution block: autograd and the public function."""

from functools import partial

import torch

from speechbrain_triton.backend import check_choice, use_triton
from speechbrain_triton.ops.conv_block.reference import conv_block_reference
from speechbrain_triton.ops.depthwise_conv1d.op import (
    as_autocast,
    check_arguments,
    geometry_of,
    taps_obstacle,
)
from speechbrain_triton.ops.layer_norm.op import (
    channels_obstacle,
    check_vector,
)
from speechbrain_triton.ops.layer_norm.reference import ACTIVATIONS
from speechbrain_triton.ops.twin import gradients_by_twin


class _ConvBlock(torch.autograd.Function):
    # For backward h and the convolution's output u are kept: 3 C elements a
    # frame, 6 C bytes in half precision. The gated g and the normalised u
    # are cheaper to compute again than to keep.
    @staticmethod
    def forward(
        ctx, h, weight, bias, norm_weight, norm_bias, glu_bias, options
    ):
        from speechbrain_triton.ops.conv_block.launch import launch_glu
        from speechbrain_triton.ops.depthwise_conv1d import launch
        from speechbrain_triton.ops.layer_norm.launch import launch_layer_norm

        K = weight.shape[2]
        geometry = geometry_of(
            h.shape[1], K, options["padding"], options["chunk_size"]
        )
        taps = launch.taps_of(weight)
        g = launch_glu(h, glu_bias)
        u = launch.launch_conv(g, taps, bias, geometry)
        z = launch_layer_norm(
            u,
            norm_weight,
            norm_bias,
            options["eps"],
            options["activation"],
            u.dtype,
        )
        ctx.save_for_backward(
            h, weight, bias, norm_weight, norm_bias, glu_bias, u
        )
        ctx.taps, ctx.geometry, ctx.options = taps, geometry, options
        return z

    @staticmethod
    def backward(ctx, dz):
        from speechbrain_triton.ops.conv_block.launch import launch_glu_grad
        from speechbrain_triton.ops.depthwise_conv1d import launch
        from speechbrain_triton.ops.layer_norm.launch import (
            launch_layer_norm_grad,
        )

        *inputs, u = ctx.saved_tensors
        if torch.is_grad_enabled():
            twin = partial(conv_block_reference, **ctx.options)
            needed = ctx.needs_input_grad[:6]
            return *gradients_by_twin(twin, inputs, needed, dz), None

        h, weight, bias, norm_weight, norm_bias, glu_bias = inputs
        du, dnorm_weight, dnorm_bias = launch_layer_norm_grad(
            u,
            norm_weight,
            norm_bias,
            dz,
            ctx.options["eps"],
            ctx.options["activation"],
        )
        dg = launch.launch_conv(
            du, ctx.taps, None, ctx.geometry, transposed=True
        )
        dh, g, dglu_bias = launch_glu_grad(dg, h, glu_bias)
        dweight = dbias = None
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            dweight, dbias = launch.launch_weight_grad(
                g, du, weight, bias, ctx.geometry
            )
        if glu_bias is not None:
            dglu_bias = dglu_bias.to(glu_bias.dtype)
        return (
            dh,
            dweight,
            dbias,
            dnorm_weight.to(norm_weight.dtype),
            dnorm_bias.to(norm_bias.dtype),
            dglu_bias,
            None,
        )


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
        ``"none"``, ``"swish"``, ``"gelu"`` (exact) or ``"relu"``.
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
    return _ConvBlock.apply(*inputs, options)
