"""The feed-forward block with GEGLU: its variants, inputs and limit."""

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F

from speechbrain_triton.bench.shapes import FeedForwardCase
from speechbrain_triton.bench.timing import Inputs, rotate
from speechbrain_triton.bench.variant import Variant, doubles, under_autocast
from speechbrain_triton.modules import GEGLUFeedForward
from speechbrain_triton.ops.dropout import draw_seed
from speechbrain_triton.ops.geglu_ffn import geglu_ffn_reference


def variants(case: FeedForwardCase, device: str) -> dict[str, Variant]:
    """Build the block with both backends, and float64, with equal parameters.

    With dropout stock draws another mask than the kernels do. These are then
    compared with ``seeded``, plain PyTorch with the mask of a seed that is
    drawn as they draw theirs, as is that of ``exact``.

    Arguments
    ---------
    case : FeedForwardCase
        Shape, autocast's dtype and dropout.
    device : str
        Where the parameters are.

    Returns
    -------
    dict of Variant
        ``"stock"``, ``"triton"``, ``"exact"`` and ``"seeded"``.
    """
    stock = GEGLUFeedForward(
        case.F, input_size=case.C, dropout=case.dropout, backend="torch"
    ).to(device)
    ours = deepcopy(stock)
    ours.backend = "triton"
    params = dict(stock.named_parameters())
    against = "seeded" if case.dropout else "stock", "exact"

    def variant(forward, module, against):
        return Variant(
            under_autocast(forward, device, case.torch_dtype),
            dict(module.named_parameters()),
            against=against,
        )

    def seeded(x, *params):
        return geglu_ffn_reference(
            x, *params, dropout=case.dropout, seed=draw_seed()
        )

    return {
        "stock": variant(stock, stock, ("stock", "exact")),
        "triton": variant(ours, ours, against),
        "exact": Variant(seeded, doubles(params)),
        "seeded": variant(
            lambda x: seeded(x, *params.values()), stock, against
        ),
    }


def draw(
    case: FeedForwardCase, device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw x in float32 and dy in autocast's dtype, both (B, T, C)."""
    x = torch.randn(case.B, case.T, case.C, device=device)
    return x, torch.randn_like(x).to(case.torch_dtype)


def limit(
    case: FeedForwardCase, backward: bool, device: str
) -> tuple[Callable[..., object], list[Inputs]]:
    """The block's matmuls in autocast's dtype, without bias.

    Two forward, and backward the gradients of both layers' inputs and weights,
    six in all. No copy is beside them: all else, the gate included, can be
    done where a matmul has its result in registers.

    Arguments
    ---------
    case : FeedForwardCase
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
    frames = case.B * case.T

    def randn(*shape):
        return torch.randn(shape, device=device).to(case.torch_dtype)

    first, second = randn(2 * case.F, case.C), randn(case.C, case.F)

    def forward(x, h):
        return F.linear(x, first), F.linear(h, second)

    def both(x, h, dz, dy):
        return *forward(x, h), dy @ second, dy.T @ h, dz @ first, dz.T @ x

    def draw_set():
        inputs = randn(frames, case.C), randn(frames, case.F)
        if not backward:
            return inputs
        return *inputs, randn(frames, 2 * case.F), randn(frames, case.C)

    return both if backward else forward, rotate(draw_set)
