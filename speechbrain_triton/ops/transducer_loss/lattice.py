"""Sums over all paths of a transducer's lattice.

Cell (t, u) of an utterance stands for t frames and u labels behind it. From
there a blank leads to (t + 1, u) and label u to (t, u + 1); a blank behind the
last cell ends the utterance. With the log-probabilities of these arcs,

    exp(alpha[t, u]) = exp(alpha[t-1, u] + blank) + exp(alpha[t, u-1] + label)

and alpha is that of coming to a cell. Which of the two terms is how much
larger, the odds, is all that the way back needs: starting with 1 at the last
cell, it splits the probability of being in a cell among the two arcs that lead
there. So each arc gets the probability that a path of the utterance takes it,
by products and sums of numbers up to 1, without a difference of long log-sums.

All cells of an anti-diagonal t + u are independent. A program holds one of
them, u along its lanes, and walks over the diagonals, there and back: a step
is a shift by a lane and one addition in log space, or a product and a sum.
What a diagonal needs of memory is asked for AHEAD of it. Logarithms are to
base 2.

A probability of zero has the logarithm IMPOSSIBLE: finite, so that nothing is
infinity minus infinity. Cell (t, u) is t * U1 + u * step_u floats behind an
utterance's first: with a step of U1 + 1 those of a diagonal are neighbours.
"""

import triton
import triton.language as tl

from speechbrain_triton.ops.jit import jit_for_any

IMPOSSIBLE = tl.constexpr(-1e30)
LN_2 = tl.constexpr(0.6931471805599453)

_jit = jit_for_any(("T", "U1", "size", "step_u"))


@_jit
def paths_kernel(
    blank_ptr,
    label_ptr,
    odds_ptr,
    edge_ptr,
    frames_ptr,
    labels_ptr,
    cost_ptr,
    T,
    U1,
    size,
    step_u,
    LANES: tl.constexpr,
    AHEAD: tl.constexpr,
    MANY: tl.constexpr,
    BACK: tl.constexpr,
):
    """cost = -log p of each utterance (B,); BACK: the arcs' probabilities too.

    These take the place of blank and label (B, size), for all arcs but those
    that leave the lattice. A program is an utterance. MANY allows more cells
    a diagonal than LANES: the program walks once for each block of LANES
    labels, and keeps what enters the next one in edge (B, 2, T).
    """
    b = tl.program_id(0).to(tl.int64)
    n_frames, n_cells = utterance_sizes(frames_ptr, labels_ptr, b, T, U1)
    blank_ptr += b * size
    label_ptr += b * size
    odds_ptr += b * size
    read_ptr, write_ptr = edge_ptr, edge_ptr
    if MANY:
        write_ptr += b * 2 * T
        read_ptr = write_ptr + T
    ends = tl.zeros([LANES], dtype=tl.float32)
    for u0 in range(0, n_cells, LANES):
        ends += _walk_there(
            blank_ptr, label_ptr, odds_ptr, read_ptr, write_ptr,
            u0, n_frames, n_cells, U1, step_u, LANES, AHEAD, MANY, BACK,
        )  # fmt: skip
        # What follows reads what other threads wrote.
        tl.debug_barrier()
        read_ptr, write_ptr = write_ptr, read_ptr

    last = (n_frames - 1) * U1 + (n_cells - 1) * step_u
    some = n_frames * n_cells > 0
    total = tl.load(blank_ptr + last, mask=some, other=IMPOSSIBLE)
    total += tl.sum(ends)
    cost = tl.where(total < 0.5 * IMPOSSIBLE, float("inf"), -total * LN_2)
    tl.store(cost_ptr + b, cost)

    if BACK:
        n_blocks = (n_cells + LANES - 1) // LANES
        for block in range(0, n_blocks):
            _walk_back(
                blank_ptr, label_ptr, odds_ptr, (n_blocks - 1 - block) * LANES,
                n_frames, n_cells, U1, step_u, LANES, AHEAD, MANY,
            )  # fmt: skip
            tl.debug_barrier()


