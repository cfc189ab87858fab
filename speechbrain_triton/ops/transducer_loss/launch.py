"""Launchers: allocate outputs, choose configs by rule, start the kernels."""

import functools
from typing import NamedTuple

import torch

from speechbrain_triton.ops.launcher import PLANS, Launcher
from speechbrain_triton.ops.sizes import cdiv, next_power_of_2
from speechbrain_triton.ops.transducer_loss.kernels import (
    log_probs_kernel,
    logits_grad_kernel,
)
from speechbrain_triton.ops.transducer_loss.lattice import paths_kernel

_log_probs = Launcher(log_probs_kernel)
_paths = Launcher(paths_kernel)
_logits_grad = Launcher(logits_grad_kernel)

# Planes of a lattice's memory: a row's normaliser; the log-probabilities of
# its blank and label, then how probable it is that a path takes them; odds.
PLANES = 4

# Logits that a warp takes at a time, 32 a thread, and rows at most: of each
# row a thread keeps what is the row's own.
TILE = 1024
MAX_BLOCK = 4096
MAX_ROWS = 8

# A program takes up to so many tiles, as long as this many programs remain.
MAX_TILES = 8
MIN_PROGRAMS = 8448

# Cells of a diagonal that a program holds.
MIN_LANES = 32
MAX_LANES = 1024


class Layout(NamedTuple):
    """Where a lattice keeps its cells.

    ``size`` floats an utterance, a multiple of 16 bytes so that kernels have
    one variant; ``step_u`` of them from label to label and U1 from frame to
    frame.
    """

    size: int
    step_u: int


def layout_of(T: int, U1: int) -> Layout:
    """Cells of a diagonal side by side where that at most doubles the size.

    Example
    -------
    >>> layout_of(100, 11), layout_of(10, 100)
    (Layout(size=1212, step_u=12), Layout(size=1000, step_u=1))
    """
    diagonals = T + U1 - 1 if U1 <= T else T
    size = 4 * cdiv(diagonals * U1, 4)
    return Layout(size, U1 + 1 if U1 <= T else 1)


def new_lattice(logits: torch.Tensor) -> torch.Tensor:
    """Memory for what forward keeps of the logits (B, T, U1, V).

    Returns
    -------
    torch.Tensor
        (4, B, size), float32.
    """
    B, T, U1, _ = logits.shape
    size = layout_of(T, U1).size
    return torch.empty(
        (PLANES, B, size), dtype=torch.float32, device=logits.device
    )


def launch_log_probs(
    logits: torch.Tensor,
    targets: torch.Tensor,
    frames: torch.Tensor,
    labels: torch.Tensor,
    blank: int,
    lattice: torch.Tensor,
) -> None:
    """Fill the first three planes of a lattice.

    Arguments
    ---------
    logits : torch.Tensor
        (B, T, U1, V), contiguous, without empty dimensions.
    targets : torch.Tensor
        (B, U1 - 1), contiguous, of any integer dtype.
    frames, labels : torch.Tensor
        Lengths (B,), contiguous, of any integer dtype.
    blank : int
        From 0 to V - 1.
    lattice : torch.Tensor
        From ``new_lattice``.
    """
    B, T, U1, V = logits.shape
    programs, rows_per_program, rows, block, warps = row_split(B, T * U1, V)
    _log_probs(
        (programs, B),
        (logits, targets, frames, labels, *lattice.unbind()[:3]),
        (T, U1, *layout_of(T, U1), rows_per_program),
        (V, blank, rows, block),
        warps,
    )


def launch_paths(
    frames: torch.Tensor,
    labels: torch.Tensor,
    T: int,
    U1: int,
    lattice: torch.Tensor,
    back: bool,
) -> torch.Tensor:
    """Sum over all paths and, where ``back``, see how probable each arc is.

    Arguments
    ---------
    frames, labels : torch.Tensor
        Lengths (B,), contiguous, of any integer dtype.
    T, U1 : int
        Frames and cells of each.
    lattice : torch.Tensor
        With log-probabilities in its second and third plane; ``back`` puts
        the probabilities of the arcs in their place.
    back : bool
        Whether there will be a backward pass.

    Returns
    -------
    torch.Tensor
        Costs (B,), float32.
    """
    B = len(frames)
    cost = lattice.new_empty(B)
    lanes = lanes_of(U1)
    many = U1 > lanes
    _paths(
        (B, 1),
        (
            *lattice.unbind()[1:],
            lattice.new_empty((B, 2, T)) if many else None,
            frames,
            labels,
            cost,
        ),
        (T, U1, *layout_of(T, U1)),
        (lanes, diagonals_ahead(lanes), many, back),
        path_warps(lanes),
    )
    return cost


def launch_logits_grad(
    logits: torch.Tensor,
    targets: torch.Tensor,
    frames: torch.Tensor,
    labels: torch.Tensor,
    blank: int,
    lattice: torch.Tensor,
    cost: torch.Tensor,
    dcost: torch.Tensor,
    clamp: float,
    fastemit_lambda: float,
    grad: torch.Tensor,
) -> None:
    """Write the gradient of the logits.

    Arguments
    ---------
    logits, targets, frames, labels, blank : as for ``launch_log_probs``
    lattice : torch.Tensor
        That ``launch_paths`` went back through.
    cost : torch.Tensor
        From ``launch_paths``.
    dcost : torch.Tensor
        Its gradient (B,), of any stride.
    clamp : float
        Largest absolute value of the gradient, before it is multiplied with
        dcost; none if it is not positive.
    fastemit_lambda : float
        What labels weigh more than blanks.
    grad : torch.Tensor
        Of the logits' shape and dtype, contiguous; may be the logits.
    """
    B, T, U1, V = logits.shape
    programs, rows_per_program, rows, block, warps = row_split(B, T * U1, V)
    _logits_grad(
        (programs, B),
        (
            logits,
            targets,
            frames,
            labels,
            *lattice.unbind()[:3],
            cost,
            dcost,
            grad,
        ),
        (
            T,
            U1,
            *layout_of(T, U1),
            rows_per_program,
            dcost.stride(0),
            1.0 + fastemit_lambda,
            clamp,
        ),
        (V, blank, rows, block, clamp > 0),
        warps,
    )


@functools.lru_cache(PLANS)
def row_split(B: int, n_rows: int, V: int) -> tuple[int, int, int, int, int]:
    """Programs an utterance, rows of each, and the tile of ``row_tile``."""
    rows, block, warps = row_tile(V)
    tiles = cdiv(n_rows, rows)
    share = max(1, min(MAX_TILES, B * tiles // MIN_PROGRAMS))
    return cdiv(tiles, share), share * rows, rows, block, warps


def row_tile(V: int) -> tuple[int, int, int]:
    """Rows and logits of a tile, and its warps."""
    block = min(MAX_BLOCK, max(16, next_power_of_2(V)))
    rows = min(MAX_ROWS, max(1, TILE // block))
    return rows, block, max(1, block // TILE)


def lanes_of(U1: int) -> int:
    """Cells of a diagonal that a program holds."""
    return min(MAX_LANES, max(MIN_LANES, next_power_of_2(U1)))


def path_warps(lanes: int) -> int:
    """One where a thread holds up to 4 cells, since shifts stay in a warp."""
    return 1 if lanes <= 128 else lanes // 64


def diagonals_ahead(lanes: int) -> int:
    """That a program asks for before their use: 16 warps have room for 4."""
    return 8 if lanes <= 256 else 4
