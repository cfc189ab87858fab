"""Launchers: allocate outputs, choose the path by rule, start the kernels."""

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F

from speechbrain_triton.backend import interpreted
from speechbrain_triton.ops.casts import cast
from speechbrain_triton.ops.dropout import (
    keep_scale,
    seed_words,
    threshold,
)
from speechbrain_triton.ops.geglu_linear.kernels import (
    geglu_grad_kernel,
    geglu_kernel,
)
from speechbrain_triton.ops.launcher import Launcher
from speechbrain_triton.ops.reduction import ColumnSums
from speechbrain_triton.ops.sizes import cdiv, next_power_of_2

_geglu = Launcher(geglu_kernel)
_geglu_grad = Launcher(geglu_grad_kernel)

# A program's tile: 8 elements a thread, 16 bytes of each tensor.
ROWS = 2
MAX_BLOCK = 512
NUM_WARPS = 4

# Rows of the fused kernel's tiles, their columns of each half (or half as many,
# where they do not divide F), and the depth of a step.
TILE_M, TILE_F, STEP_K = 128, 128, 64


class GradConfig(NamedTuple):
    """Of backward, whose tile is a row of MAX_BLOCK.

    From a sweep on an H200 at 25600 rows of 2 x 2048; constant, so that the
    order of a sum does not depend on the card.
    """

    programs: int
    """That share out rows and columns."""
    warps: int


GRAD = GradConfig(2112, 2)
# Where forward's result is computed again, too.
GRAD_AGAIN = GradConfig(1056, 4)


class Gating(NamedTuple):
    """What the kernels are told beside tensors, in their order."""

    seed_low: int
    seed_high: int
    threshold: int
    scale: float
    tanh: bool
    dropout: bool

    @classmethod
    def of(cls, approximate: str, dropout: float, seed: int) -> "Gating":
        """From an op's options."""
        return cls(
            *seed_words(seed),
            threshold(dropout),
            keep_scale(dropout),
            approximate == "tanh",
            dropout > 0,
        )


def launch_geglu_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gating: Gating,
    keep: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run the linear layer and gate what it gives.

    In one kernel where :func:`is_fused` says so, else by PyTorch's matmul and
    one pass over memory.

    Arguments
    ---------
    x : torch.Tensor
        (M, K).
    weight : torch.Tensor
        (2 F, K), in x's dtype.
    bias : torch.Tensor or None
        (2 F,), of any floating dtype.
    gating : Gating
        Options.
    keep : bool
        Whether z is wanted.

    Returns
    -------
    h : torch.Tensor
        (M, F) in x's dtype.
    z : torch.Tensor or None
        (M, 2 F), what the linear layer gives.
    """
    x, weight = x.contiguous(), weight.contiguous()
    if is_fused(x, weight):
        from speechbrain_triton.ops.geglu_linear.hopper_launch import (
            launch_fused,
        )

        programs = _hopper_multiprocessors(x.device)
        return launch_fused(x, weight, bias, gating, keep, programs)
    z = F.linear(x, weight, cast(bias, x.dtype))
    return launch_geglu(z, gating), z if keep else None


def is_fused(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether x (M, K) and weight (2 F, K) go to the kernel for Hopper.

    It takes half precision, rows of whole 16 bytes, F a multiple of 64 and
    more than one step of K. On an H200 it is the faster path where its
    tiles keep the multiprocessors busy: with F = 2048 from about 900 rows on.
    """
    if x.element_size() != 2 or interpreted():
        return False
    multiprocessors = _hopper_multiprocessors(x.device)
    if multiprocessors == 0:
        return False
    M, K = x.shape
    F = weight.shape[0] // 2
    fits = F % (TILE_F // 2) == 0 and K % 8 == 0 and K > STEP_K
    if not fits or (x.data_ptr() | weight.data_ptr()) % 16:
        return False
    tiles = cdiv(M, TILE_M) * (F // tile_f(F))
    rounds = cdiv(tiles, multiprocessors)
    return rounds > 3 or tiles > 0.85 * rounds * multiprocessors


def tile_f(F: int) -> int:
    """Columns of each half in a tile, for F that ``is_fused`` lets through."""
    return TILE_F if F % TILE_F == 0 else TILE_F // 2


@functools.cache
def _hopper_multiprocessors(device: torch.device) -> int:
    """How many there are; none on any other device."""
    if device.type != "cuda" or torch.version.hip is not None:
        return 0
    properties = torch.cuda.get_device_properties(device)
    if (properties.major, properties.minor) != (9, 0):
        return 0
    return properties.multi_processor_count


def launch_geglu(z: torch.Tensor, gating: Gating) -> torch.Tensor:
    """Gate z (M, 2 F): (M, F) in its dtype."""
    M, columns = z.shape
    h = z.new_empty(M, columns // 2)
    if h.numel() == 0:
        return h
    block = _block(columns // 2)
    rows = ROWS * MAX_BLOCK // block
    _geglu(
        (cdiv(M, rows), cdiv(columns // 2, block)),
        (z, h),
        (M, *gating[:4]),
        (columns // 2, rows, block, *gating[4:]),
        NUM_WARPS,
    )
    return h


def launch_geglu_grad(
    dh: torch.Tensor,
    z: torch.Tensor,
    gating: Gating,
    bias: bool,
    h: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Gradients of z and of the bias.

    Arguments
    ---------
    dh : torch.Tensor
        (M, F).
    z : torch.Tensor
        (M, 2 F) from forward, not empty.
    gating : Gating
        As in forward.
    bias : bool
        Whether there is one.
    h : torch.Tensor, optional
        (M, F), where forward's result is wanted again; it may be dh.

    Returns
    -------
    dz : torch.Tensor
        (M, 2 F) in z's dtype.
    dbias : torch.Tensor or None
        (2 F,) in float32, summed in a fixed order.
    """
    dz = torch.empty_like(z)
    M, columns = z.shape
    block = _block(columns // 2)
    blocks = cdiv(columns // 2, block)
    grad = GRAD if h is None else GRAD_AGAIN
    width = columns if bias else 0
    programs = max(1, grad.programs // blocks)
    sums = ColumnSums(M, width, z.device, programs)
    _geglu_grad(
        (sums.programs, blocks),
        (dh.contiguous(), z, dz, h, sums.partial),
        (M, sums.rows_per_program, *gating[:4]),
        (columns // 2, MAX_BLOCK // block, block, *gating[4:], width),
        grad.warps,
    )
    return dz, sums.total() if bias else None


def _block(F: int) -> int:
    """Columns of a tile; at least two, for dropout's pairs."""
    return max(2, min(MAX_BLOCK, next_power_of_2(F)))
