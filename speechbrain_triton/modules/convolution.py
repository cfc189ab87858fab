"""The Conformer's convolution module on this package's kernels."""

import torch
import torch.nn.functional as F
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig

from speechbrain_triton.backend import (
    BACKENDS,
    autocast_dtype,
    check_choice,
)
from speechbrain_triton.modules.coverage import (
    Layers,
    dtype_on_triton,
    fused_activation,
    has_hooks,
    is_square_linear,
    layers_of,
    module_obstacle,
    weight_and_bias,
)
from speechbrain_triton.modules.streaming import (
    Stream,
    current_stream,
    last_frames,
)
from speechbrain_triton.ops import (
    ConvModuleParameters,
    conv_block,
    layer_norm,
)
from speechbrain_triton.ops.conv_module.autograd import (
    run_conv_module,
    run_conv_module_on_chunk,
)
from speechbrain_triton.ops.depthwise_conv1d.op import check_arguments


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
        stream = current_stream()
        if stream is not None:
            return self._forward_chunk(x, stream)
        dtype = self._dtype_on_triton(x, dynchunktrain_config)
        if dtype is None:
            return super().forward(x, mask, dynchunktrain_config)

        chunk_size = getattr(dynchunktrain_config, "chunk_size", None)
        layers = layers_of(self)
        fused = fused_activation(layers.activation)
        if fused is not None and is_square_linear(layers.linear, x.shape[-1]):
            out = self._whole(x, layers, fused, dtype, chunk_size)
        else:
            out = self._block(x, layers.norm, fused or "none", chunk_size)
            out = layers.linear(out if fused else layers.activation(out))
        out = layers.dropout(out)
        if mask is not None:
            out.masked_fill_(mask, 0.0)
        return out

    def _whole(self, x, layers, activation, dtype, chunk_size):
        parameters = _parameters_of(layers)
        options = self._options(layers, activation, dtype, chunk_size)
        check_arguments(
            x.shape,
            x.device,
            parameters.conv_weight,
            parameters.conv_bias,
            options["padding"],
            chunk_size,
        )
        return run_conv_module(x, parameters, options)

    def _options(self, layers, activation, dtype, chunk_size=None) -> dict:
        return {
            "layer_norm_eps": layers.layer_norm.eps,
            "norm_eps": layers.norm.eps,
            "activation": activation,
            "padding": "causal" if self.causal else "same",
            "chunk_size": chunk_size,
            "dtype": dtype,
        }

    def _block(self, x, norm, activation, chunk_size):
        """All but what is behind the second layer norm."""
        pointwise = self.bottleneck[0]
        n = layer_norm(
            x,
            self.layer_norm.weight,
            self.layer_norm.bias,
            eps=self.layer_norm.eps,
            dtype=autocast_dtype(x),
            backend="triton",
        )
        # The pointwise layer's bias is added where its gradient is summed.
        return conv_block(
            F.linear(n, pointwise.weight.squeeze(-1)),
            self.conv.weight,
            self.conv.bias,
            norm.weight,
            norm.bias,
            pointwise.bias,
            eps=norm.eps,
            activation=activation,
            padding="causal" if self.causal else "same",
            chunk_size=chunk_size,
            backend="triton",
        )

    def _forward_chunk(self, x: torch.Tensor, stream: Stream):
        """The next chunk of a stream, of which ``stream`` holds the state."""
        layers = layers_of(self)
        before = stream.left_context
        if before is not None and before.shape[0] != x.shape[0]:
            raise ValueError(
                f"x has {x.shape[0]} utterances, and the stream that it goes "
                f"on with has {before.shape[0]}."
            )
        out, g = run_conv_module_on_chunk(
            x,
            _parameters_of(layers),
            self._options(
                layers,
                fused_activation(layers.activation),
                autocast_dtype(x) or x.dtype,
            ),
            before if self.padding else None,
        )
        stream.left_context = last_frames(before, g, self.padding)
        return layers.dropout(out)

    def streams(self, x: torch.Tensor) -> bool:
        """Whether a chunk can go on from what the last one left.

        Only without gradients, with the layers that SpeechBrain built and
        without hooks, which would see a chunk without the frames before it;
        otherwise these have to be computed again.

        Arguments
        ---------
        x : torch.Tensor
            The chunk.

        Returns
        -------
        bool

        Raises
        ------
        RuntimeError
            If ``backend`` is ``"triton"`` and the kernels cannot run.
        """
        if (
            torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or self._compiled_call_impl is not None
            or has_hooks(self)
            or not self.takes_triton(x)
        ):
            return False
        layers = layers_of(self)
        return (
            is_square_linear(layers.linear, x.shape[-1])
            and fused_activation(layers.activation) is not None
        )

    def takes_triton(
        self,
        x: torch.Tensor,
        dynchunktrain_config: DynChunkTrainConfig | None = None,
    ) -> bool:
        """Whether a call would take the Triton path.

        Arguments
        ---------
        x : torch.Tensor
            The call's input.
        dynchunktrain_config : DynChunkTrainConfig, optional
            As in the call.

        Returns
        -------
        bool

        Raises
        ------
        RuntimeError
            If ``backend`` is ``"triton"`` and the kernels cannot run.
        """
        return self._dtype_on_triton(x, dynchunktrain_config) is not None

    def _dtype_on_triton(self, x, dynchunktrain_config) -> torch.dtype | None:
        """In which the Triton path would compute; None for the other path."""
        # SpeechBrain's forward refuses chunks in a causal module: let it.
        if dynchunktrain_config is not None and self.causal:
            return None
        return dtype_on_triton(
            self, "ConvolutionModule", x, module_obstacle(self)
        )

    def extra_repr(self) -> str:
        return f"backend={self.backend!r}"


def _parameters_of(layers: Layers) -> ConvModuleParameters:
    return ConvModuleParameters(
        *weight_and_bias(layers.layer_norm),
        *weight_and_bias(layers.pointwise),
        *weight_and_bias(layers.conv),
        *weight_and_bias(layers.norm),
        *weight_and_bias(layers.linear),
    )
