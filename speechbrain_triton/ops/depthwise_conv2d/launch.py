"""Launchers: allocate outputs, choose configs by rule, start the kernels."""

import functools
from typing import NamedTuple

import torch

from speechbrain_triton.ops.depthwise_conv2d.geometry import Geometry
from speechbrain_triton.ops.depthwise_conv2d.kernels import (
    depthwise_conv2d_grad_kernel,
    depthwise_conv2d_kernel,
)
from speechbrain_triton.ops.launcher import PLANS, Launcher
from speechbrain_triton.ops.reduction import ColumnSums
from speechbrain_triton.ops.sizes import cdiv

_conv = Launcher(depthwise_conv2d_kernel)
_conv_grad = Launcher(depthwise_conv2d_grad_kernel)


class Config(NamedTuple):
    """What a pass is tuned by."""

    channels: int  # that a thread holds, at most
    values: int  # that a thread holds in float32 for its channels, at most
    warps: int  # of a program
    programs: int  # that share out the rows, over all blocks of channels


# At 3 x 3 taps and stride 2 registers leave an H200's multiprocessor room for
# four programs forward and for three backward. A program loads the taps once
# and, backward, leaves one partial sum: a constant number of them, so that the
# order of a sum does not depend on the card.
FORWARD = Config(channels=4, values=100, warps=4, programs=1056)
BACKWARD = Config(channels=4, values=120, warps=4, programs=792)


class Tile(NamedTuple):
    """Rows and channels that a program has in its registers."""

    rows: int
    channels: int


class Plan(NamedTuple):
    """What forward takes for an input of a known shape besides the tensors."""

    size: tuple[int, ...]  # of the output
    tile: Tile
    grid: tuple[int, int]
    numbers: tuple[int, ...]
    constants: tuple[int, ...]


class GradPlan(NamedTuple):
    """The same for backward, but for how programs share out the rows."""

    tile: Tile
    blocks: int  # of channels
    numbers: tuple[int, ...]
    constants: tuple[int, ...]


class Inputs(NamedTuple):
    """What the convolution takes, in any strides; biases may be None."""

    x: torch.Tensor  # (B, T, F, C)
    weight: torch.Tensor  # (C, 1, K_T, K_F)
    bias: torch.Tensor | None  # (C,)
    input_bias: torch.Tensor | None  # (C,)
    lengths: torch.Tensor | None  # (B,)


def launch_conv(
    inputs: Inputs, geometry: Geometry, relu: str | None
) -> torch.Tensor:
    """Run the convolution.

    Arguments
    ---------
    inputs : Inputs
        Parameters of any floating dtype, lengths of any integer one.
    geometry : Geometry
        Of the kernel.
    relu : str, optional
        ``"before"`` or ``"after"``.

    Returns
    -------
    torch.Tensor
        (B, T', F', C), contiguous, in x's dtype.
    """
    x, weight, bias, input_bias, lengths = _contiguous(inputs)
    plan = _plan(x.shape, geometry)
    y = x.new_empty(plan.size)
    if y.numel() == 0:
        return y
    _conv(
        plan.grid,
        (x, weight, bias, input_bias, lengths, y),
        plan.numbers,
        (
            *plan.constants,
            _pack(plan.tile, FORWARD, x),
            relu,
            bias is not None,
            input_bias is not None,
            lengths is not None,
        ),
        FORWARD.warps,
    )
    return y


def sums_for(x: torch.Tensor, geometry: Geometry, width: int) -> ColumnSums:
    """Room for the sums of :func:`launch_conv_grad`.

    Arguments
    ---------
    x : torch.Tensor
        The convolution's input, or a tensor of its shape; not empty.
    geometry : Geometry
        As in forward.
    width : int
        Of the sums, and of others beside them.

    Returns
    -------
    ColumnSums
        For as many programs as backward takes.
    """
    plan = _grad_plan(x.shape, geometry)
    programs = cdiv(BACKWARD.programs, plan.blocks)
    return ColumnSums(plan.numbers[0], width, x.device, programs)


