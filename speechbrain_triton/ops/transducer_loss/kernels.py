"""The two passes over a transducer's logits (B, T, U1, V).

A row is the logits of one cell (t, u) of an utterance. Programs take tiles of
rows, whole where V allows, from the valid ones of an utterance: those before
its frames and labels end. The log-softmax is not kept: forward leaves a row's
normaliser and the log-probabilities of its two arcs, in the lattice's order
(see ``lattice.py``), backward builds the row's gradient from them. Logarithms
are to base 2.
"""

import triton
import triton.language as tl

from speechbrain_triton.ops.jit import jit_for_any
from speechbrain_triton.ops.transducer_loss.lattice import (
    arc_probabilities,
    at_least_impossible,
    utterance_sizes,
)

LOG2_E = tl.constexpr(1.4426950408889634)

_jit = jit_for_any(
    (
        "T",
        "U1",
        "size",
        "step_u",
        "rows_per_program",
        "dcost_step",
        "label_weight",
        "clamp",
    )
)


@_jit
def log_probs_kernel(
    logits_ptr,
    targets_ptr,
    frames_ptr,
    labels_ptr,
    normaliser_ptr,
    blank_ptr,
    label_ptr,
    T,
    U1,
    size,
    step_u,
    rows_per_program,
    V: tl.constexpr,
    BLANK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Each row's log-sum-exp and log-probability of its blank and label."""
    b = tl.program_id(1).to(tl.int64)
    n_frames, n_cells = utterance_sizes(frames_ptr, labels_ptr, b, T, U1)
    logits_ptr += b * T * U1 * V
    targets_ptr += b * (U1 - 1)
    first = tl.program_id(0) * rows_per_program
    last = tl.minimum(first + rows_per_program, n_frames * n_cells)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)  # [ROWS]
        mask = row < last
        t = row // n_cells
        u = row - t * n_cells
        x_ptr = logits_ptr + (t * U1 + u).to(tl.int64) * V
        target = load_target(targets_ptr, u, mask & (u + 1 < n_cells), V)
        normaliser, blank, label = row_log_probs(
            x_ptr, mask, target, V, BLANK, ROWS, BLOCK_V
        )
        cell = b * size + t * U1 + u * step_u
        tl.store(normaliser_ptr + cell, normaliser, mask=mask)
        tl.store(blank_ptr + cell, blank, mask=mask)
        tl.store(label_ptr + cell, label, mask=mask)


