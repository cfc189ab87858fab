"""The front end's kernels and matmuls, forward and backward.

Backward goes through the batch in slices of utterances, so that the gradients
of the large layers are never there as a whole. It computes the outputs of the
pointwise layers again, which takes less time than to recompute their inputs.
"""

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
)
from speechbrain_triton.ops.frontend.reference import (
    STRIDE,
    FrontEndParameters,
)
from speechbrain_triton.ops.sizes import cdiv

# Of the first pointwise layer's input, in a slice of backward. At 64 utterances
# of 32 s in half precision that makes two of them, each with two tensors of
# this size; every further one costs the host about half a millisecond.
SLICE_BYTES = 256 * 2**20


class Layers(NamedTuple):
    """What forward and backward work with, besides tensors of the batch."""

    parameters: FrontEndParameters
    weights: tuple[torch.Tensor, ...]
    """Of the pointwise layers, (C, C) in the products' dtype."""
    padding: str
    dtype: torch.dtype

    def shape(self, x: torch.Tensor) -> Shape:
        """Of the stem, for features (B, T, F)."""
        K = self.parameters.conv_weight.shape[2]
        return shape_of(*x.shape[1:], K, STRIDE, self.padding)

    @property
    def geometry(self) -> Geometry:
        """Of the depthwise convolutions behind the stem."""
        kernel = tuple(self.parameters.conv_weight.shape[2:])
        return geometry_of(kernel, (STRIDE, STRIDE), self.padding)

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
) -> tuple[torch.Tensor, list[torch.Tensor]]:
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
    y : torch.Tensor
        (B, T', F', C).
    inputs : list of torch.Tensor
        Of the pointwise layers, (B, T, F, C) each: what backward reads again.
    """
    shape, geometry = layers.shape(x), layers.geometry
    patches = launch_patches(x, frames[0], shape, layers.dtype)
    inputs = [launch_stem(patches, layers.stem, shape)]
    del patches
    for n in range(1, len(layers.weights)):
        z = F.linear(inputs[-1], layers.weights[n - 1])
        inputs.append(
            launch_conv(layers.inputs(n, z, frames[n]), geometry, "before")
        )
    z = F.linear(inputs[-1], layers.weights[-1])
    bias = layers.parameters.blocks[-1].pointwise_bias
    return launch_bias_relu(z, bias, frames[-1]), inputs


def launch_frontend_grad(
    dy: torch.Tensor,
    x: torch.Tensor,
    layers: Layers,
    frames: Sequence[torch.Tensor | None],
    inputs: Sequence[torch.Tensor],
    y: torch.Tensor,
    input_grad: bool,
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """Gradients of x, if wanted, and of all parameters.

    Arguments
    ---------
    dy : torch.Tensor
        (B, T', F', C).
    x, layers, frames
        As in forward.
    inputs, y
        From forward.
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
    tensors = dy.contiguous(), x, *inputs, y
    dxs, totals = [], None
    for part in _slices(inputs[0]):
        dy, x, *inputs, y = (t[part] for t in tensors)
        lengths = [None if n is None else n[part] for n in frames]
        grads, du = _pointwise_grads(dy, layers, lengths, inputs, y)
        shape = layers.shape(x)
        patches = launch_patches(x, lengths[0], shape, layers.dtype)
        stem = launch_parameter_grads(du, patches, layers.stem, shape)
        if input_grad:
            dxs.append(
                launch_input_grad(
                    du, patches, layers.stem, shape, lengths[0], x.dtype
                )
            )
        # Else they would be there beside those of the next slice.
        del du, patches
        grads = [*stem, *grads]
        if totals is None:
            totals = grads
        else:
            torch._foreach_add_(totals, grads)
    return torch.cat(dxs) if input_grad else None, totals


def _pointwise_grads(dy, layers, frames, inputs, y):
    """All gradients but the stem's, and that of its output."""
    dz, dbias = launch_bias_relu_grad(dy, y)
    grads = []
    z = None
    for n in reversed(range(len(inputs))):
        u, weight = inputs[n], layers.weights[n]
        rows = dz.view(-1, dz.shape[-1])
        dweight = matmul(rows.t(), u.view(rows.shape), torch.float32)
        # What z was is not needed any more.
        out = None if z is None else z.view(rows.shape)
        du = torch.mm(rows, weight, out=out).view(u.shape)
        grads = [dweight.view(*dweight.shape, 1, 1), dbias, *grads]
        if n > 0:
            z = F.linear(inputs[n - 1], layers.weights[n - 1])
            dz, ddepthwise, ddepthwise_bias, dbias = launch_conv_grad(
                layers.inputs(n, z, frames[n]),
                du,
                None,
                layers.geometry,
                "before",
            )
            grads = [ddepthwise, ddepthwise_bias, *grads]
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