@triton.jit
def _walk_there(
    blank_ptr,
    label_ptr,
    odds_ptr,
    read_ptr,
    write_ptr,
    u0,
    n_frames,
    n_cells,
    U1,
    step_u,
    LANES: tl.constexpr,
    AHEAD: tl.constexpr,
    MANY: tl.constexpr,
    BACK: tl.constexpr,
):
    """Write the odds; alpha of the last cell in its lane, 0 in the others."""
    lane = tl.arange(0, LANES)
    left = tl.maximum(lane - 1, 0)
    u = u0 + lane
    # At step s a lane is at t = s - lane. An arc of weight 0 leads into the
    # first cell, from where its lane starts.
    cell = u * step_u - lane * U1
    alpha = tl.where(u == 0, 0.0, IMPOSSIBLE)
    ends = tl.zeros([LANES], dtype=tl.float32)
    arcs = _arcs(
        blank_ptr, label_ptr, read_ptr, cell, -lane, u, u0,
        n_frames, n_cells, U1, step_u, AHEAD, MANY,
    )  # fmt: skip
    steps = n_frames + tl.minimum(n_cells - u0, LANES) - 1
    for s in range(0, steps, AHEAD):
        following = _arcs(
            blank_ptr, label_ptr, read_ptr, cell + AHEAD * U1,
            s + AHEAD - lane, u, u0, n_frames, n_cells, U1, step_u,
            AHEAD, MANY,
        )  # fmt: skip
        for i in tl.static_range(AHEAD):
            t = s + i - lane
            beside = tl.gather(alpha, left, 0)
            if MANY:
                beside = tl.where(lane == 0, arcs[3 * i + 2], beside)
            stay = alpha + arcs[3 * i]
            move = beside + arcs[3 * i + 1]
            odds = stay - move
            more = _log2_of_1_and(tl.exp2(-tl.abs(odds)))
            alpha = tl.maximum(stay, move) + more
            inside = (t >= 0) & (t < n_frames) & (u < n_cells)
            if BACK:
                tl.store(odds_ptr + cell + i * U1, odds, mask=inside)
            if MANY:
                leaves = inside & (lane == LANES - 1)
                tl.store(write_ptr + t, alpha, mask=leaves)
            is_end = (t == n_frames - 1) & (u == n_cells - 1)
            ends = tl.where(is_end, alpha, ends)
        cell += AHEAD * U1
        arcs = following
    return ends


@triton.jit
def _arcs(
    blank_ptr,
    label_ptr,
    read_ptr,
    cell,
    t,
    u,
    u0,
    n_frames,
    n_cells,
    U1,
    step_u,
    COUNT: tl.constexpr,
    MANY: tl.constexpr,
):
    """What leads into COUNT diagonals: (blank, label, alpha beside), ..."""
    arcs = ()
    for i in tl.static_range(COUNT):
        offs = cell + i * U1
        inside = (t + i >= 0) & (t + i < n_frames) & (u < n_cells)
        blank = tl.load(
            blank_ptr + offs - U1, mask=inside & (t + i > 0), other=0.0
        )
        label = tl.load(
            label_ptr + offs - step_u, mask=inside & (u > 0), other=IMPOSSIBLE
        )
        beside = label
        if MANY:
            enters = inside & (u == u0) & (u > 0)
            beside = tl.load(read_ptr + t + i, mask=enters, other=IMPOSSIBLE)
        arcs = arcs + (blank, label, beside)
    return arcs