@triton.jit
def row_log_probs(
    x_ptr,
    mask,
    target,
    V: tl.constexpr,
    BLANK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Log-sum-exp of rows, log-probability of their blank and target."""
    top, rest = _normaliser(x_ptr, mask, V, ROWS, BLOCK_V)
    blank = tl.load(x_ptr + BLANK, mask=mask, other=0.0).to(tl.float32)
    label = tl.load(x_ptr + target, mask=target >= 0, other=-float("inf"))
    label = label.to(tl.float32)
    # For a probability near 1 both differences are small: exact, before
    # anything is rounded.
    blank = at_least_impossible((blank - top) * LOG2_E - rest)
    label = at_least_impossible((label - top) * LOG2_E - rest)
    return top * LOG2_E + rest, blank, label


@triton.jit
def load_target(targets_ptr, u, mask, V: tl.constexpr):
    """Label u, or -1 where there is none in the vocabulary."""
    target = tl.load(targets_ptr + u, mask=mask, other=0)
    known = mask & (target >= 0) & (target < V)
    return tl.where(known, target.to(tl.int32), -1)


@triton.jit
def _normaliser(
    x_ptr, mask, V: tl.constexpr, ROWS: tl.constexpr, BLOCK_V: tl.constexpr
):
    """Each row's maximum, and log2 of its sum of exponentials below that."""
    offs_v = tl.arange(0, BLOCK_V)[None, :]  # [1, BLOCK_V]
    top = tl.full([ROWS], -float("inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    for v in range(0, V, BLOCK_V):
        x = tl.load(
            x_ptr[:, None] + v + offs_v,
            mask=mask[:, None] & (v + offs_v < V),
            other=-float("inf"),
            eviction_policy="evict_first",
        ).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, axis=1))
        # Nothing but -inf so far: it must not be subtracted from itself.
        base = tl.where(higher == -float("inf"), 0.0, higher) * LOG2_E
        total *= tl.exp2(top * LOG2_E - base)
        total += tl.sum(tl.exp2(x * LOG2_E - base[:, None]), axis=1)
        top = higher
    return top, tl.log2(total)


@_jit
def logits_grad_kernel(
    logits_ptr,
    targets_ptr,
    frames_ptr,
    labels_ptr,
    normaliser_ptr,
    blank_ptr,
    label_ptr,
    cost_ptr,
    dcost_ptr,
    dlogits_ptr,
    T,
    U1,
    size,
    step_u,
    rows_per_program,
    dcost_step,
    label_weight,
    clamp,
    V: tl.constexpr,
    BLANK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_V: tl.constexpr,
    CLAMP: tl.constexpr,
):
    """Gradient of the logits, zero outside an utterance; may overwrite them.

    softmax * (blank + label) - (blank at BLANK) - (label at the target) with
    the probabilities of the two arcs, that of the label times label_weight;
    clamped, then times the gradient of the utterance's cost.
    """
    b = tl.program_id(1).to(tl.int64)
    n_frames, n_cells = utterance_sizes(frames_ptr, labels_ptr, b, T, U1)
    # An utterance without a path has nothing to learn from.
    if tl.load(cost_ptr + b) == float("inf"):
        n_frames = 0
    dcost = tl.load(dcost_ptr + b * dcost_step).to(tl.float32)
    logits_ptr += b * T * U1 * V
    dlogits_ptr += b * T * U1 * V
    targets_ptr += b * (U1 - 1)
    offs_v = tl.arange(0, BLOCK_V)[None, :]  # [1, BLOCK_V]

    first = tl.program_id(0) * rows_per_program
    last = tl.minimum(first + rows_per_program, T * U1)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)  # [ROWS]
        t = row // U1
        u = row - t * U1
        valid = (row < last) & (t < n_frames) & (u < n_cells)
        cell = b * size + t * U1 + u * step_u
        normaliser = tl.load(normaliser_ptr + cell, mask=valid, other=0.0)
        target = load_target(targets_ptr, u, valid & (u + 1 < n_cells), V)
        by_blank, by_label = arc_probabilities(
            blank_ptr, label_ptr, cell, t, u, valid, n_frames, n_cells
        )
        by_label *= label_weight
        offs = row.to(tl.int64)[:, None] * V + offs_v
        for v in range(0, V, BLOCK_V):
            column = v + offs_v
            x = tl.load(
                logits_ptr + offs + v,
                mask=valid[:, None] & (column < V),
                eviction_policy="evict_first",
            ).to(tl.float32)
            grad = cost_gradient(
                x, column, target, normaliser, by_blank, by_label, clamp,
                BLANK, CLAMP,
            )  # fmt: skip
            grad = tl.where(valid[:, None], grad * dcost, 0.0)
            tl.store(
                dlogits_ptr + offs + v,
                grad.to(dlogits_ptr.dtype.element_ty),
                mask=(row < last)[:, None] & (column < V),
            )


@triton.jit
def cost_gradient(
    x,
    column,
    target,
    normaliser,
    by_blank,
    by_label,
    clamp,
    BLANK: tl.constexpr,
    CLAMP: tl.constexpr,
):
    """Gradient of -log p for rows of logits, of which x are some columns."""
    both = by_blank + by_label
    grad = tl.exp2(x * LOG2_E - normaliser[:, None]) * both[:, None]
    grad -= tl.where(column == BLANK, by_blank[:, None], 0.0)
    grad -= tl.where(column == target[:, None], by_label[:, None], 0.0)
    if CLAMP:
        grad = tl.where(grad > clamp, clamp, grad)
        grad = tl.where(grad < -clamp, -clamp, grad)
    return grad
