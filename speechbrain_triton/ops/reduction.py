"""Sums over rows, in two steps and without atomics.

Each program of a kernel adds up its own rows and leaves a partial sum; one
more kernel adds the partial sums in a fixed order, for all kernels of a
backward pass at once.
"""

import torch
import triton
import triton.language as tl

from speechbrain_triton.ops.launcher import Launcher
from speechbrain_triton.ops.sizes import cdiv


@triton.jit(do_not_specialize=["n_partials"])
def sum_partials_kernel(
    partial_ptr,
    total_ptr,
    n_partials,
    N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """total = sum of the rows of partial (P, N), in one fixed order."""
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = offs_n < N
    acc = tl.zeros([BLOCK_P, BLOCK_N], dtype=tl.float32)
    for p in range(0, n_partials, BLOCK_P):
        row = p + tl.arange(0, BLOCK_P)[:, None]  # [BLOCK_P, 1]
        offs = row.to(tl.int64) * N + offs_n[None, :]
        mask = (row < n_partials) & mask_n[None, :]
        acc += tl.load(partial_ptr + offs, mask=mask, other=0.0)
    tl.store(total_ptr + offs_n, tl.sum(acc, axis=0), mask=mask_n)


# Programs that sum over rows: four a multiprocessor of an H200. Constant, so
# that the order of a sum does not depend on the card.
ROW_PROGRAMS = 528

# Rows that a program takes at a time, at most: its share is a multiple.
ROW_TILE = 4

_sum_partials = Launcher(sum_partials_kernel)


class ColumnSums:
    """Room for the column sums that several kernels take over the same rows.

    Arguments
    ---------
    n_rows : int
        Rows that are summed over, at least 1.
    width : int
        Sums in all; each kernel fills columns of its own.
    device : torch.device
        Where the rows are.
    programs : int
        That share out the rows, at most.
    """

    def __init__(
        self,
        n_rows: int,
        width: int,
        device: torch.device,
        programs: int = ROW_PROGRAMS,
    ):
        tiles = cdiv(n_rows, ROW_TILE)
        self.rows_per_program = ROW_TILE * cdiv(tiles, programs)
        self.programs = cdiv(n_rows, self.rows_per_program)
        self.width = width
        self.partial = torch.empty(
            (self.programs, width), dtype=torch.float32, device=device
        )

    def share(self, n_rows: int) -> int:
        """Rows for each of the programs, where it is so many in all.

        That of the last ones may be none.
        """
        return ROW_TILE * cdiv(cdiv(n_rows, ROW_TILE), self.programs)

    def total(self) -> torch.Tensor:
        """Add up the programs' sums: (width,) float32."""
        total = self.partial.new_empty(self.width)
        _sum_partials(
            (cdiv(self.width, 32), 1),
            (self.partial, total),
            (self.programs,),
            (self.width, 32, 32),
            4,
        )
        return total
