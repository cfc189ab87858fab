"""The depthwise convolution: its variants, inputs and limit."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from speechbrain_triton.bench.limit import copy_pair
from speechbrain_triton.bench.shapes import Case
from speechbrain_triton.bench.timing import Inputs, rotate
from speechbrain_triton.bench.variant import Variant, doubles
from speechbrain_triton.bench.work import least_bytes
from speechbrain_triton.ops import depthwise_conv1d


def variants(case: Case, device: str) -> dict[str, Variant]:
    """Build stock, the kernel and float64 with the same parameters.

    Arguments
    ---------
    case : Case
        Shape and dtype.
    device : str
        Where the parameters are.

    Returns
    -------
    dict of Variant
        ``"stock"``, ``"triton"`` and ``"exact"``.
    """
    dtype, chunk = case.torch_dtype, case.chunk or None
    weight = torch.randn(case.C, 1, case.K, device=device) / case.K**0.5
    weight = weight.to(dtype).requires_grad_()
    bias = torch.randn(case.C, device=device).to(dtype).requires_grad_()

    def stock(x, weight, bias):
        return _stock(x, weight, bias, chunk)

    def triton(x, weight, bias):
        return depthwise_conv1d(
            x, weight, bias, chunk_size=chunk, backend="triton"
        )

    params = {"weight": weight, "bias": bias}
    return {
        "stock": Variant(stock, params, channels_first=True),
        "triton": Variant(triton, params),
        "exact": Variant(stock, doubles(params), channels_first=True),
    }


def draw(case: Case, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw x and dy, (B, T, C) in the case's dtype."""
    x = torch.randn(case.B, case.T, case.C, device=device)
    return x.to(case.torch_dtype), torch.randn_like(x).to(case.torch_dtype)


def limit(
    case: Case, backward: bool, device: str
) -> tuple[Callable[..., object], list[Inputs]]:
    """A copy that moves as many bytes as the op must.

    Arguments
    ---------
    case : Case
        Shape and dtype.
    backward : bool
        Whether the gradients are computed, too.
    device : str
        Where the copy runs.

    Returns
    -------
    tuple
        The copy, and its sets of inputs.
    """
    count = least_bytes(case, backward)
    return _copy, rotate(lambda: copy_pair(count, device))


def _copy(source, target):
    target.copy_(source)


def _stock(x, weight, bias, chunk):
    """SpeechBrain's depthwise step on (B, C, T), chunks unfolded."""
    left = (weight.shape[2] - 1) // 2
    C, T = x.shape[1:]
    if chunk is None:
        return F.conv1d(x, weight, bias, padding=left, groups=C)
    x = F.pad(x, (left, -T % chunk))
    x = F.pad(x.unfold(2, left + chunk, chunk), (0, left)).transpose(1, 2)
    B, n_chunks = x.shape[:2]
    y = F.conv1d(x.flatten(0, 1), weight, bias, groups=C)
    y = y.unflatten(0, (B, n_chunks)).transpose(1, 2)
    return y.flatten(2, 3)[..., :T]
