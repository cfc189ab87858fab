"""Launchers of a slice's kernels: configs by rule."""

import torch

from speechbrain_triton.ops.launcher import Launcher
from speechbrain_triton.ops.sizes import cdiv, next_power_of_2
from speechbrain_triton.ops.transducer_joint_loss.kernels import (
    joint_grad_kernel,
    joint_kernel,
    packed_log_probs_kernel,
    packed_logits_grad_kernel,
    predictor_grad_kernel,
)
from speechbrain_triton.ops.transducer_joint_loss.slices import (
    TILE_FRAMES,
    Slice,
)
from speechbrain_triton.ops.transducer_loss.launch import (
    layout_of,
    row_split,
    row_tile,
)

_joint = Launcher(joint_kernel)
_joint_grad = Launcher(joint_grad_kernel)
_predictor_grad = Launcher(predictor_grad_kernel)
_log_probs = Launcher(packed_log_probs_kernel)
_logits_grad = Launcher(packed_logits_grad_kernel)

# A warp takes frames times channels of the joint, and so many cells of each.
JOINT_FRAMES = 8
JOINT_CELLS = 16
MAX_JOINT_BLOCK = 128
MAX_GRAD_BLOCK = 32

# The sums over tiles of frames, at a time.
BLOCK_TILES = 8
SUMS_BLOCK = 128

# Room for the bias's sums, in numbers: a program has V of them.
BIAS_SUMS = 2**22


def launch_joint(
    encoder: torch.Tensor,
    predictor: torch.Tensor,
    part: Slice,
    nonlinearity: str,
    joint: torch.Tensor,
) -> None:
    """Write the joint network's hidden activations of a slice.

    Arguments
    ---------
    encoder, predictor : torch.Tensor
        (B, T, J) and (B, U1, J), contiguous.
    part : Slice
        Of their rows.
    nonlinearity : str
        One of ``NONLINEARITIES``.
    joint : torch.Tensor
        (rows, J), contiguous.
    """
    _, T, J = encoder.shape
    block = min(MAX_JOINT_BLOCK, max(16, next_power_of_2(J)))
    cell_tiles = cdiv(part.most_cells, JOINT_CELLS)
    tiles = cdiv(part.most_frames, JOINT_FRAMES) * cell_tiles
    _joint(
        (tiles * cdiv(J, block), len(part.table)),
        (encoder, predictor, joint, part.table),
        (T, predictor.shape[1], cell_tiles),
        (J, JOINT_FRAMES, JOINT_CELLS, block, nonlinearity),
        1,
    )


def launch_joint_grad(
    djoint: torch.Tensor,
    encoder: torch.Tensor,
    predictor: torch.Tensor,
    part: Slice,
    nonlinearity: str,
    dencoder: torch.Tensor,
    dpredictor: torch.Tensor,
) -> None:
    """Write a slice's gradient of the encoder, and add the predictor's.

    Arguments
    ---------
    djoint : torch.Tensor
        Gradient (rows, J) of what ``launch_joint`` wrote, contiguous.
    encoder, predictor, part, nonlinearity : as for ``launch_joint``
    dencoder, dpredictor : torch.Tensor
        Of the inputs' shapes, float32, contiguous. The slices of an utterance
        are to come in their order.
    """
    _, T, J = encoder.shape
    U1 = predictor.shape[1]
    sums = dencoder.new_empty((part.sums, J))
    block = min(MAX_GRAD_BLOCK, max(16, next_power_of_2(J)))
    tiles = cdiv(part.most_frames, TILE_FRAMES)
    _joint_grad(
        (tiles * cdiv(J, block), len(part.table)),
        (djoint, encoder, predictor, dencoder, sums, part.table),
        (T, U1),
        (J, TILE_FRAMES, block, nonlinearity),
        1,
    )
    block = min(SUMS_BLOCK, max(16, next_power_of_2(J)))
    _predictor_grad(
        (part.most_cells * cdiv(J, block), len(part.table)),
        (sums, dpredictor, part.table),
        (U1,),
        (J, TILE_FRAMES, BLOCK_TILES, block),
        1,
    )


def launch_log_probs(
    logits: torch.Tensor,
    targets: torch.Tensor,
    part: Slice,
    blank: int,
    shape: tuple[int, int],
    lattice: torch.Tensor,
) -> None:
    """Fill a slice's cells in the first three planes of a lattice.

    Arguments
    ---------
    logits : torch.Tensor
        (rows, V), contiguous.
    targets : torch.Tensor
        (B, U1 - 1), contiguous, of any integer dtype.
    part : Slice
        Of those rows.
    blank : int
        From 0 to V - 1.
    shape : tuple of int
        T and U1.
    lattice : torch.Tensor
        (4, utterances of the group, size).
    """
    V = logits.shape[1]
    programs, rows_per_program, rows, block, warps = row_split(
        len(part.table), part.most_rows, V
    )
    _log_probs(
        (programs, len(part.table)),
        (logits, targets, part.table, *lattice.unbind()[:3]),
        (shape[1], *layout_of(*shape), rows_per_program),
        (V, blank, rows, block),
        warps,
    )


def launch_logits_grad(
    logits: torch.Tensor,
    targets: torch.Tensor,
    part: Slice,
    blank: int,
    shape: tuple[int, int],
    lattice: torch.Tensor,
    cost: torch.Tensor,
    weights: torch.Tensor,
    clamp: float,
    fastemit_lambda: float,
    bias_sums: torch.Tensor | None,
) -> None:
    """Put the gradient of a slice's logits in their place.

    Arguments
    ---------
    logits, targets, part, blank, shape, lattice : as for ``launch_log_probs``
    cost : torch.Tensor
        Costs of the group's utterances, float32.
    weights : torch.Tensor
        What all utterances' gradients are multiplied by (B,), float32.
    clamp : float
        Largest absolute value of a gradient before that, if positive.
    fastemit_lambda : float
        What labels weigh more than blanks.
    bias_sums : torch.Tensor or None
        (at least ``bias_programs`` of the slice, V), float32, to which sums
        over rows are added.
    """
    V = logits.shape[1]
    rows, block, warps = row_tile(V)
    share = _rows_per_program(part, V)
    _logits_grad(
        (cdiv(part.most_rows, share), len(part.table)),
        (
            logits,
            targets,
            part.table,
            *lattice.unbind()[:3],
            cost,
            weights,
            bias_sums,
        ),
        (
            shape[1],
            *layout_of(*shape),
            share,
            1.0 + fastemit_lambda,
            clamp,
        ),
        (V, blank, rows, block, clamp > 0, bias_sums is not None),
        warps,
    )


def bias_programs(part: Slice, V: int) -> int:
    """Programs among which ``launch_logits_grad`` shares out a slice."""
    share = _rows_per_program(part, V)
    return len(part.table) * cdiv(part.most_rows, share)


def _rows_per_program(part: Slice, V: int) -> int:
    rows = row_tile(V)[0]
    programs = max(1, BIAS_SUMS // V)
    return rows * max(1, cdiv(cdiv(part.rows, rows), programs))
