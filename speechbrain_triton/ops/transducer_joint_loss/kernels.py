"""The passes over a slice of packed rows; see ``slices.py``.

Row (t, u) of a segment is t * cells + u behind the segment's first. Programs
of the second axis are segments.
"""

import triton
import triton.language as tl

from speechbrain_triton.ops.jit import jit_for_any
from speechbrain_triton.ops.transducer_joint_loss.activation import (
    activate,
    slope,
)
from speechbrain_triton.ops.transducer_loss.kernels import (
    cost_gradient,
    load_target,
    row_log_probs,
)
from speechbrain_triton.ops.transducer_loss.lattice import arc_probabilities

_jit = jit_for_any(
    (
        "T",
        "U1",
        "size",
        "step_u",
        "cell_tiles",
        "rows_per_program",
        "label_weight",
        "clamp",
    )
)


@triton.jit
def load_segment(segments_ptr, segment):
    """A line of the table.

    Returns
    -------
    tuple
        The utterance, int64; its place in the lattice; the segment's first
        frame and number of frames; the cells of each; all frames of the
        utterance; the segment's first row and first sum.
    """
    segments_ptr += segment * 8
    return (
        tl.load(segments_ptr).to(tl.int64),
        tl.load(segments_ptr + 1),
        tl.load(segments_ptr + 2),
        tl.load(segments_ptr + 3),
        tl.load(segments_ptr + 4),
        tl.load(segments_ptr + 5),
        tl.load(segments_ptr + 6),
        tl.load(segments_ptr + 7),
    )


