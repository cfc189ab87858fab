"""The convolution module: the public function."""

import torch

from speechbrain_triton.backend import check_choice, use_triton
from speechbrain_triton.ops.conv_module.autograd import run_conv_module
from speechbrain_triton.ops.conv_module.reference import (
    ConvModuleParameters,
    conv_module_reference,
)
from speechbrain_triton.ops.depthwise_conv1d.op import (
    check_arguments,
    taps_obstacle,
)
from speechbrain_triton.ops.inputs import (
    check_device,
    check_vector,
    product_dtype,
)
from speechbrain_triton.ops.layer_norm.op import channels_obstacle
from speechbrain_triton.ops.layer_norm.reference import ACTIVATIONS


def conv_module(
    x: torch.Tensor,
    parameters: ConvModuleParameters,
    *,
    layer_norm_eps: float = 1e-5,
    norm_eps: float = 1e-5,
    activation: str = "swish",
    padding: str = "same",
    chunk_size: int | None = None,
    dtype: torch.dtype | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """The Conformer's convolution module (Gulati et al., Interspeech 2020).

    Layer norm, pointwise convolution, gated linear unit, depthwise
    convolution, layer norm, activation, linear layer: SpeechBrain's
    ``ConvolutionModule`` without its dropout. See
    :func:`~speechbrain_triton.ops.conv_block` for the part between the linear
    layers. Layer norms and sums are computed in float32; the linear layers
    are PyTorch's. Double backward is supported.

    Arguments
    ---------
    x : torch.Tensor
        (B, T, C) in float32, bfloat16 or float16 (float64 on the torch path).
    parameters : ConvModuleParameters
        In x's dtype, or under autocast in any.
    layer_norm_eps : float
        Of the layer norm at the entrance.
    norm_eps : float
        Of the layer norm behind the depthwise convolution.
    activation : str
        ``"none"``, ``"swish"``, ``"gelu"`` (exact), ``"relu"`` or
        ``"leaky_relu"`` (of slope 0.01).
    padding : str
        ``"same"`` or ``"causal"``.
    chunk_size : int, optional
        Frames in a chunk (Dynamic Chunk Convolution); only with
        ``padding="same"``.
    dtype : torch.dtype, optional
        In which the linear layers work; by default autocast's, or x's.
    backend : str
        ``"auto"``, ``"triton"`` or ``"torch"``.

    Returns
    -------
    torch.Tensor
        (B, T, C) in ``dtype``.

    Raises
    ------
    ValueError
        For a shape or option that is not allowed.
    RuntimeError
        If ``backend="triton"`` cannot run.

    Example
    -------
    >>> ones, zeros = torch.ones(64), torch.zeros(64)
    >>> parameters = ConvModuleParameters(
    ...     ones, zeros, torch.rand(128, 64, 1), None, torch.rand(64, 1, 31),
    ...     zeros, ones, zeros, torch.rand(64, 64), zeros,
    ... )
    >>> conv_module(torch.rand(4, 100, 64), parameters, chunk_size=16).shape
    torch.Size([4, 100, 64])
    """
    check_choice("activation", activation, tuple(ACTIVATIONS))
    check_choice("padding", padding, ("same", "causal"))
    _check_parameters(x, parameters)
    check_arguments(
        x.shape,
        x.device,
        parameters.conv_weight,
        parameters.conv_bias,
        padding,
        chunk_size,
    )
    own_dtype = product_dtype(x, parameters._asdict())
    dtype = own_dtype if dtype is None else dtype
    options = {
        "layer_norm_eps": float(layer_norm_eps),
        "norm_eps": float(norm_eps),
        "activation": activation,
        "padding": padding,
        "chunk_size": chunk_size,
        "dtype": dtype,
    }
    obstacle = taps_obstacle(parameters.conv_weight) or channels_obstacle(
        x.shape[2]
    )
    if not use_triton(backend, "conv_module", x.device, dtype, obstacle):
        return conv_module_reference(x, parameters, **options)
    return run_conv_module(x, parameters, options)


def _check_parameters(x, parameters) -> None:
    if x.dim() != 3:
        raise ValueError(
            f"x must be (batch, time, channel), got shape {tuple(x.shape)}."
        )
    C = x.shape[2]
    for name, size in (
        ("layer_norm_weight", C),
        ("layer_norm_bias", C),
        ("bottleneck_bias", 2 * C),
        ("norm_weight", C),
        ("norm_bias", C),
        ("linear_bias", C),
    ):
        vector = getattr(parameters, name)
        if vector is not None:
            check_vector(name, vector, size, x)
    for name, shape in (
        ("bottleneck_weight", (2 * C, C, 1)),
        ("linear_weight", (C, C)),
    ):
        matrix = getattr(parameters, name)
        if matrix.shape != shape:
            raise ValueError(
                f"{name} must be {shape} for x with {C} channels, got shape "
                f"{tuple(matrix.shape)}."
            )
        check_device(name, matrix, x.device)