def launch_conv_grad(
    inputs: Inputs,
    dy: torch.Tensor,
    y: torch.Tensor | None,
    geometry: Geometry,
    relu: str | None,
    sums: ColumnSums,
    column: int = 0,
    input_grad: bool = True,
    weight_grad: bool = True,
) -> torch.Tensor | None:
    """Gradient of x; those of the parameters go to ``sums``.

    Arguments
    ---------
    inputs : Inputs
        As in forward, not empty.
    dy : torch.Tensor
        Gradient of the output, or the rows of it.
    y : torch.Tensor, optional
        The output, if ``relu`` is ``"after"``.
    geometry : Geometry
        As in forward.
    relu : str, optional
        As in forward.
    sums : ColumnSums
        Takes the gradients of ``input_bias`` (C), if there is one, weight
        (C * K_T * K_F) and bias (C), as far as they are wanted.
    column : int
        Where in ``sums`` they begin.
    input_grad : bool
        Whether the gradients of x and input_bias are wanted.
    weight_grad : bool
        Whether those of weight and bias are.

    Returns
    -------
    torch.Tensor or None
        dx, contiguous, in x's dtype.
    """
    x, weight, _, input_bias, lengths = _contiguous(inputs)
    dy = dy.contiguous()
    dx = torch.empty_like(x) if input_grad else None
    plan = _grad_plan(x.shape, geometry)
    n_rows, *sizes = plan.numbers
    _conv_grad(
        (sums.programs * plan.blocks, 1),
        (x, weight, input_bias, lengths, dy, y, dx, sums.partial),
        (n_rows, sums.share(n_rows), *sizes),
        (
            *plan.constants,
            _pack(plan.tile, BACKWARD, x, dy, y),
            relu,
            input_bias is not None,
            lengths is not None,
            column,
            sums.width,
            input_grad,
            weight_grad,
        ),
        BACKWARD.warps,
    )
    return dx


def tile_of(C: int, config: Config, geometry: Geometry, backward: bool) -> Tile:
    """The tile of a program.

    Rows of C channels are cut into blocks of as many as a warp holds; fewer,
    down to 32, where more than a fifth of them would be none of C's.
    """
    values = geometry.taps
    if backward:  # a sum beside each tap, and the window
        values = 2 * geometry.taps + geometry.window
    channels = config.channels
    while channels > 1 and channels * values > config.values:
        channels //= 2
    size = 32 * config.warps * channels
    block = 32 * channels
    while block > 32 and 4 * cdiv(C, block) * block > 5 * C:
        block //= 2
    return Tile(rows=size // block, channels=block)


@functools.lru_cache(PLANS)
def _plan(shape: tuple[int, ...], geometry: Geometry) -> Plan:
    _, T, F, C = shape
    size = B, T_out, F_out, _ = geometry.out_shape(shape)
    tile = tile_of(C, FORWARD, geometry, backward=False)
    # At least one of each, for a launch that does not take place.
    blocks = max(1, cdiv(C, tile.channels))
    n_rows = B * T_out
    tiles = cdiv(cdiv(n_rows, tile.rows), cdiv(FORWARD.programs, blocks))
    rows_per_program = tile.rows * max(1, tiles)
    return Plan(
        size,
        tile,
        (cdiv(n_rows, rows_per_program) * blocks, 1),
        (n_rows, rows_per_program, T, F, T_out, F_out),
        (C, *geometry.constants, *tile),
    )


@functools.lru_cache(PLANS)
def _grad_plan(shape: tuple[int, ...], geometry: Geometry) -> GradPlan:
    B, T, F, C = shape
    _, T_out, F_out, _ = geometry.out_shape(shape)
    tile = tile_of(C, BACKWARD, geometry, backward=True)
    return GradPlan(
        tile,
        cdiv(C, tile.channels),
        (B * cdiv(T, 2), T, F, T_out, F_out),
        (C, *geometry.constants, *tile),
    )


def most_packed(tile: Tile, config: Config) -> int:
    """Channels that a thread may load as one word: 2 if it has as many."""
    return 2 if tile.rows * tile.channels >= 64 * config.warps else 1


def _pack(tile: Tile, config: Config, *tensors: torch.Tensor | None) -> int:
    """Channels that are loaded as one word: 2 if all are halves, aligned so."""
    x = tensors[0]
    halves = x.element_size() == 2 and x.shape[3] % 2 == 0
    addresses = (0 if t is None else t.data_ptr() for t in tensors)
    aligned = all(address % 4 == 0 for address in addresses)
    return most_packed(tile, config) if halves and aligned else 1


def _contiguous(inputs: Inputs) -> Inputs:
    return Inputs(*(None if t is None else t.contiguous() for t in inputs))
