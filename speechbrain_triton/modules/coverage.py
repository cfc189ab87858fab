"""Which of SpeechBrain's convolution modules the kernels cover.

Asked in every forward, since layers and hooks may come and go: attributes of a
module take ten times as long as its dictionaries, which are read here instead.
"""

from typing import NamedTuple

import torch
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
from speechbrain.nnet.activations import Swish
from torch import nn

from speechbrain_triton.backend import autocast_dtype, log_once, use_triton
from speechbrain_triton.ops.depthwise_conv1d.op import taps_obstacle
from speechbrain_triton.ops.inputs import check_device
from speechbrain_triton.ops.layer_norm.op import channels_obstacle


class Layers(NamedTuple):
    """The inner layers of a convolution module whose containers are plain.

    The Triton path replaces all but the last three, and does not call them.
    """

    layer_norm: nn.LayerNorm
    bottleneck: nn.Sequential
    pointwise: nn.Conv1d
    glu: nn.GLU
    conv: nn.Conv1d
    after_conv: nn.Sequential
    norm: nn.LayerNorm
    activation: nn.Module
    linear: nn.Module
    dropout: nn.Module


_CONTAINERS = (
    ("bottleneck", ("0", "1")),
    ("after_conv", ("0", "1", "2", "3")),
)
_REPLACED = (
    ("layer_norm", nn.LayerNorm),
    ("bottleneck", nn.Sequential),
    ("bottleneck.0", nn.Conv1d),
    ("bottleneck.1", nn.GLU),
    ("conv", nn.Conv1d),
    ("after_conv", nn.Sequential),
    ("after_conv.0", nn.LayerNorm),
)


def layers_of(module: ConvolutionModule) -> Layers:
    """The inner layers of a module, of which nothing else is an obstacle."""
    own = module._modules
    bottleneck, after_conv = own["bottleneck"], own["after_conv"]
    return Layers(
        own["layer_norm"],
        bottleneck,
        *bottleneck._modules.values(),
        own["conv"],
        after_conv,
        *after_conv._modules.values(),
    )


def module_obstacle(module: ConvolutionModule) -> str | None:
    """Say what keeps a convolution module from the Triton path, if anything.

    Besides the shapes that the kernel does not mirror, the inner layers that it
    replaces must be those that SpeechBrain built, without hooks: an adapter or
    a parametrization that was put in their place would be passed by.

    Arguments
    ---------
    module : ConvolutionModule
        SpeechBrain's module, swapped or not.

    Returns
    -------
    str or None
        The reason, or None where the Triton path covers the module.

    Example
    -------
    >>> module_obstacle(ConvolutionModule(8, kernel_size=3, dilation=2))
    'dilation 2'
    """
    if module.dilation != 1:
        return f"dilation {module.dilation}"
    if module.kernel_size % 2 == 0 and not module.causal:
        return (
            f"the even kernel_size {module.kernel_size}, with which "
            "SpeechBrain drops a frame"
        )
    if module.kernel_size == 1 and module.causal:
        return (
            "a causal module with kernel_size 1, which returns no frames "
            "in SpeechBrain"
        )
    for name, places in _CONTAINERS:
        container = module._modules[name]
        if (
            type(container) is not nn.Sequential
            or tuple(container._modules) != places
        ):
            return f"a {type(container).__name__} in place of {name}"
    layers = layers_of(module)
    for (name, expected), layer in zip(_REPLACED, layers, strict=False):
        if obstacle := layer_obstacle(name, layer, expected):
            return obstacle
        if expected is nn.LayerNorm:
            weight, bias = weight_and_bias(layer)
            if weight is None or bias is None:
                return f"a {name} without weight and bias"
    C = layers.layer_norm.normalized_shape[-1]
    K, padding = module.kernel_size, module.padding
    if not _has_shape(layers.conv, C, C, C, K, padding):
        return "a conv that is not the depthwise one SpeechBrain built"
    if not _has_shape(layers.pointwise, C, 2 * C, 1, 1, 0):
        return "a bottleneck.0 that is not pointwise"
    weight, _ = weight_and_bias(layers.conv)
    return taps_obstacle(weight) or channels_obstacle(C)


