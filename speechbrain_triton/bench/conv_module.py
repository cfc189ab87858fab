"""The Conformer's convolution module: its variants, inputs and limit."""

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig

from speechbrain_triton.bench.limit import copy_pair
from speechbrain_triton.bench.shapes import Case
from speechbrain_triton.bench.timing import Inputs, rotate
from speechbrain_triton.bench.variant import Variant, under_autocast
from speechbrain_triton.bench.work import least_bytes
from speechbrain_triton.modules import TritonConvolutionModule


def variants(case: Case, device: str) -> dict[str, Variant]:
    """Build stock, ours and float64 with the same parameters.

    Arguments
    ---------
    case : Case
        Shape, and autocast's dtype.
    device : str
        Where the parameters are.

    Returns
    -------
    dict of Variant
        ``"stock"``, ``"triton"`` and ``"exact"``.
    """
    stock = ConvolutionModule(case.C, case.K).to(device)
    ours = TritonConvolutionModule(case.C, case.K, backend="triton").to(device)
    ours.load_state_dict(stock.state_dict())
    exact = deepcopy(stock).double()
    config = DynChunkTrainConfig(case.chunk) if case.chunk else None

    def variant(module):
        forward = under_autocast(
            lambda x: module(x, None, config), device, case.torch_dtype
        )
        return Variant(forward, dict(module.named_parameters()))

    return {
        "stock": variant(stock),
        "triton": variant(ours),
        "exact": Variant(
            lambda x, *_: exact(x, None, config),
            dict(exact.named_parameters()),
        ),
    }


def draw(case: Case, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw x in float32 and dy in autocast's dtype, both (B, T, C)."""
    x = torch.randn(case.B, case.T, case.C, device=device)
    return x, torch.randn_like(x).to(case.torch_dtype)


def limit(
    case: Case, backward: bool, device: str
) -> tuple[Callable[..., object], list[Inputs]]:
    """The module's matmuls, and a copy of the bytes between them.

    The matmuls are the two linear layers in autocast's dtype, without bias;
    backward adds the gradients of both layers' inputs and weights, six
    in all. The copy moves :func:`least_bytes`.

    Arguments
    ---------
    case : Case
        Shape, and autocast's dtype.
    backward : bool
        Whether the gradients are computed, too.
    device : str
        Where it runs.

    Returns
    -------
    tuple
        The function, and its sets of inputs.
    """
    count, frames, C = least_bytes(case, backward), case.B * case.T, case.C

    def randn(*shape):
        return torch.randn(shape, device=device).to(case.torch_dtype)

    first, second = randn(2 * C, C), randn(C, C)

    def forward(x, z, source, target):
        h, y = F.linear(x, first), F.linear(z, second)
        target.copy_(source)
        return h, y

    def both(x, z, source, target, dh, dy):
        h, y = forward(x, z, source, target)
        return h, y, dy @ second, dy.T @ z, dh @ first, dh.T @ x

    def draw_set():
        inputs = (randn(frames, C), randn(frames, C), *copy_pair(count, device))
        if not backward:
            return inputs
        return (*inputs, randn(frames, 2 * C), randn(frames, C))

    return both if backward else forward, rotate(draw_set)
