"""The Fast Conformer's convolutional front end, in torch and on Triton."""

import functools
from collections.abc import Callable

import torch
from speechbrain.utils.filter_analysis import FilterProperties
from torch import nn

from speechbrain_triton.backend import BACKENDS, check_choice
from speechbrain_triton.modules.coverage import (
    dtype_on_triton,
    weight_and_bias,
)
from speechbrain_triton.modules.frontend_checks import (
    check_arguments,
    check_call,
    check_lengths,
    frontend_obstacle,
)
from speechbrain_triton.modules.frontend_layers import (
    STRIDE,
    SeparableConv2d,
    StridedConv2d,
)
from speechbrain_triton.modules.frontend_state import (
    ExplainedKey,
    names_obstacle,
    size_obstacle,
)
from speechbrain_triton.ops.frames import zeros_behind
from speechbrain_triton.ops.frontend import (
    FrontEndParameters,
    SeparableConv,
    run_frontend,
)
from speechbrain_triton.ops.frontend.reference import halved
from speechbrain_triton.ops.sizes import Length


class FastConformerFrontEnd(nn.Module):
    """Convolutional subsampling of the Fast Conformer, 4 or 8 times.

    Rekesh et al., "Fast Conformer with Linearly Scalable Attention for
    Efficient Speech Recognition", 2023 (https://arxiv.org/abs/2305.05084): a
    convolution of stride 2 from 1 to C channels, then depthwise convolutions
    of stride 2, each with a pointwise one behind it; an activation after the
    first convolution and after each pointwise one. In a recipe's YAML it
    stands where SpeechBrain's ``ConvolutionFrontEnd`` does, and its output
    goes into ``TransformerASR`` as it is.

    Of L frames it makes ``ceil(L / subsampling)``, and never none, as zeros
    stand before the first and behind the last frame. Those are rarely the
    ``round(relative length * frames)`` of SpeechBrain: hand on the lengths
    that :meth:`out_lengths` gives. The backends share parameters, and so
    checkpoints.

    Arguments
    ---------
    n_mels : int
        Features of an input frame, F.
    subsampling : int
        4 or 8: frames for one output frame, and as many features.
    channels : int
        C.
    kernel_size : int
        Taps of each strided convolution, in time and in frequency; odd.
    activation : callable
        Makes the activation, which all layers share: a class such as
        ``torch.nn.ReLU``, the only one that has kernels.
    causal : bool
        Whether zeros stand only before the first frame: output frame t sees
        no input frame past ``subsampling * t``.
    backend : str
        ``"auto"`` takes Triton where it can and logs the reason where it
        does not, ``"triton"`` raises where it cannot run, ``"torch"`` is
        plain PyTorch.

    Attributes
    ----------
    output_size : int
        Numbers in an output frame, F' * C: the ``input_size`` of
        ``TransformerASR``.

    Raises
    ------
    ValueError
        For an argument out of its range, or if ``backend="triton"`` does not
        cover the front end.

    Example
    -------
    >>> frontend = FastConformerFrontEnd(n_mels=80, channels=32)
    >>> x = torch.rand(2, 100, 80)
    >>> lengths = torch.tensor([1.0, 0.5])
    >>> frontend(x, lengths).shape
    torch.Size([2, 13, 10, 32])
    >>> frontend.output_size
    320
    >>> (frontend.out_lengths(lengths, x.shape[1]) * 13).round()  # not 6.5
    tensor([13.,  7.])
    """

    def __init__(
        self,
        n_mels: int = 80,
        subsampling: int = 8,
        channels: int = 256,
        kernel_size: int = 3,
        activation: Callable[[], nn.Module] = nn.ReLU,
        causal: bool = False,
        backend: str = "auto",
    ) -> None:
        check_arguments(
            n_mels, subsampling, channels, kernel_size, activation, causal
        )
        check_choice("backend", backend, BACKENDS)
        super().__init__()
        self.n_mels = n_mels
        self.subsampling = subsampling
        self.channels = channels
        self.kernel_size = kernel_size
        self.causal = causal
        self.backend = backend
        self.conv = StridedConv2d(1, channels, kernel_size, causal=causal)
        self.blocks = nn.ModuleList(
            SeparableConv2d(channels, kernel_size, causal)
            for _ in range(subsampling.bit_length() - 2)
        )
        self.activation = activation()
        self.output_size = self._out_length(n_mels) * channels
        self.reset_parameters()
        self.register_load_state_dict_post_hook(_explain_keys)
        if backend == "triton" and (obstacle := frontend_obstacle(self)):
            raise ValueError(
                f"backend='triton' does not cover {obstacle}; "
                "use 'auto' or 'torch'."
            )

    def reset_parameters(self) -> None:
        """Draw weights that keep the features' variance in every layer.

        K. He et al., "Delving Deep into Rectifiers", 2015. PyTorch's default
        takes two thirds of it away in each layer, or more, and no norm gives
        it back: training then begins with hundreds of steps in which nearly
        nothing is learned.
        """
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                # Only a depthwise convolution has no activation behind it.
                behind = "relu" if layer.groups == 1 else "linear"
                nn.init.kaiming_normal_(layer.weight, nonlinearity=behind)
                nn.init.zeros_(layer.bias)

    def forward(
        self, x: torch.Tensor, lengths: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Subsample a batch.

        Arguments
        ---------
        x : torch.Tensor
            Features, (B, T, F).
        lengths : torch.Tensor, optional
            (B,), relative to T, as SpeechBrain gives them. With them each
            utterance comes out as it would alone: frames past its end count
            as zeros in every layer, and are zeros in the output. Leave them
            out in a stream: SpeechBrain counts a chunk's length without the
            frames that it puts before the chunk.

        Returns
        -------
        torch.Tensor
            (B, T', F', C), contiguous; under autocast in autocast's dtype.

        Raises
        ------
        ValueError
            If shapes, dtypes or devices do not fit together.
        RuntimeError
            If ``backend`` is ``"triton"`` and the kernels cannot run.
        """
        check_call(x, lengths, self.n_mels)
        frames = None if lengths is None else _frames(lengths, x.shape[1])
        dtype = self._dtype_on_triton(x)
        if dtype is None:
            return self._run_torch(x, frames)
        return run_frontend(
            x,
            _parameters_of(self),
            frames,
            "causal" if self.causal else "same",
            dtype,
        )

    def _run_torch(self, x, frames):
        y = zeros_behind(x.unsqueeze(-1), frames)
        for layer in (self.conv, *self.blocks):
            # Channels stay the last dimension in memory.
            y = self.activation(layer(y.permute(0, 3, 1, 2)))
            frames = halved(frames)
            y = zeros_behind(y.permute(0, 2, 3, 1), frames)
        return y.contiguous()

    def takes_triton(self, x: torch.Tensor) -> bool:
        """Whether a call would take the Triton path.

        Arguments
        ---------
        x : torch.Tensor
            The call's input.

        Returns
        -------
        bool

        Raises
        ------
        RuntimeError
            If ``backend`` is ``"triton"`` and the kernels cannot run.
        """
        return self._dtype_on_triton(x) is not None

    def _dtype_on_triton(self, x: torch.Tensor) -> torch.dtype | None:
        """In which the Triton path would compute; None for the other path."""
        return dtype_on_triton(
            self, "FastConformerFrontEnd", x, frontend_obstacle(self)
        )

    def out_lengths(self, lengths: torch.Tensor, n_frames: int) -> torch.Tensor:
        """Relative lengths of the output.

        Arguments
        ---------
        lengths : torch.Tensor
            (B,), relative to ``n_frames``, as :meth:`forward` takes them.
        n_frames : int
            T, the frames of the padded input.

        Returns
        -------
        torch.Tensor
            (B,), float32 (float64 for float64): relative to the T' frames of
            the output, so that ``round(result * T')`` is exactly the number
            of frames that the convolutions make of each utterance, from 1 to
            T', whatever the other utterances of the batch are.

        Example
        -------
        >>> frontend = FastConformerFrontEnd(channels=8)
        >>> alone = frontend.out_lengths(torch.ones(1), 288) * 36
        >>> beside = frontend.out_lengths(torch.tensor([288 / 363]), 363) * 46
        >>> alone, beside.round()
        (tensor([36.]), tensor([36.]))
        """
        check_lengths(lengths)
        frames = self._out_length(_frames(lengths, n_frames))
        dtype = torch.promote_types(lengths.dtype, torch.float32)
        return frames.to(dtype) / self._out_length(n_frames)

    def _out_length(self, length: Length) -> Length:
        for _ in range(1 + len(self.blocks)):
            length = halved(length)
        return length

    def get_filter_properties(self) -> FilterProperties:
        """The window of input frames that an output frame sees.

        SpeechBrain's ``StreamingFeatureWrapper`` refuses a causal filter, and
        so a causal front end by itself. Behind features such as ``Fbank``,
        which are not causal, ``stack_filter_properties`` takes a causal front
        end for a symmetric one with a window that reaches as far to both
        sides: that streams, and waits for frames that it does not need.

        Returns
        -------
        FilterProperties

        Example
        -------
        >>> FastConformerFrontEnd(channels=8).get_filter_properties()
        FilterProperties(window_size=15, stride=8, dilation=1, causal=False)
        """
        layer = FilterProperties(
            self.kernel_size, stride=STRIDE, causal=self.causal
        )
        # SpeechBrain's stack_filter_properties begins with a filter that is
        # not causal, and makes of causal ones such as are not.
        return functools.reduce(
            FilterProperties.with_on_top, [layer] * (1 + len(self.blocks))
        )

    def _load_from_state_dict(self, state_dict, prefix, *args):
        if message := size_obstacle(self, state_dict, prefix):
            raise RuntimeError(f"{type(self).__name__}: {message}.")
        if message := names_obstacle(self, state_dict, prefix):
            self._remark = prefix, message
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return (
            f"n_mels={self.n_mels}, subsampling={self.subsampling}, "
            f"causal={self.causal}, backend={self.backend!r}"
        )


def _parameters_of(module: FastConformerFrontEnd) -> FrontEndParameters:
    """The parameters of a front end of which nothing is an obstacle."""
    modules = module._modules
    blocks = modules["blocks"]._modules.values()
    return FrontEndParameters(
        *weight_and_bias(modules["conv"]),
        tuple(
            SeparableConv(
                *weight_and_bias(block._modules["depthwise"]),
                *weight_and_bias(block._modules["pointwise"]),
            )
            for block in blocks
        ),
    )


def _explain_keys(module: FastConformerFrontEnd, keys) -> None:
    """Add what is known of the checkpoint to the keys that do not fit."""
    prefix, message = module.__dict__.pop("_remark", (None, None))
    if message is None:
        return
    for names in (keys.missing_keys, keys.unexpected_keys):
        for index, name in enumerate(names):
            if name.startswith(prefix):
                names[index] = ExplainedKey(name, message)
                return


def _frames(lengths: torch.Tensor, n_frames: int) -> torch.Tensor:
    """Whole frames of relative lengths, as SpeechBrain rounds them."""
    # In half precision n_frames itself would be rounded.
    lengths = lengths.to(torch.promote_types(lengths.dtype, torch.float32))
    return (lengths * n_frames).round().clamp(1, n_frames).long()