def layer_obstacle(
    name: str, layer: nn.Module | None, expected: type[nn.Module]
) -> str | None:
    """Say why a layer that the Triton path does not call must be called.

    Arguments
    ---------
    name : str
        Of the layer, for the reason.
    layer : torch.nn.Module or None
        What stands there.
    expected : type
        The class of what the kernels replace.

    Returns
    -------
    str or None
        The reason, or None where the layer does only what its class does.

    Example
    -------
    >>> layer_obstacle("conv", nn.Identity(), nn.Conv1d)
    'a Identity in place of conv'
    """
    if type(layer) is not expected:
        return f"a {type(layer).__name__} in place of {name}"
    if has_hooks(layer):
        return f"hooks on {name}"
    if "forward" in layer.__dict__:
        return f"a forward of its own on {name}"
    return None


def dtype_on_triton(
    module: nn.Module,
    what: str,
    x: torch.Tensor,
    obstacle: str | None,
    layer: str = "conv",
) -> torch.dtype | None:
    """In which dtype a module's Triton path would compute a call.

    Arguments
    ---------
    module : torch.nn.Module
        With a ``backend``.
    what : str
        The module's name, for messages.
    x : torch.Tensor
        The call's input.
    obstacle : str or None
        What keeps the module from the Triton path.
    layer : str
        The inner layer that tells the dtype of the module's parameters, with
        dots where it is in others.

    Returns
    -------
    torch.dtype or None
        None where the call takes the torch path.

    Raises
    ------
    RuntimeError
        If ``backend`` is ``"triton"`` and the kernels cannot run.
    ValueError
        If they can, and x is on another device than the module.
    """
    dtype = autocast_dtype(x)
    if obstacle is None:
        inner = module
        for name in layer.split("."):
            inner = inner._modules[name]
        weight, _ = weight_and_bias(inner)
        # Outside of autocast PyTorch refuses two dtypes, and says which: let
        # it.
        if dtype is None and weight.dtype is not x.dtype:
            return None
    dtype = dtype or x.dtype
    if not use_triton(module.backend, what, x.device, dtype, obstacle):
        return None
    # Kernels would read another device's memory.
    check_device(f"{what}'s weight", weight, x.device)
    log_once(f"{what}: Triton path.")
    return dtype


def weight_and_bias(
    layer: nn.Module,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The parameters of a layer of PyTorch's."""
    parameters = layer._parameters
    if "weight" in parameters and "bias" in parameters:
        return parameters["weight"], parameters["bias"]
    # A replica of DataParallel has plain tensors in their place.
    return layer.weight, layer.bias


def _has_shape(
    conv: nn.Conv1d, C_in: int, C_out: int, groups: int, K: int, padding: int
) -> bool:
    return (
        conv.in_channels == C_in
        and conv.out_channels == C_out
        and conv.groups == groups
        and conv.kernel_size == (K,)
        and conv.padding == (padding,)
        and conv.stride == (1,)
        and conv.dilation == (1,)
        and conv.padding_mode == "zeros"
    )


def is_square_linear(linear: nn.Module, C: int) -> bool:
    """Whether a layer is the plain linear one that SpeechBrain built.

    An adapter in its place, or one that was quantized, is called as it is.
    """
    return (
        type(linear) is nn.Linear
        and linear.in_features == linear.out_features == C
        and not has_hooks(linear)
        and "forward" not in linear.__dict__
    )


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of the module runs more than its forward."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def fused_activation(activation: nn.Module) -> str | None:
    """Name the activation for the kernel, or None if it must be called.

    Arguments
    ---------
    activation : torch.nn.Module
        The module behind the second layer norm.

    Returns
    -------
    str or None

    Example
    -------
    >>> fused_activation(nn.GELU()), fused_activation(nn.GELU("tanh"))
    ('gelu', None)
    """
    if has_hooks(activation) or "forward" in activation.__dict__:
        return None
    kind = type(activation)
    if kind is nn.SiLU or (kind is Swish and activation.beta == 1):
        return "swish"
    if kind is nn.GELU and activation.approximate == "none":
        return "gelu"
    if kind is nn.LeakyReLU and activation.negative_slope == 0.01:
        return "leaky_relu"
    return "relu" if kind is nn.ReLU else None
