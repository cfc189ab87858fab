"""SpeechBrain's convolutional front end on this package's kernels."""

import torch
import torch.nn.functional as F
from speechbrain.lobes.models.convolution import ConvolutionFrontEnd
from speechbrain.nnet.CNN import Conv2d, get_padding_elem

from speechbrain_triton.backend import BACKENDS, autocast_dtype, check_choice
from speechbrain_triton.modules.convolution_frontend_checks import (
    Block,
    Layer,
    blocks_of,
    convolution_frontend_obstacle,
)
from speechbrain_triton.modules.coverage import (
    dtype_on_triton,
    fused_activation,
    weight_and_bias,
)
from speechbrain_triton.ops import layer_norm, reflection_pad2d
from speechbrain_triton.ops.casts import cast


class TritonConvolutionFrontEnd(ConvolutionFrontEnd):
    """SpeechBrain's ``ConvolutionFrontEnd`` on Triton kernels.

    Parameters, state_dict keys and results are those of SpeechBrain's module,
    so a checkpoint moves freely between the two. Where that one turns each
    layer's input to (batch, channel, feature, time) and back, the Triton path
    stays in (batch, time, feature, channel) layout: a padding that keeps
    channels last, PyTorch's convolution, and layer norm with activation in one
    pass, which writes what the next convolution reads. Dropout is PyTorch's.
    The torch path is SpeechBrain's own ``forward``.

    Arguments
    ---------
    *args : tuple
        As for SpeechBrain's ``ConvolutionFrontEnd``.
    backend : str
        ``"auto"`` takes Triton where it can and logs the reason where it
        does not, ``"triton"`` raises where it cannot run, ``"torch"`` runs
        SpeechBrain's forward.
    **kwargs : dict
        As for SpeechBrain's ``ConvolutionFrontEnd``.

    Example
    -------
    >>> frontend = TritonConvolutionFrontEnd(
    ...     (8, 10, 80), num_blocks=2, out_channels=[64, 32], strides=[2, 2]
    ... )
    >>> frontend(torch.rand(8, 100, 80)).shape
    torch.Size([8, 25, 20, 32])
    """

    # While it is built, it is called to see the shapes that it makes.
    backend = "torch"

    def __init__(self, *args, backend: str = "auto", **kwargs):
        check_choice("backend", backend, BACKENDS)
        super().__init__(*args, **kwargs)
        self.backend = backend
        obstacle = convolution_frontend_obstacle(self)
        if backend == "triton" and obstacle:
            raise ValueError(
                f"backend='triton' does not cover {obstacle}; "
                "use 'auto' or 'torch'."
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the blocks.

        Arguments
        ---------
        x : torch.Tensor
            Features, (B, T, F), or (B, T, F, C) for a front end that was
            built for channels.

        Returns
        -------
        torch.Tensor
            (B, T', F', C'), in the dtype that SpeechBrain's forward gives:
            on a GPU float32 under autocast.

        Raises
        ------
        RuntimeError
            If ``backend`` is ``"triton"`` and the kernels cannot run, or
            there are too few frames to be padded by reflection.
        """
        dtype = self._dtype_on_triton(x)
        if dtype is None:
            return super().forward(x)
        *blocks, last = blocks_of(self)
        for block in blocks:
            x = _run_block(x, block, dtype, dtype)
        return _run_block(x, last, dtype, _norm_dtype(x, dtype))

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
        """In which the Triton path would convolve; None for the other path."""
        if self.backend == "torch":
            return None
        return dtype_on_triton(
            self,
            "ConvolutionFrontEnd",
            x,
            convolution_frontend_obstacle(self),
            layer="convblock_0.convs.conv_0.conv",
        )

    def extra_repr(self) -> str:
        return f"backend={self.backend!r}"


def _norm_dtype(x: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    """Of what PyTorch's layer norm gives behind a convolution in dtype."""
    if x.device.type == "cuda" and autocast_dtype(x) is not None:
        return torch.float32
    return dtype


def _run_block(
    x: torch.Tensor, block: Block, dtype: torch.dtype, out: torch.dtype
) -> torch.Tensor:
    """Apply a block, of which ``out`` is the dtype if that is free."""
    if block.branch is not None:
        # The sum of both is taken, and left, in the dtype of the norms.
        out = _norm_dtype(x, dtype)
    y = x
    for layer in block.layers[:-1]:
        y = _run_layer(y, layer, dtype, dtype)
    y = _run_layer(y, block.layers[-1], dtype, out)
    if block.branch is not None:
        y = block.dropout(y + _run_layer(x, block.branch, dtype, out))
    return y


def _run_layer(
    x: torch.Tensor, layer: Layer, dtype: torch.dtype, out: torch.dtype
) -> torch.Tensor:
    y = _normalise(_convolve(x, layer.conv, dtype), layer, dtype, out)
    return y if layer.dropout is None else layer.dropout(y)


def _normalise(
    x: torch.Tensor, layer: Layer, dtype: torch.dtype, out: torch.dtype
) -> torch.Tensor:
    """Layer norm over (F, C) and the activation, where they are there."""
    activation = layer.activation
    if layer.norm is None:
        return activation(x)
    norm = layer.norm._modules["norm"]
    if x.shape[2:] != norm.normalized_shape:
        return norm(x)  # PyTorch says what does not fit.
    fused = "none" if activation is None else fused_activation(activation)
    weight, bias = weight_and_bias(norm)
    y = layer_norm(
        x.flatten(2),
        weight.flatten(),
        bias.flatten(),
        eps=norm.eps,
        activation=fused or "none",
        dtype=out if fused else _norm_dtype(x, dtype),
        backend="triton",
    ).view(x.shape)
    return y if fused else activation(y)


def _convolve(
    x: torch.Tensor, conv: Conv2d, dtype: torch.dtype
) -> torch.Tensor:
    """SpeechBrain's Conv2d: (B, T, F[, C]) to (B, T', F', C').

    Its kernels, strides and so on are over (F, T); channels that are last want
    them over (T, F).
    """
    if conv.unsqueeze:
        x = x.unsqueeze(-1)
    x = _pad(x, conv, dtype)
    inner = conv._modules["conv"]
    weight, bias = weight_and_bias(inner)
    weight = weight.transpose(2, 3)
    stride, dilation = inner.stride[::-1], inner.dilation[::-1]
    if x.shape[3] == weight.shape[1] == 1:
        x = cast(x.squeeze(3), dtype)
        if dtype.itemsize == 2:
            return _convolve_patches(x, weight, bias, stride, dilation)
        # With the channel in front, as in SpeechBrain, PyTorch has no TF32.
        x = x.unsqueeze(1)
    else:
        x = x.permute(0, 3, 1, 2)
    y = F.conv2d(
        x,
        weight,
        bias,
        stride=stride,
        dilation=dilation,
        groups=inner.groups,
    )
    return y.permute(0, 2, 3, 1)


def _pad(x: torch.Tensor, conv: Conv2d, dtype: torch.dtype) -> torch.Tensor:
    kernel, stride, dilation = conv.kernel_size, conv.stride, conv.dilation
    if conv.padding == "causal":
        # In SpeechBrain it is the features that are padded, with zeros.
        return F.pad(x, (0, 0, (kernel[0] - 1) * dilation[1], 0))
    if conv.padding == "valid":
        return x
    frames, bins = (
        get_padding_elem(
            conv.in_channels, stride[axis], kernel[axis], dilation[axis]
        )[0]
        for axis in (-1, -2)
    )
    if frames >= x.shape[1] or bins >= x.shape[2]:
        pad = frames, frames, bins, bins
        # PyTorch says that it is too short, and how it must be.
        return F.pad(x.transpose(1, -1), pad, mode=conv.padding_mode)
    if frames == bins == 0:
        return x
    return reflection_pad2d(x, (frames, bins), dtype=dtype, backend="triton")


def _convolve_patches(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: tuple[int, int],
    dilation: tuple[int, int],
) -> torch.Tensor:
    """Convolve x (B, T, F) in half precision by one matmul.

    Tensor cores have a single channel's taps to sum over, not its channels.
    """
    patches = x  # [B, T', F', K, K]
    for axis, (size, step, apart) in enumerate(
        zip(weight.shape[2:], stride, dilation, strict=True), 1
    ):
        span = apart * (size - 1) + 1
        patches = patches.unfold(axis, span, step)[..., ::apart]
    patches = patches.flatten(3)
    weight = weight.flatten(1)
    # With ones behind each patch the matmul adds the bias, and its gradient is
    # summed with the weight's; tensor cores want multiples of 8.
    if bias is not None:
        weight = torch.cat((weight, bias[:, None]), 1)
    ones = -(-weight.shape[1] // 8) * 8 - patches.shape[-1]
    zeros = patches.shape[-1] + ones - weight.shape[1]
    patches = F.pad(patches, (0, ones), value=1.0)
    return F.linear(patches, F.pad(weight, (0, zeros)))
