"""The second half of a sum over rows: add up what programs left."""

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

_sum_partials = Launcher(sum_partials_kernel)


def sum_partials(partial: torch.Tensor) -> torch.Tensor:
    """Sum partial results deterministically, without atomics.

    Arguments
    ---------
    partial : torch.Tensor
        (P, N) float32, contiguous.

    Returns
    -------
    torch.Tensor
        (N,) float32.
    """
    P, N = partial.shape
    total = partial.new_empty(N)
    _sum_partials((cdiv(N, 32), 1), (partial, total), (P,), (N, 32, 32), 4)
    return total
