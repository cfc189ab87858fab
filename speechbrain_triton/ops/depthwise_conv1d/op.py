"""Depthwise convolution over time: the public function."""

from collections.abc import Sequence
from numbers import Integral

import torch

from speechbrain_triton.backend import check_choice, use_triton
from speechbrain_triton.ops.casts import cast
from speechbrain_triton.ops.depthwise_conv1d.autograd import run_conv
from speechbrain_triton.ops.depthwise_conv1d.geometry import geometry_of
from speechbrain_triton.ops.depthwise_conv1d.reference import (
    depthwise_conv1d_reference,
)
from speechbrain_triton.ops.inputs import (
    PADDINGS,
    as_autocast,
    check_device,
    needs_backward,
)

# All taps of a channel are held in registers: more would spill, and take
# minutes to compile. Conformers have 7 to 65.
MAX_TAPS = 80


def depthwise_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    padding: str = "same",
    chunk_size: int | None = None,
    left_context: torch.Tensor | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """Depthwise convolution over time, optionally chunk by chunk.

    With centre P, output t is the bias plus the sum of
    ``weight[k] * x[t + k - P]`` over the input frames below a horizon: the
    end of the utterance, or with ``chunk_size`` the end of t's chunk (Dynamic
    Chunk Convolution, Li et al., "Dynamic Chunk Convolution for Unified
    Streaming and Non-Streaming Conformer ASR", ICASSP 2023).

    Under autocast x is cast to autocast's dtype, and weight and bias are read
    as they are. Sums are taken in float32 and in a fixed order, so repeated
    calls return the same bits. Double backward is supported.

    Arguments
    ---------
    x : torch.Tensor
        (B, T, C) in float32, bfloat16 or float16 (float64 on the torch path).
        Any strides; unless the frames of an utterance follow each other
        contiguously, the Triton path makes one copy.
    weight : torch.Tensor
        (C, 1, K), as ``torch.nn.Conv1d`` keeps it, in x's dtype (of any
        floating dtype under autocast).
    bias : torch.Tensor, optional
        (C,), in weight's dtype (of any floating dtype under autocast).
    padding : str
        ``"same"`` (P = (K - 1) // 2 zeros on the left, the rest of K - 1 on
        the right), ``"causal"`` (P = K - 1) or ``"valid"`` (no padding:
        T - K + 1 frames).
    chunk_size : int, optional
        Frames in a chunk, at least 1; only with ``padding="same"``.
    left_context : torch.Tensor, optional
        (B, L, C): the frames before x, in place of zeros; the last P count.
        Chunks are counted from the start of x.
    backend : str
        ``"auto"``, ``"triton"`` or ``"torch"``.

    Returns
    -------
    torch.Tensor
        (B, T, C) in x's dtype, or autocast's.

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
    >>> x = torch.rand(4, 100, 64)
    >>> weight, bias = torch.rand(64, 1, 31), torch.zeros(64)
    >>> depthwise_conv1d(x, weight, bias, chunk_size=16).shape
    torch.Size([4, 100, 64])
    """
    x, left_context = as_autocast(
        {"x": x, "left_context": left_context},
        {"weight": weight, "bias": bias},
    )
    if x.dim() != 3:
        raise ValueError(
            f"x must be (batch, time, channel), got shape {tuple(x.shape)}."
        )
    check_arguments(x.shape, x.device, weight, bias, padding, chunk_size)
    if left_context is not None:
        _check_left_context(left_context, x, padding)
    taken = use_triton(
        backend, "depthwise_conv1d", x.device, x.dtype, taps_obstacle(weight)
    )
    if not taken:
        return depthwise_conv1d_reference(
            x,
            cast(weight, x.dtype),
            cast(bias, x.dtype),
            padding=padding,
            chunk_size=chunk_size,
            left_context=left_context,
        )
    geometry = geometry_of(x.shape[1], weight.shape[2], padding, chunk_size)
    if left_context is None or geometry.pad == 0:
        return run_conv(x, weight, bias, geometry)
    left_context = left_context[:, -geometry.pad :]
    if not needs_backward((x, left_context, weight, bias)):
        return run_conv(x, weight, bias, geometry, left_context)
    # The gradients' kernels know of no context: it becomes part of x.
    geometry = geometry.after(left_context.shape[1])
    x = torch.cat((left_context, x), dim=1)
    return run_conv(x, weight, bias, geometry)


def taps_obstacle(weight: torch.Tensor) -> str | None:
    """Say why the kernels do not take a weight (C, 1, K), if they do not."""
    if weight.shape[2] > MAX_TAPS:
        return (
            f"the kernels hold at most {MAX_TAPS} taps, not {weight.shape[2]}"
        )
    if weight.dtype == torch.float64:
        return "weight is float64"
    return None


def check_arguments(
    shape: Sequence[int],
    device: torch.device,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: str,
    chunk_size: int | None,
) -> None:
    """Refuse what does not fit an input (B, T, C), in one sentence.

    Raises
    ------
    ValueError
        For a shape, device or option that is not allowed.
    """
    check_choice("padding", padding, PADDINGS)
    _, T, C = shape
    if weight.dim() != 3 or weight.shape[:2] != (C, 1) or not weight.shape[2]:
        raise ValueError(
            f"weight must be ({C}, 1, K) for x with {C} channels, got shape "
            f"{tuple(weight.shape)}."
        )
    if bias is not None and bias.shape != (C,):
        raise ValueError(
            f"bias must be ({C},) for x with {C} channels, got shape "
            f"{tuple(bias.shape)}."
        )
    check_device("weight", weight, device)
    check_device("bias", bias, device)
    if T == 0:
        raise ValueError("x has T = 0 frames; at least 1 is needed.")
    K = weight.shape[2]
    if padding == "valid" and T < K:
        raise ValueError(
            f"padding='valid' needs at least K = {K} frames, x has T = {T}."
        )
    if chunk_size is None:
        return
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, Integral):
        raise ValueError(
            f"chunk_size={chunk_size!r} is not a whole number of frames."
        )
    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size} is below 1.")
    if padding != "same":
        raise ValueError(f"chunk_size needs padding='same', not {padding!r}.")


def _check_left_context(left_context, x, padding) -> None:
    B, _, C = x.shape
    if padding == "valid":
        raise ValueError("left_context does not go with padding='valid'.")
    if (
        left_context.dim() != 3
        or left_context.shape[0] != B
        or left_context.shape[2] != C
    ):
        raise ValueError(
            f"left_context must be ({B}, L, {C}), got shape "
            f"{tuple(left_context.shape)}."
        )
    check_device("left_context", left_context, x.device)
    if left_context.dtype != x.dtype:
        raise ValueError(
            f"left_context is {left_context.dtype} and x is {x.dtype}: they "
            "must have the same dtype."
        )
