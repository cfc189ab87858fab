"""The Conformer's convolution module on this package's depthwise kernels."""

import torch
import torch.nn.functional as F
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig
from torch import nn

from speechbrain_triton.backend import (
    BACKENDS,
    check_choice,
    log_once,
    use_triton,
)
from speechbrain_triton.ops import depthwise_conv1d


class TritonConvolutionModule(ConvolutionModule):
    """SpeechBrain's ``ConvolutionModule`` with a Triton depthwise convolution.

    Parameters, state_dict keys and results are those of SpeechBrain's module
    (Gulati et al., "Conformer", 2020; Dynamic Chunk Convolution: Li et al.,
    2023), so a checkpoint moves freely between the two. The Triton path stays
    in (batch, time, channel) layout throughout; the torch path is
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

        pointwise, _ = self.bottleneck
        out = self.layer_norm(x)
        out = F.linear(out, pointwise.weight.squeeze(-1), pointwise.bias)
        out = depthwise_conv1d(
            F.glu(out, dim=-1),
            self.conv.weight,
            self.conv.bias,
            padding="causal" if self.causal else "same",
            chunk_size=getattr(dynchunktrain_config, "chunk_size", None),
            backend="triton",
        )
        out = self.after_conv(out)
        if mask is not None:
            out.masked_fill_(mask, 0.0)
        return out

    def _takes_triton(self, x, dynchunktrain_config) -> bool:
        # SpeechBrain's forward refuses chunks in a causal module: let it.
        if dynchunktrain_config is not None and self.causal:
            return False
        dtype = x.dtype
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
        taken = use_triton(
            self.backend,
            "ConvolutionModule",
            x.device,
            dtype,
            module_obstacle(self),
        )
        if taken:
            log_once("ConvolutionModule: Triton path.")
        return taken

    def extra_repr(self) -> str:
        return f"backend={self.backend!r}"


def module_obstacle(module: ConvolutionModule) -> str | None:
    """Say what keeps a convolution module from the Triton path, if anything.

    Besides the shapes that the kernel does not mirror, the inner convolutions
    must be plain ``nn.Conv1d`` without hooks: an adapter or a parametrization
    that was put in their place would be passed by.

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
    for name, conv in (
        ("bottleneck.0", module.bottleneck[0]),
        ("conv", module.conv),
    ):
        if type(conv) is not nn.Conv1d:
            return f"a {type(conv).__name__} in place of {name}"
        if conv._forward_hooks or conv._forward_pre_hooks:
            return f"forward hooks on {name}"
        if conv._backward_hooks or conv._backward_pre_hooks:
            return f"backward hooks on {name}"
    return None
