"""The front end's kernels and matmuls, forward and backward.

Backward goes through a large batch in slices of utterances, so that the
gradients of the large layers are never there as a whole. It lays out the
patches and computes the outputs of the pointwise layers again, which takes less
time than to recompute their inputs. Of a small batch these are kept: there the
host's time is what counts.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from speechbrain_triton.ops.bias_relu.launch import (
    launch_bias_relu,
    launch_bias_relu_grad,
)
from speechbrain_triton.ops.casts import cast, matmul
from speechbrain_triton.ops.conv_stem.launch import (
    Shape,
    Stem,
    launch_input_grad,
    launch_parameter_grads,
    launch_patches,
    launch_stem,
    shape_of,
)
from speechbrain_triton.ops.depthwise_conv2d.geometry import (
    Geometry,
    geometry_of,
)
from speechbrain_triton.ops.depthwise_conv2d.launch import (
    Inputs,
    launch_conv,
    launch_conv_grad,
    sums_for,
)
from speechbrain_triton.ops.frontend.reference import (
    STRIDE,
    FrontEndParameters,
)
from speechbrain_triton.ops.launcher import PLANS
from speechbrain_triton.ops.sizes import cdiv

# Of the first pointwise layer's input, in a slice of backward. At 64 utterances
# of 32 s in half precision that makes two of them, each with two tensors of
# this size; every further one costs the host about half a millisecond.
SLICE_BYTES = 256 * 2**20

# Of the same tensor, up to which a batch counts as small; it is one slice then.
# At half of it an H200 takes 0.3 ms for both passes, and the host much longer.
SMALL_BYTES = 64 * 2**20


class Layers(NamedTuple):
    """What forward and backward work with, besides tensors of the batch."""

    parameters: FrontEndParameters
    weights: tuple[torch.Tensor, ...]
    """Of the pointwise layers, (C, C) in the products' dtype."""
    padding: str
    dtype: torch.dtype

    def layout(self, x: torch.Tensor) -> tuple[Shape, Geometry]:
        """Of the stem for x (B, T, F), and of the convolutions behind it."""
        _, T, F = x.shape
        K = self.parameters.conv_weight.shape[2]
        return _layout(T, F, K, self.padding)

    @property
    def stem(self) -> Stem:
        """The first convolution and the first depthwise one."""
        p = self.parameters
        return Stem(*p[:2], *p.blocks[0][:2])

    def inputs(
        self, n: int, z: torch.Tensor, frames: torch.Tensor | None
    ) -> Inputs:
        """Of block n's depthwise convolution; z is what block n - 1 made."""
        before, block = self.parameters.blocks[n - 1 : n + 1]
        return Inputs(z, *block[:2], before.pointwise_bias, frames)


@functools.lru_cache(PLANS)
def _layout(T: int, F: int, K: int, padding: str) -> tuple[Shape, Geometry]:
    geometry = geometry_of((K, K), (STRIDE, STRIDE), padding)
    return shape_of(T, F, K, STRIDE, padding), geometry


class Kept(NamedTuple):
    """What a forward pass took and made, as far as backward reads it."""

    x: torch.Tensor
    """(B, T, F)."""
    y: torch.Tensor
    """(B, T', F', C)."""
    patches: torch.Tensor | None
    """Of x; None to lay them out again."""
    frames: Sequence[torch.Tensor | None]
    """From :func:`frames_of_layers`."""
    inputs: Sequence[torch.Tensor]
    """Of the pointwise layers, (B, T, F, C) each."""
    outputs: Sequence[torch.Tensor | None]
    """Of the pointwise layers but the last; None to compute them again."""

    def flat(self) -> tuple[torch.Tensor | None, ...]:
        """All of it, as autograd takes it."""
        return *self[:3], *self.frames, *self.inputs, *self.outputs

    @classmethod
    def of(
        cls, tensors: Sequence[torch.Tensor | None], n_blocks: int
    ) -> "Kept":
        """The inverse of :meth:`flat`."""
        inputs, outputs = 4 + n_blocks, 4 + 2 * n_blocks
        return cls(
            *tensors[:3],
            tensors[3:inputs],
            tensors[inputs:outputs],
            tensors[outputs:],
        )

    def part(self, utterances: slice) -> "Kept":
        """That of some of the utterances."""
        tensors = (None if t is None else t[utterances] for t in self.flat())
        return Kept.of(tuple(tensors), len(self.inputs))


def layers_of(
    parameters: FrontEndParameters, padding: str, dtype: torch.dtype
) -> Layers:
    """Cast the weights of the pointwise layers.

    Arguments
    ---------
    parameters : FrontEndParameters
        Of any floating dtype.
    padding : str
        ``"same"`` or ``"causal"``.
    dtype : torch.dtype
        Of products and result.

    Returns
    -------
    Layers
    """
    weights = tuple(
        cast(block.pointwise_weight.flatten(1), dtype)
        for block in parameters.blocks
    )
    return Layers(parameters, weights, padding, dtype)


