"""The Conformer's convolution module on this package's kernels."""

import torch
import torch.nn.functional as F
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
from speechbrain.nnet.activations import Swish
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig
from torch import nn

from speechbrain_triton.backend import (
    BACKENDS,
    autocast_dtype,
    check_choice,
    log_once,
    use_triton,
)
from speechbrain_triton.ops import conv_block, layer_norm
from speechbrain_triton.ops.depthwise_conv1d.op import taps_obstacle
from speechbrain_triton.ops.layer_norm.op import channels_obstacle


class TritonConvolutionModule(ConvolutionModule):
    """SpeechBrain's ``ConvolutionModule`` on Triton kernels.

    Parameters, state_dict keys and results are those of SpeechBrain's module
    (Gulati et al., "Conformer", 2020; Dynamic Chunk Convolution: Li et al.,
    2023), so a checkpoint moves freely between the two. The Triton path stays
    in (batch, time, channel) layout throughout: layer norm, linear, the fused
    :func:`~speechbrain_triton.ops.conv_block`, linear. The torch path is
    SpeechBrain's own ``forward``.

    Arguments
    ---------
    *args : tuple
        As for SpeechBrain's ``ConvolutionModule``.
    backend : str
        ``"auto"`` takes Triton where it can and logs the reason where it
        does not, ``"triton"`` raises where it cannot run, ``"torch"`` runs
        SpeechBrain's forward.
    **kwargs : dict
        As for SpeechBrain's ``ConvolutionModule``.

    Example
    -------
    >>> module = TritonConvolutionModule(64, kernel_size=15)
    >>> module(torch.rand(8, 60, 64)).shape
    torch.Size([8, 60, 64])
    """

    def __init__(self, *args, backend: str = "auto", **kwargs):
        check_choice("backend", backend, BACKENDS)
        super().__init__(*args, **kwargs)
        self.backend = backend
        if backend == "triton" and (obstacle := module_obstacle(self)):
            raise ValueError(
                f"backend='triton' does not cover {obstacle}; "
                "use 'auto' or 'torch'."
            )

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None = None,
        dynchunktrain_config: DynChunkTrainConfig | None = None,
    ) -> torch.Tensor:
        """Apply the convolution module.

        Arguments
        ---------
        x : torch.Tensor
            Input of shape (B, T, C).
        mask : torch.Tensor, optional
            Boolean (B, T, 1), True on padded frames; the output is set to
            zero there, in place. As in SpeechBrain, the depthwise
            convolution itself still sees padded frames.
        dynchunktrain_config : DynChunkTrainConfig, optional
            Its ``chunk_size`` turns on Dynamic Chunk Convolution: no output
            frame sees input past the end of its chunk.

        Returns
        -------
        torch.Tensor
            Output of shape (B, T, C); under autocast in autocast's dtype.
        """
        if not self._takes_triton(x, dynchunktrain_config):
            return super().forward(x, mask, dynchunktrain_config)

        pointwise = self.bottleneck[0]
        norm, activation, *rest = self.after_conv
        fused = fused_activation(activation)
        out = layer_norm(
            x,
            self.layer_norm.weight,
            self.layer_norm.bias,
            eps=self.layer_norm.eps,
            dtype=autocast_dtype(x),
            backend="triton",
        )
        # The pointwise layer's bias is added where its gradient is summed.
        out = conv_block(
            F.linear(out, pointwise.weight.squeeze(-1)),
            self.conv.weight,
            self.conv.bias,
            norm.weight,
            norm.bias,
            pointwise.bias,
            eps=norm.eps,
            activation=fused or "none",
            padding="causal" if self.causal else "same",
            chunk_size=getattr(dynchunktrain_config, "chunk_size", None),
            backend="triton",
        )
        if fused is None:
            out = activation(out)
        for layer in rest:
            out = layer(out)
        if mask is not None:
            out.masked_fill_(mask, 0.0)
        return out

    def _takes_triton(self, x, dynchunktrain_config) -> bool:
        # SpeechBrain's forward refuses chunks in a causal module: let it.
        if dynchunktrain_config is not None and self.causal:
            return False
        taken = use_triton(
            self.backend,
            "ConvolutionModule",
            x.device,
            autocast_dtype(x) or x.dtype,
            module_obstacle(self),
        )
        if taken:
            log_once("ConvolutionModule: Triton path.")
        return taken

    def extra_repr(self) -> str:
        return f"backend={self.backend!r}"


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
        if type(container) is not nn.Sequential or len(container) != size:
            return f"a {type(container).__name__} in place of {name}"
    for name, inner, expected in _bypassed(module):
        if type(inner) is not expected:
            return f"a {type(inner).__name__} in place of {name}"
        if _has_hooks(inner):
            return f"hooks on {name}"
        if "forward" in inner.__dict__:
            return f"a forward of its own on {name}"
        if expected is nn.LayerNorm and (
            inner._parameters["weight"] is None
            or inner._parameters["bias"] is None
        ):
            return f"a {name} without weight and bias"
    C, conv, pointwise = module.layer_norm.normalized_shape[-1], *_convs(module)
    if _shape(conv) != (C, C, C, module.kernel_size, module.padding):
        return "a conv that is not the depthwise one SpeechBrain built"
    if _shape(pointwise) != (C, 2 * C, 1, 1, 0):
        return "a bottleneck.0 that is not pointwise"
    return taps_obstacle(conv.weight) or channels_obstacle(C)


def _convs(module: ConvolutionModule) -> tuple[nn.Conv1d, nn.Conv1d]:
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


def _has_hooks(module: nn.Module) -> bool:
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
    if _has_hooks(activation):
        return None
    kind = type(activation)
    if kind is nn.SiLU or (kind is Swish and activation.beta == 1):
        return "swish"
    if kind is nn.GELU and activation.approximate == "none":
        return "gelu"
    return "relu" if kind is nn.ReLU else None
