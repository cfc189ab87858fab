"""Launchers: allocate outputs, choose configs by rule, start the kernels."""

from typing import NamedTuple

import torch

from speechbrain_triton.ops.depthwise_conv2d.geometry import Geometry
from speechbrain_triton.ops.depthwise_conv2d.kernels import (
    depthwise_conv2d_grad_kernel,
    depthwise_conv2d_kernel,
)
from speechbrain_triton.ops.launcher import Launcher
from speechbrain_triton.ops.reduction import ROW_TILE, ColumnSums
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
    y = x.new_empty(geometry.out_shape(x.shape))
    if y.numel() == 0:
        return y
    _, T, F, C = x.shape
    B, T_out, F_out, _ = y.shape
    tile = tile_of(C, FORWARD, geometry, backward=False)
    blocks = cdiv(C, tile.channels)
    n_rows = B * T_out
    tiles = cdiv(cdiv(n_rows, tile.rows), cdiv(FORWARD.programs, blocks))
    rows_per_program = tile.rows * tiles
    _conv(
        (cdiv(n_rows, rows_per_program) * blocks, 1),
        (x, weight, bias, input_bias, lengths, y),
        (n_rows, rows_per_program, T, F, T_out, F_out),
        (
            C,
            *geometry.constants,
            *tile,
            _pack(tile, FORWARD, x),
            relu,
            bias is not None,
            input_bias is not None,
            lengths is not None,
        ),
        FORWARD.warps,
    )
    return y


def launch_conv_grad(
    inputs: Inputs,
    dy: torch.Tensor,
    y: torch.Tensor | None,
    geometry: Geometry,
    relu: str | None,
    input_grad: bool = True,
    weight_grad: bool = True,
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of the convolution.

    Arguments
    ---------
    inputs : Inputs
        As in forward, not empty.
    dy : torch.Tensor
        Gradient of the output.
    y : torch.Tensor, optional
        The output, if ``relu`` is ``"after"``.
    geometry : Geometry
        As in forward.
    relu : str, optional
        As in forward.
    input_grad : bool
        Whether the gradients of x and input_bias are wanted.
    weight_grad : bool
        Whether those of weight and bias are.

    Returns
    -------
    tuple of torch.Tensor or None
        dx, contiguous, in x's dtype; dweight (C, 1, K_T, K_F), dbias (C,) and
        dinput_bias (C,) in float32, taken in a fixed order.
    """
    x, weight, bias, input_bias, lengths = _contiguous(inputs)
    dy = dy.contiguous()
    dx = torch.empty_like(x) if input_grad else None
    B, T, F, C = x.shape
    _, T_out, F_out, _ = dy.shape
    tile = tile_of(C, BACKWARD, geometry, backward=True)
    blocks = cdiv(C, tile.channels)
    n_rows = B * cdiv(T, 2)
    parameters = geometry.taps + 1 if weight_grad else 0
    before = input_grad and input_bias is not None
    # Rows are shared out in groups, to spread them over fewer programs.
    group = cdiv(n_rows, ROW_TILE * cdiv(BACKWARD.programs, blocks))
    sums = ColumnSums(cdiv(n_rows, group), (parameters + before) * C, x.device)
    _conv_grad(
        (sums.programs * blocks, 1),
        (x, weight, input_bias, lengths, dy, y, dx, sums.partial),
        (n_rows, group * sums.rows_per_program, T, F, T_out, F_out),
        (
            C,
            *geometry.constants,
            *tile,
            _pack(tile, BACKWARD, x, dy, y),
            relu,
            input_bias is not None,
            lengths is not None,
            input_grad,
            weight_grad,
        ),
        BACKWARD.warps,
    )
    dweight = dbias = dinput_bias = None
    if weight_grad or before:
        total = sums.total()
        if weight_grad:
            dweight = total[: geometry.taps * C].view(weight.shape)
            dbias = total[geometry.taps * C : parameters * C]
        if before:
            dinput_bias = total[parameters * C :]
    return dx, dweight, dbias, dinput_bias


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