@triton.jit
def _walk_back(
    blank_ptr,
    label_ptr,
    odds_ptr,
    u0,
    n_frames,
    n_cells,
    U1,
    step_u,
    LANES: tl.constexpr,
    AHEAD: tl.constexpr,
    MANY: tl.constexpr,
):
    """Write the probabilities of the arcs into a block's cells."""
    lane = tl.arange(0, LANES)
    right = tl.minimum(lane + 1, LANES - 1)
    u = u0 + lane
    width = tl.minimum(n_cells - u0, LANES)
    # At step s a lane is at t = latest - s.
    latest = n_frames - 1 + (width - 1 - lane)
    cell = latest * U1 + u * step_u
    stay = tl.where(u == n_cells - 1, 1.0, 0.0)
    move = tl.zeros([LANES], dtype=tl.float32)
    splits = _splits(
        label_ptr, odds_ptr, cell, latest, u, n_frames, n_cells, U1, lane,
        LANES, AHEAD, MANY,
    )  # fmt: skip
    for s in range(0, n_frames + width - 1, AHEAD):
        following = _splits(
            label_ptr, odds_ptr, cell - AHEAD * U1, latest - s - AHEAD, u,
            n_frames, n_cells, U1, lane, LANES, AHEAD, MANY,
        )  # fmt: skip
        for i in tl.static_range(AHEAD):
            t = latest - s - i
            beside = tl.gather(move, right, 0)
            beside = tl.where(lane == LANES - 1, splits[3 * i + 2], beside)
            here = stay + beside
            stay = here * splits[3 * i]
            move = here * splits[3 * i + 1]
            inside = (t >= 0) & (t < n_frames) & (u < n_cells)
            offs = cell - i * U1
            tl.store(blank_ptr + offs - U1, stay, mask=inside & (t > 0))
            tl.store(label_ptr + offs - step_u, move, mask=inside & (u > 0))
        cell -= AHEAD * U1
        splits = following


@triton.jit
def _splits(
    label_ptr,
    odds_ptr,
    cell,
    t,
    u,
    n_frames,
    n_cells,
    U1,
    lane,
    LANES: tl.constexpr,
    COUNT: tl.constexpr,
    MANY: tl.constexpr,
):
    """How COUNT diagonals split: (by blank, by label, from the right), ..."""
    splits = ()
    for i in tl.static_range(COUNT):
        offs = cell - i * U1
        inside = (t - i >= 0) & (t - i < n_frames) & (u < n_cells)
        odds = tl.load(odds_ptr + offs, mask=inside, other=0.0)
        less = tl.exp2(-tl.abs(odds))
        more = 1.0 / (1.0 + less)
        less *= more
        beside = tl.zeros([LANES], dtype=tl.float32)
        if MANY:
            # The block to the right left it there.
            enters = inside & (lane == LANES - 1) & (u + 1 < n_cells)
            beside = tl.load(label_ptr + offs, mask=enters, other=0.0)
        by_blank = tl.where(odds > 0.0, more, less)
        by_label = tl.where(odds > 0.0, less, more)
        splits = splits + (by_blank, by_label, beside)
    return splits


@triton.jit
def _log2_of_1_and(x):
    """log2(1 + x) for x from 0 to 1, to 5e-8 before rounding.

    tl.log2 is 22 operations one after the other, this polynomial 5: of all
    that a step waits for it was half.
    """
    x2 = x * x
    low = (1.442689881146037 - 0.7211658051637224 * x) + x2 * (
        0.478683692627514 - 0.34730105666154015 * x
    )
    high = (0.24186470797003587 - 0.13752125904620416 * x) + x2 * (
        0.052058940008869486 - 0.009309147186595312 * x
    )
    return x * (low + (x2 * x2) * high)


@triton.jit
def utterance_sizes(frames_ptr, labels_ptr, b, T, U1):
    """Frames of an utterance and cells of each: none if out of range."""
    frames = tl.load(frames_ptr + b)
    labels = tl.load(labels_ptr + b)
    fits = (frames > 0) & (frames <= T) & (labels >= 0) & (labels < U1)
    n_frames = tl.where(fits, frames.to(tl.int32), 0)
    return n_frames, tl.where(fits, labels.to(tl.int32) + 1, 0)


@triton.jit
def arc_probabilities(
    blank_ptr, label_ptr, cell, t, u, valid, n_frames, n_cells
):
    """How probable it is that a path takes the arcs that leave the cells."""
    above = valid & (t + 1 < n_frames)
    right = valid & (u + 1 < n_cells)
    ends = tl.where(above | right | (valid == 0), 0.0, 1.0)
    by_blank = tl.load(blank_ptr + cell, mask=above, other=0.0)
    by_label = tl.load(label_ptr + cell, mask=right, other=0.0)
    return by_blank + ends, by_label


@triton.jit
def at_least_impossible(x):
    """x, and IMPOSSIBLE for what is below it; NaN stays."""
    return tl.where(x < IMPOSSIBLE, IMPOSSIBLE, x)
