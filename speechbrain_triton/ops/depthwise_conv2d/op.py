"""Depthwise convolution over time and frequency: the public function."""

from collections.abc import Sequence
from numbers import Integral

import torch

from speechbrain_triton.backend import check_choice, use_triton
from speechbrain_triton.ops.depthwise_conv2d.autograd import Options, run_conv
from speechbrain_triton.ops.depthwise_conv2d.reference import (
    depthwise_conv2d_reference,
)
from speechbrain_triton.ops.frames import whole_frames
from speechbrain_triton.ops.inputs import (
    PADDINGS,
    as_autocast,
    check_device,
    check_vector,
)

# The taps of a channel, and backward their sums, are held in registers.
MAX_KERNEL = 5


def depthwise_conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int | tuple[int, int] = 1,
    padding: str = "same",
    relu: str | None = None,
    input_bias: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """Depthwise convolution over time and frequency, channels last.

    With h = x, plus ``input_bias``, through a ReLU if ``relu="before"``, and
    zero in padding and from ``lengths`` on, output (t, f) is the bias plus the
    sum of ``weight[i, k] * h[stride * (t, f) + (i, k) - pad]`` over the taps.
    It is the striding convolution of Fast Conformer's front end (Rekesh et
    al., "Fast Conformer with Linearly Scalable Attention for Efficient Speech
    Recognition", ASRU 2023) together with what stands before and behind it:
    bias and ReLU of the pointwise layer before, and the mask of the batch.

    Under autocast x is cast to autocast's dtype, and parameters are read as
    they are. Sums are taken in float32 and in a fixed order, so repeated
    calls return the same bits. For backward x is kept, and the output if
    ``relu="after"``. Double backward is supported.

    Arguments
    ---------
    x : torch.Tensor
        (B, T, F, C) in float32, bfloat16 or float16 (float64 on the torch
        path). Any strides; if it is not contiguous, the Triton path copies it.
    weight : torch.Tensor
        (C, 1, K_T, K_F), as ``torch.nn.Conv2d`` keeps it, in x's dtype (of
        any floating dtype under autocast); K_T and K_F are 1, 3 or 5.
    bias : torch.Tensor, optional
        (C,), in weight's dtype (of any floating dtype under autocast).
    stride : int or tuple of int
        1 or 2, or one of these for (time, frequency).
    padding : str
        ``"same"`` ((K - 1) // 2 zeros on each side: ceil(T / stride) frames),
        ``"causal"`` (in time K_T - 1 zeros before and none behind, in
        frequency as ``"same"``: ceil(T / stride) frames) or ``"valid"`` (no
        zeros: (T - K_T) // stride + 1 frames). Likewise for F.
    relu : str, optional
        ``"before"``, of x and ``input_bias``, or ``"after"``, of the output.
    input_bias : torch.Tensor, optional
        (C,), added to x, of a dtype as bias: its gradient is summed in the
        pass that computes that of x.
    lengths : torch.Tensor, optional
        (B,) frames, of an integer dtype, on x's device. Frames of x from
        there on count as zero, whatever bias and ReLU. No more is done to the
        output: its frames past an utterance's own are what the sum gives.
    backend : str
        ``"auto"``, ``"triton"`` or ``"torch"``.

    Returns
    -------
    torch.Tensor
        (B, T', F', C) in x's dtype, or autocast's.

    Raises
    ------
    ValueError
        For a shape or option that is not allowed.
    TypeError
        If dtypes differ outside autocast, or lengths are not integers.
    RuntimeError
        If ``backend="triton"`` cannot run.

    Example
    -------
    >>> x = torch.rand(4, 100, 40, 64)
    >>> weight, bias = torch.rand(64, 1, 3, 3), torch.zeros(64)
    >>> lengths = torch.tensor([100, 80, 75, 31])
    >>> depthwise_conv2d(x, weight, bias, stride=2, lengths=lengths).shape
    torch.Size([4, 50, 20, 64])
    """
    parameters = {"weight": weight, "bias": bias, "input_bias": input_bias}
    (x,) = as_autocast({"x": x}, parameters)
    check_choice("padding", padding, PADDINGS)
    if relu is not None:
        check_choice("relu", relu, ("before", "after"))
    stride = _pair(stride)
    _check_shapes(x, weight, padding)
    C = x.shape[3]
    for name in ("bias", "input_bias"):
        if parameters[name] is not None:
            check_vector(name, parameters[name], C, x)
    lengths = whole_frames(lengths, x)
    obstacle = _obstacle(parameters)
    if not use_triton(backend, "depthwise_conv2d", x.device, x.dtype, obstacle):
        return depthwise_conv2d_reference(
            x,
            weight,
            bias,
            stride=stride,
            padding=padding,
            relu=relu,
            input_bias=input_bias,
            lengths=lengths,
        )
    options = Options(*stride, padding, relu)
    return run_conv(x, weight, bias, input_bias, lengths, options)


def _pair(stride: int | Sequence[int]) -> tuple[int, int]:
    """Of (time, frequency), each 1 or 2."""
    pair = (stride, stride) if isinstance(stride, Integral) else stride
    if (
        not isinstance(pair, Sequence)
        or len(pair) != 2
        or not all(_is_stride(n) for n in pair)
    ):
        raise ValueError(
            f"stride={stride!r} is not 1, 2 or a pair of these for (time, "
            "frequency)."
        )
    return int(pair[0]), int(pair[1])


def _is_stride(n: object) -> bool:
    return isinstance(n, Integral) and not isinstance(n, bool) and n in (1, 2)


def _check_shapes(x: torch.Tensor, weight: torch.Tensor, padding: str) -> None:
    if x.dim() != 4 or 0 in x.shape[1:]:
        raise ValueError(
            "x must be (batch, time, frequency, channel) with at least one "
            f"frame, bin and channel, got shape {tuple(x.shape)}."
        )
    C = x.shape[3]
    if (
        weight.dim() != 4
        or weight.shape[:2] != (C, 1)
        or any(K % 2 == 0 or K > MAX_KERNEL for K in weight.shape[2:])
    ):
        raise ValueError(
            f"weight must be ({C}, 1, K_T, K_F) with K_T and K_F of 1, 3 or 5 "
            f"for x with {C} channels, got shape {tuple(weight.shape)}."
        )
    check_device("weight", weight, x.device)
    if padding != "valid":
        return
    for axis, name, what in ((1, "T", "frames"), (2, "F", "bins")):
        size, K = x.shape[axis], weight.shape[axis + 1]
        if size < K:
            raise ValueError(
                f"padding='valid' needs at least K_{name} = {K} {what}, x has "
                f"{name} = {size}."
            )


def _obstacle(parameters: dict[str, torch.Tensor | None]) -> str | None:
    for name, tensor in parameters.items():
        if tensor is not None and tensor.dtype == torch.float64:
            return f"{name} is float64"
    return None
