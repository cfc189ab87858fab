"""Which of SpeechBrain's convolution modules the kernels cover."""

from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
from speechbrain.nnet.activations import Swish
from torch import nn

from speechbrain_triton.ops.depthwise_conv1d.op import taps_obstacle
from speechbrain_triton.ops.layer_norm.op import channels_obstacle


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
    for name, container, size in (
        ("bottleneck", module.bottleneck, 2),
        ("after_conv", module.after_conv, 4),
    ):
        names = [str(i) for i in range(size)]
        if (
            type(container) is not nn.Sequential
            or list(container._modules) != names
        ):
            return f"a {type(container).__name__} in place of {name}"
    for name, inner, expected in _bypassed(module):
        if type(inner) is not expected:
            return f"a {type(inner).__name__} in place of {name}"
        if has_hooks(inner):
            return f"hooks on {name}"
        if "forward" in inner.__dict__:
            return f"a forward of its own on {name}"
        if expected is nn.LayerNorm and (
            inner.weight is None or inner.bias is None
        ):
            return f"a {name} without weight and bias"
    C = module.layer_norm.normalized_shape[-1]
    conv, pointwise = convolutions_of(module)
    if _shape(conv) != (C, C, C, module.kernel_size, module.padding):
        return "a conv that is not the depthwise one SpeechBrain built"
    if _shape(pointwise) != (C, 2 * C, 1, 1, 0):
        return "a bottleneck.0 that is not pointwise"
    return taps_obstacle(conv.weight) or channels_obstacle(C)


def convolutions_of(
    module: ConvolutionModule,
) -> tuple[nn.Conv1d, nn.Conv1d]:
    """The depthwise and the pointwise convolution of a module."""
    layers = module._modules
    return layers["conv"], layers["bottleneck"]._modules["0"]


def _shape(conv: nn.Conv1d) -> tuple | None:
    """In, out, groups, taps and padding; None for what SpeechBrain has not."""
    if (
        conv.stride != (1,)
        or conv.dilation != (1,)
        or conv.padding_mode != "zeros"
    ):
        return None
    return (
        conv.in_channels,
        conv.out_channels,
        conv.groups,
        *conv.kernel_size,
        *conv.padding,
    )


def _bypassed(module: ConvolutionModule):
    """The inner layers that the Triton path does not call, but replaces."""
    # Looked up in every forward: attributes of a module take ten times as
    # long as its dictionary.
    layers = module._modules
    bottleneck, after_conv = layers["bottleneck"], layers["after_conv"]
    return (
        ("layer_norm", layers["layer_norm"], nn.LayerNorm),
        ("bottleneck", bottleneck, nn.Sequential),
        ("bottleneck.0", bottleneck._modules["0"], nn.Conv1d),
        ("bottleneck.1", bottleneck._modules["1"], nn.GLU),
        ("conv", layers["conv"], nn.Conv1d),
        ("after_conv", after_conv, nn.Sequential),
        ("after_conv.0", after_conv._modules["0"], nn.LayerNorm),
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
    return "relu" if kind is nn.ReLU else None