def launch_frontend(
    x: torch.Tensor, layers: Layers, frames: Sequence[torch.Tensor | None]
) -> Kept:
    """Run the front end.

    Arguments
    ---------
    x : torch.Tensor
        (B, T, F), not empty.
    layers : Layers
        The front end.
    frames : sequence of torch.Tensor or None
        From :func:`frames_of_layers`.

    Returns
    -------
    Kept
        The result, and what backward reads.
    """
    shape, geometry = layers.layout(x)
    patches = launch_patches(x, frames[0], shape, layers.dtype)
    inputs, outputs = [launch_stem(patches, layers.stem, shape)], []
    small = inputs[0].nbytes <= SMALL_BYTES
    if not small:
        patches = None
    for n in range(1, len(layers.weights)):
        z = F.linear(inputs[-1], layers.weights[n - 1])
        inputs.append(
            launch_conv(layers.inputs(n, z, frames[n]), geometry, "before")
        )
        outputs.append(z if small else None)
    z = F.linear(inputs[-1], layers.weights[-1])
    bias = layers.parameters.blocks[-1].pointwise_bias
    y = launch_bias_relu(z, bias, frames[-1])
    return Kept(x, y, patches, frames, inputs, outputs)


def launch_frontend_grad(
    dy: torch.Tensor, kept: Kept, layers: Layers, input_grad: bool
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """Gradients of x, if wanted, and of all parameters.

    Arguments
    ---------
    dy : torch.Tensor
        (B, T', F', C).
    kept : Kept
        From forward.
    layers : Layers
        As in forward.
    input_grad : bool
        Whether the gradient of x is wanted.

    Returns
    -------
    dx : torch.Tensor or None
        (B, T, F) in x's dtype.
    grads : list of torch.Tensor
        In the order of ``parameters.flat()``, in float32, summed in a fixed
        order.
    """
    parts = _slices(kept.inputs[0])
    if len(parts) == 1:
        return _grads(dy, kept, layers, input_grad)
    dxs, totals = [], None
    for part in parts:
        dx, grads = _grads(dy[part], kept.part(part), layers, input_grad)
        dxs.append(dx)
        if totals is None:
            totals = grads
        else:
            torch._foreach_add_(totals, grads)
    return torch.cat(dxs) if input_grad else None, totals


def _grads(dy, kept, layers, input_grad):
    """launch_frontend_grad for one slice."""
    x, lengths = kept.x, kept.frames[0]
    shape, geometry = layers.layout(x)
    grads, du = _pointwise_grads(dy, kept, layers, geometry)
    patches = kept.patches
    if patches is None:
        patches = launch_patches(x, lengths, shape, layers.dtype)
    stem = launch_parameter_grads(du, patches, layers.stem, shape)
    dx = None
    if input_grad:
        dx = launch_input_grad(
            du, patches, layers.stem, shape, lengths, x.dtype
        )
    return dx, [*stem, *grads]


def _pointwise_grads(dy, kept, layers, geometry):
    """All gradients but the stem's, and that of its output."""
    C, last = dy.shape[3], len(kept.inputs) - 1
    # A depthwise convolution sums for the bias before it and its parameters.
    sizes = C, geometry.taps * C, C
    width = sum(sizes)
    sums = sums_for(kept.inputs[0], geometry, last * width + C)
    dz = launch_bias_relu_grad(dy, kept.y, sums, last * width)
    dweights, unused = [], None
    for n in range(last, -1, -1):
        u, weight = kept.inputs[n], layers.weights[n]
        rows = dz.view(-1, C)
        dweight = matmul(rows.t(), u.view_as(rows), torch.float32)
        dweights.insert(0, dweight.view(C, C, 1, 1))
        du = torch.mm(rows, weight, out=unused)  # rows too
        if n > 0:
            z = kept.outputs[n - 1]
            if z is None:
                z = F.linear(kept.inputs[n - 1], layers.weights[n - 1])
                # The convolution is the last to read it.
                unused = z.view(-1, C)
            inputs = layers.inputs(n, z, kept.frames[n])
            dz = launch_conv_grad(
                inputs, du, None, geometry, "before", sums, (n - 1) * width
            )
    dbias, *totals = sums.total().split_with_sizes((*sizes * last, C))
    grads = [dweights[0], dbias]
    for n in range(1, last + 1):
        ddepthwise, ddepthwise_bias, dbias = totals[3 * n - 3 : 3 * n]
        weight = layers.parameters.blocks[n].depthwise_weight
        ddepthwise = ddepthwise.view_as(weight)
        grads += [ddepthwise, ddepthwise_bias, dweights[n], dbias]
    return grads, du


def _slices(u: torch.Tensor) -> list[slice]:
    """Equal shares of a batch, of which u is the largest tensor."""
    B = u.shape[0]
    size = cdiv(B, min(B, cdiv(u.nbytes, SLICE_BYTES)))
    return [slice(b, b + size) for b in range(0, B, size)]


def frames_of_layers(
    frames: torch.Tensor | None, n_blocks: int
) -> list[torch.Tensor | None]:
    """Of the features, and of the output of each pointwise layer.

    Arguments
    ---------
    frames : torch.Tensor or None
        (B,), of the features.
    n_blocks : int
        How many pointwise layers there are.

    Returns
    -------
    list of torch.Tensor or None
        (B,) each: a 4th, an 8th and so on, rounded up, as halving again and
        again and rounding up gives it.
    """
    if frames is None:
        return [None] * (n_blocks + 1)
    shifts = range(2, n_blocks + 2)
    return [frames, *((frames + (2**n - 1)) >> n for n in shifts)]
