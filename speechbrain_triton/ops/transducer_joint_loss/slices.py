"""How a batch's rows are shared out among slices of bounded size.

A row is a cell (t, u) of an utterance, one before its frames and labels end:
padding has no rows. A slice holds whole utterances as long as they fit, or
some frames of a longer one, each with all its cells. So the gradient of a
frame, a sum over its cells, is complete within a slice.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from speechbrain_triton.ops.sizes import cdiv

# Frames of a tile of the backward kernel: it leaves one sum for each.
TILE_FRAMES = 16

# int32 numbers of a segment in the table; see ``load_segment``.
COLUMNS = 8


class Segment(NamedTuple):
    """Frames of an utterance, with cells of each."""

    utterance: int
    first_frame: int
    frames: int
    cells: int

    @property
    def rows(self) -> int:
        return self.frames * self.cells

    @property
    def sums(self) -> int:
        """Rows of the backward kernel's sums over frames."""
        return cdiv(self.frames, TILE_FRAMES) * self.cells


class Slice(NamedTuple):
    """Segments whose rows exist at one time.

    ``table`` has a line for each. The rest says how many rows they have, how
    many sums, and the most rows, frames and cells that one of them has.
    """

    table: torch.Tensor
    rows: int
    sums: int
    most_rows: int
    most_frames: int
    most_cells: int


class Group(NamedTuple):
    """Utterances whose lattices are summed over at one time.

    ``frames`` and ``labels`` are those of the utterances from ``first`` to
    before ``last``, int32.
    """

    first: int
    last: int
    frames: torch.Tensor
    labels: torch.Tensor
    slices: tuple[Slice, ...]


def split(
    frames: Sequence[int], labels: Sequence[int], most_rows: int
) -> list[list[list[Segment]]]:
    """Slices of at most so many rows, by the utterances that they complete.

    Arguments
    ---------
    frames, labels : sequence of int
        Of each utterance.
    most_rows : int
        Of a slice, unless one frame has more.

    Returns
    -------
    list
        Groups of slices: most often one, but all those of an utterance that
        is too long for one. Utterances without frames are in none.

    Example
    -------
    >>> [[len(s) for s in group] for group in split([2, 2, 9], [1, 1, 1], 8)]
    [[2], [1, 1, 1]]
    """
    groups: list[list[list[Segment]]] = []
    room = 0
    for utterance, (T, U) in enumerate(zip(frames, labels, strict=True)):
        whole = Segment(utterance, 0, T, U + 1)
        if T == 0:
            continue
        if whole.rows <= room:
            groups[-1][0].append(whole)
            room -= whole.rows
        elif whole.rows <= most_rows:
            groups.append([[whole]])
            room = most_rows - whole.rows
        else:
            count = cdiv(T, max(1, most_rows // whole.cells))
            share = cdiv(T, count)
            starts = range(0, T, share)
            groups.append(
                [
                    [Segment(utterance, t, min(share, T - t), whole.cells)]
                    for t in starts
                ]
            )
            room = 0
    return groups


def make_groups(
    frames: Sequence[int],
    labels: Sequence[int],
    most_rows: int,
    together: bool,
    device: torch.device,
) -> list[Group]:
    """Slices of a batch, with all that kernels need to know of them.

    Arguments
    ---------
    frames, labels, most_rows : as for :func:`split`
    together : bool
        One group for the whole batch.
    device : torch.device
        For the tables, which go there in one copy.

    Returns
    -------
    list of Group
        Of all utterances, in their order.
    """
    parts = split(frames, labels, most_rows)
    if together:
        parts = [[part for group in parts for part in group]]
    firsts = [0, *(group[0][0].utterance for group in parts[1:])]
    lasts = [*firsts[1:], len(frames)]

    numbers: list[int] = []
    for first, group in zip(firsts, parts, strict=False):
        for segments in group:
            numbers += _lines(segments, first, frames)
    # Each begins at a multiple of 16 bytes, so that kernels have one variant.
    starts = []
    for first, last in zip(firsts, lasts, strict=True):
        for lengths in (frames, labels):
            starts.append(len(numbers))
            numbers += lengths[first:last]
            numbers += [0] * (-len(numbers) % 4)
    table = torch.tensor(numbers, dtype=torch.int32)
    table = table.to(device, non_blocking=True)

    groups, line = [], 0
    for i, (first, last) in enumerate(zip(firsts, lasts, strict=True)):
        slices = []
        for segments in parts[i] if parts else ():
            slices.append(_slice(segments, table[line:]))
            line += COLUMNS * len(segments)
        at = (table[starts[2 * i + k] :][: last - first] for k in (0, 1))
        groups.append(Group(first, last, *at, tuple(slices)))
    return groups


def _lines(segments, first_utterance, frames):
    """Segments as the kernels read them: the order is load_segment's."""
    row = sums = 0
    for segment in segments:
        yield from (
            segment.utterance,
            segment.utterance - first_utterance,
            segment.first_frame,
            segment.frames,
            segment.cells,
            frames[segment.utterance],
            row,
            sums,
        )
        row += segment.rows
        sums += segment.sums


def _slice(segments, table):
    return Slice(
        table[: COLUMNS * len(segments)].view(-1, COLUMNS),
        sum(s.rows for s in segments),
        sum(s.sums for s in segments),
        max(s.rows for s in segments),
        max(s.frames for s in segments),
        max(s.cells for s in segments),
    )