@_jit
def joint_kernel(
    encoder_ptr,
    predictor_ptr,
    joint_ptr,
    segments_ptr,
    T,
    U1,
    cell_tiles,
    J: tl.constexpr,
    FRAMES: tl.constexpr,
    CELLS: tl.constexpr,
    BLOCK_J: tl.constexpr,
    NONLINEARITY: tl.constexpr,
):
    """joint = nonlinearity(encoder + predictor), a slice's rows (rows, J)."""
    b, _, first_frame, n_frames, n_cells, _, first_row, _ = load_segment(
        segments_ptr, tl.program_id(1)
    )
    J_BLOCKS: tl.constexpr = (J + BLOCK_J - 1) // BLOCK_J
    tile = tl.program_id(0) // J_BLOCKS
    j = (tl.program_id(0) % J_BLOCKS) * BLOCK_J + tl.arange(0, BLOCK_J)
    first_t = (tile // cell_tiles) * FRAMES
    t = first_t + tl.arange(0, FRAMES)[:, None]  # [FRAMES, 1]
    mask = (t < n_frames) & (j < J)[None, :]
    offs_t = (b * T + first_frame + t) * J
    x = tl.load(encoder_ptr + offs_t + j, mask=mask, other=0.0).to(tl.float32)

    first_u = (tile % cell_tiles) * CELLS
    last_u = tl.minimum(first_u + CELLS, n_cells)
    last_u = tl.where(first_t < n_frames, last_u, 0)
    for u in range(first_u, last_u):
        g = tl.load(predictor_ptr + (b * U1 + u) * J + j, mask=j < J, other=0.0)
        joint = activate(x + g.to(tl.float32)[None, :], NONLINEARITY)
        row = (first_row + t * n_cells + u).to(tl.int64)
        tl.store(
            joint_ptr + row * J + j,
            joint.to(joint_ptr.dtype.element_ty),
            mask=mask,
        )


@_jit
def joint_grad_kernel(
    djoint_ptr,
    encoder_ptr,
    predictor_ptr,
    dencoder_ptr,
    sums_ptr,
    segments_ptr,
    T,
    U1,
    J: tl.constexpr,
    FRAMES: tl.constexpr,
    BLOCK_J: tl.constexpr,
    NONLINEARITY: tl.constexpr,
):
    """Gradient of the encoder; of the predictor a sum for each tile of frames.

    The slope is computed from the inputs again: the joint's memory holds its
    gradient by now.
    """
    b, _, first_frame, n_frames, n_cells, _, first_row, first_sum = (
        load_segment(segments_ptr, tl.program_id(1))
    )
    J_BLOCKS: tl.constexpr = (J + BLOCK_J - 1) // BLOCK_J
    tile = tl.program_id(0) // J_BLOCKS
    j = (tl.program_id(0) % J_BLOCKS) * BLOCK_J + tl.arange(0, BLOCK_J)
    mask_j = j < J
    first_t = tile * FRAMES
    t = first_t + tl.arange(0, FRAMES)[:, None]  # [FRAMES, 1]
    mask = (t < n_frames) & mask_j[None, :]
    offs_t = (b * T + first_frame + t) * J
    x = tl.load(encoder_ptr + offs_t + j, mask=mask, other=0.0).to(tl.float32)
    total = tl.zeros([FRAMES, BLOCK_J], dtype=tl.float32)

    row = (first_row + t * n_cells).to(tl.int64)
    djoint_ptr += row * J + j
    predictor_ptr += b * U1 * J + j
    sums_ptr += (first_sum + tile * n_cells).to(tl.int64) * J + j
    n_cells = tl.where(first_t < n_frames, n_cells, 0)
    d = tl.load(djoint_ptr, mask=mask & (n_cells > 0), other=0.0)
    for u in range(0, n_cells):
        djoint_ptr += J
        following = tl.load(
            djoint_ptr, mask=mask & (u + 1 < n_cells), other=0.0
        )
        g = tl.load(predictor_ptr, mask=mask_j, other=0.0).to(tl.float32)
        d = d.to(tl.float32) * slope(x + g[None, :], NONLINEARITY)
        total += d
        tl.store(sums_ptr, tl.sum(d, axis=0), mask=mask_j)
        predictor_ptr += J
        sums_ptr += J
        d = following
    tl.store(dencoder_ptr + offs_t + j, total, mask=mask)


@_jit
def predictor_grad_kernel(
    sums_ptr,
    dpredictor_ptr,
    segments_ptr,
    U1,
    J: tl.constexpr,
    FRAMES: tl.constexpr,
    BLOCK_TILES: tl.constexpr,
    BLOCK_J: tl.constexpr,
):
    """Add up the tiles' sums, behind those of the utterance's slices before."""
    b, _, first_frame, n_frames, n_cells, _, _, first_sum = load_segment(
        segments_ptr, tl.program_id(1)
    )
    J_BLOCKS: tl.constexpr = (J + BLOCK_J - 1) // BLOCK_J
    u = tl.program_id(0) // J_BLOCKS
    j = (tl.program_id(0) % J_BLOCKS) * BLOCK_J + tl.arange(0, BLOCK_J)
    mask_j = (j < J) & (u < n_cells)
    n_tiles = (n_frames + FRAMES - 1) // FRAMES
    total = tl.zeros([BLOCK_TILES, BLOCK_J], dtype=tl.float32)
    for start in range(0, n_tiles, BLOCK_TILES):
        tile = start + tl.arange(0, BLOCK_TILES)[:, None]  # [BLOCK_TILES, 1]
        row = (first_sum + tile * n_cells + u).to(tl.int64)
        mask = (tile < n_tiles) & mask_j[None, :]
        total += tl.load(sums_ptr + row * J + j, mask=mask, other=0.0)
    dpredictor_ptr += (b * U1 + u) * J + j
    before = tl.load(dpredictor_ptr, mask=mask_j & (first_frame > 0), other=0.0)
    tl.store(dpredictor_ptr, before + tl.sum(total, axis=0), mask=mask_j)


@_jit
def packed_log_probs_kernel(
    logits_ptr,
    targets_ptr,
    segments_ptr,
    normaliser_ptr,
    blank_ptr,
    label_ptr,
    U1,
    size,
    step_u,
    rows_per_program,
    V: tl.constexpr,
    BLANK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """As log_probs_kernel, into the lattice of the group."""
    b, place, first_frame, n_frames, n_cells, _, first_row, _ = load_segment(
        segments_ptr, tl.program_id(1)
    )
    logits_ptr += first_row.to(tl.int64) * V
    targets_ptr += b * (U1 - 1)
    first_cell = place.to(tl.int64) * size
    first = tl.program_id(0) * rows_per_program
    last = tl.minimum(first + rows_per_program, n_frames * n_cells)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)  # [ROWS]
        mask = row < last
        t = row // n_cells
        u = row - t * n_cells
        target = load_target(targets_ptr, u, mask & (u + 1 < n_cells), V)
        normaliser, blank, label = row_log_probs(
            logits_ptr + row.to(tl.int64) * V, mask, target,
            V, BLANK, ROWS, BLOCK_V,
        )  # fmt: skip
        cell = first_cell + (first_frame + t) * U1 + u * step_u
        tl.store(normaliser_ptr + cell, normaliser, mask=mask)
        tl.store(blank_ptr + cell, blank, mask=mask)
        tl.store(label_ptr + cell, label, mask=mask)


@_jit
def packed_logits_grad_kernel(
    logits_ptr,
    targets_ptr,
    segments_ptr,
    normaliser_ptr,
    blank_ptr,
    label_ptr,
    cost_ptr,
    factor_ptr,
    sums_ptr,
    U1,
    size,
    step_u,
    rows_per_program,
    label_weight,
    clamp,
    V: tl.constexpr,
    BLANK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_V: tl.constexpr,
    CLAMP: tl.constexpr,
    SUMS: tl.constexpr,
):
    """The logits' gradient in their place, times the utterance's factor.

    SUMS: each program adds the sum over its rows to its line of sums.
    """
    b, place, first_frame, n_frames, n_cells, all_frames, first_row, _ = (
        load_segment(segments_ptr, tl.program_id(1))
    )
    factor = tl.load(factor_ptr + b)
    logits_ptr += first_row.to(tl.int64) * V
    targets_ptr += b * (U1 - 1)
    first_cell = place.to(tl.int64) * size
    first = tl.program_id(0) * rows_per_program
    last = tl.minimum(first + rows_per_program, n_frames * n_cells)
    # An utterance without a path has nothing to learn from.
    end = tl.where(tl.load(cost_ptr + place) == float("inf"), 0, last)
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    sums_at = program.to(tl.int64) * V

    for v in range(0, V, BLOCK_V):
        column = v + tl.arange(0, BLOCK_V)[None, :]  # [1, BLOCK_V]
        total = tl.zeros([ROWS, BLOCK_V], dtype=tl.float32)
        for start in range(first, last, ROWS):
            row = start + tl.arange(0, ROWS)  # [ROWS]
            mask = row < last
            t = row // n_cells
            u = row - t * n_cells
            t += first_frame
            cell = first_cell + t * U1 + u * step_u
            normaliser = tl.load(normaliser_ptr + cell, mask=mask, other=0.0)
            target = load_target(targets_ptr, u, mask & (u + 1 < n_cells), V)
            by_blank, by_label = arc_probabilities(
                blank_ptr, label_ptr, cell, t, u, mask, all_frames, n_cells
            )
            by_label *= label_weight
            x_ptr = logits_ptr + row.to(tl.int64)[:, None] * V + column
            inside = mask[:, None] & (column < V)
            x = tl.load(x_ptr, mask=inside, eviction_policy="evict_first")
            grad = cost_gradient(
                x.to(tl.float32), column, target, normaliser,
                by_blank, by_label, clamp, BLANK, CLAMP,
            )  # fmt: skip
            some = (row < end)[:, None] & (column < V)
            grad = tl.where(some, grad * factor, 0.0)
            tl.store(x_ptr, grad.to(logits_ptr.dtype.element_ty), mask=inside)
            if SUMS:
                total += grad
        if SUMS:
            columns = v + tl.arange(0, BLOCK_V)
            mask_v = (columns < V) & (first < last)
            at = sums_ptr + sums_at + columns
            before = tl.load(at, mask=mask_v, other=0.0)
            tl.store(at, before + tl.sum(total, axis=0), mask=mask_v)
