"""Starting the kernel for Hopper, whose tiles come by tensor descriptors."""

import functools

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from speechbrain_triton.ops.geglu_linear.hopper import (
    geglu_linear_hopper_kernel,
)
from speechbrain_triton.ops.geglu_linear.launch import (
    STEP_K,
    TILE_M,
    Gating,
    tile_f,
)
from speechbrain_triton.ops.launcher import Launcher
from speechbrain_triton.ops.sizes import cdiv

DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}

# That multiply; the kernel adds those that gate.
NUM_WARPS = 8
# Steps that are loaded ahead: what shared memory has room for.
STAGES = 3
# That are gated at a time: 16 elements a thread.
ROWS = 16
# Tiles of as many rows follow each other, so that they find weight in L2.
GROUP_M = 8
# Of a thread that gates; those that multiply have what is left, 188.
GATE_REGISTERS = 136


class Tiles(TensorDescriptor):
    """A matrix and the tiles that a kernel takes of it.

    Without the checks that take most of the time of making a descriptor: the
    caller has made sure that rows are contiguous and aligned to 16 bytes.
    """

    def __init__(self, matrix: torch.Tensor, rows: int, columns: int):
        self.base = matrix
        self.shape = matrix.shape
        # Of a single row PyTorch's may be any number.
        self.strides = (matrix.shape[1], 1)
        self.block_shape = [rows, columns]
        self.layout = _layout(rows, columns, matrix.dtype)
        self.padding = "zero"
        self.round_f32_to_tf32 = False
        self.dtype, self.device = matrix.dtype, matrix.device

    def data_ptr(self) -> int:
        return self.base.data_ptr()


@functools.cache
def _layout(rows, columns, dtype):
    return gl.NVMMASharedLayout.get_default_for([rows, columns], DTYPES[dtype])


_geglu_linear = Launcher(geglu_linear_hopper_kernel)


def launch_fused(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gating: Gating,
    keep: bool,
    programs: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``launch_geglu_linear`` for what ``is_fused`` lets through.

    Arguments
    ---------
    x, weight, bias, gating, keep
        As there.
    programs : int
        That share out the tiles: one a multiprocessor.

    Returns
    -------
    tuple of torch.Tensor or None
        As there.
    """
    M, K = x.shape
    columns = weight.shape[0]
    F = columns // 2
    h = x.new_empty(M, F)
    z = x.new_empty(M, columns) if keep else None
    block = tile_f(F)
    tiles = cdiv(M, TILE_M) * (F // block)
    _geglu_linear(
        (min(tiles, programs), 1),
        (
            Tiles(x, TILE_M, STEP_K),
            Tiles(weight, block, STEP_K),
            z,
            h,
            None if bias is None else bias.contiguous(),
        ),
        (M, *gating[:4]),
        (
            F,
            cdiv(K, STEP_K),
            STAGES,
            ROWS,
            GROUP_M,
            *gating[4:],
            GATE_REGISTERS,
        ),
        NUM_WARPS,
    )
    return h, z
