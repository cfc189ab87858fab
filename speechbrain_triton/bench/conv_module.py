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


def least_bytes(case: Case, backward: bool) -> int:
    """What has to be moved between the matmuls, which move their own.

    An element here is one channel of one frame, s the size of autocast's
    dtype. Between the matmuls there is one pass each, and a pass reads what
    it needs and writes what the next matmul reads:

    - layer norm: x in float32 (4), the normalised x (s);
    - gate, depthwise convolution, layer norm, activation: h, which has
      2 C channels (2 s), and the activation (s);
    - backward through these: the activation's gradient (s), h once more
      (2 s), the gradient of h (2 s);
    - backward through the first layer norm: the gradient of the normalised x
      (s), x once more (4), dx in float32 (4).

    That is 4 + 4 s bytes an element forward and 8 + 6 s more backward. The
    convolution's output is in no pass: backward can compute it again from h.
    An implementation that keeps it instead writes and reads it (2 s), and
    one that takes two passes backward writes and reads what stands between
    them (2 s). Parameters, their gradients and statistics of rows are too
    small to count.
    """
    size = case.torch_dtype.itemsize
    forward = 4 + 4 * size
    return case.elements * (forward + (8 + 6 * size) * backward)


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
