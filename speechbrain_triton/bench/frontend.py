"""The Fast Conformer's front end: its variants, inputs and limit."""

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import nn

from speechbrain_triton.bench.limit import copy_pair
from speechbrain_triton.bench.shapes import Case
from speechbrain_triton.bench.timing import Inputs, rotate
from speechbrain_triton.bench.variant import Variant, under_autocast
from speechbrain_triton.bench.work import front_end_sizes, least_bytes
from speechbrain_triton.modules import FastConformerFrontEnd


def variants(case: Case, device: str) -> dict[str, Variant]:
    """Build the implementations with the same parameters.

    Stock is a plain sequence of ``torch.nn.Conv2d`` and ReLU on (B, C, T, F),
    as front ends are written; ``channels_last`` is the same in that memory
    format. Both end in the (B, T', F', C) that an encoder reads.

    Arguments
    ---------
    case : Case
        Shape, and autocast's dtype.
    device : str
        Where the parameters are.

    Returns
    -------
    dict of Variant
        ``"stock"``, ``"channels_last"``, ``"triton"`` and ``"exact"``.
    """
    ours = FastConformerFrontEnd(
        case.F, channels=case.C, kernel_size=case.K, backend="triton"
    ).to(device)
    stock = _plain(ours)
    channels_last = deepcopy(stock).to(memory_format=torch.channels_last)
    exact = deepcopy(stock).double()

    def planes(module, memory_format=torch.contiguous_format):
        def forward(x):
            x = x.unsqueeze(1).to(memory_format=memory_format)
            return module(x).permute(0, 2, 3, 1).contiguous()

        return forward

    names = [name for name, _ in ours.named_parameters()]

    def without_input_grad(forward, module):
        # In training x is features, of which nobody wants the gradient.
        params = dict(zip(names, module.parameters(), strict=True))
        return Variant(forward, params, input_grad=False)

    def variant(forward, module):
        called = under_autocast(forward, device, case.torch_dtype)
        return without_input_grad(called, module)

    last = planes(channels_last, torch.channels_last)
    return {
        "stock": variant(planes(stock), stock),
        "channels_last": variant(last, channels_last),
        "triton": variant(ours, ours),
        "exact": without_input_grad(lambda x, *_: planes(exact)(x), exact),
    }


def _plain(frontend: FastConformerFrontEnd) -> nn.Sequential:
    """Copies of the front end's own layers, one after the other."""
    layers = [frontend.conv, nn.ReLU()]
    for block in frontend.blocks:
        layers += [block.depthwise, block.pointwise, nn.ReLU()]
    return deepcopy(nn.Sequential(*layers))


def draw(case: Case, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw x (B, T, F) in float32 and dy (B, T', F', C) in autocast's dtype."""
    x = torch.randn(case.B, case.T, case.F, device=device)
    *_, frames, bins = front_end_sizes(case)
    dy = torch.randn(case.B, frames, bins, case.C, device=device)
    return x, dy.to(case.torch_dtype)


def limit(
    case: Case, backward: bool, device: str
) -> tuple[Callable[..., object], list[Inputs]]:
    """The pointwise convolutions' matmuls, and a copy of the bytes between.

    Arguments
    ---------
    case : Case
        Shape, and autocast's dtype.
    backward : bool
        Whether the gradients of inputs and weights are computed, too.
    device : str
        Where it runs.

    Returns
    -------
    tuple
        The function, and its sets of inputs.
    """
    frames, bins, last_frames, last_bins = front_end_sizes(case)
    rows = case.B * frames * bins, case.B * last_frames * last_bins
    count = least_bytes(case, backward)

    def randn(*shape):
        return torch.randn(shape, device=device).to(case.torch_dtype)

    weight = randn(case.C, case.C)

    def forward(u, v, source, target):
        target.copy_(source)
        return F.linear(u, weight), F.linear(v, weight)

    def both(u, v, source, target, du, dv):
        y = forward(u, v, source, target)
        return *y, du @ weight, du.T @ u, dv @ weight, dv.T @ v

    def draw_set():
        layers = [randn(n, case.C) for n in rows]
        inputs = (*layers, *copy_pair(count, device))
        if not backward:
            return inputs
        return (*inputs, *(randn(n, case.C) for n in rows))

    return both if backward else forward, rotate(draw_set)
