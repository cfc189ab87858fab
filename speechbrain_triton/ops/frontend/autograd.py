"""The front end: forward, backward, and how autograd finds them.

One autograd function for all of it. In parts, autograd would hold the gradient
of each large layer as a whole beside what is kept; here backward goes through
a large batch in slices.
"""

from functools import partial

import torch

from speechbrain_triton.ops.bias_relu.autograd import run_bias_relu
from speechbrain_triton.ops.casts import like, without_autocast
from speechbrain_triton.ops.conv_stem.op import conv_stem
from speechbrain_triton.ops.depthwise_conv2d.op import depthwise_conv2d
from speechbrain_triton.ops.frontend.reference import (
    FrontEndParameters,
    frontend_reference,
    in_parts,
)
from speechbrain_triton.ops.twin import gradients_by_twin


def run_frontend(
    x: torch.Tensor,
    parameters: FrontEndParameters,
    frames: torch.Tensor | None,
    padding: str,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Run the kernels on arguments that are known to fit.

    Arguments
    ---------
    x : torch.Tensor
        (B, T, F).
    parameters : FrontEndParameters
        Of any floating dtype.
    frames : torch.Tensor, optional
        (B,), whole numbers.
    padding : str
        ``"same"`` or ``"causal"``.
    dtype : torch.dtype
        Of products and result.

    Returns
    -------
    torch.Tensor
        (B, T', F', C).
    """
    if torch.compiler.is_compiling() or x.shape[0] == 0:
        # In parts: the compiler fuses casts into the matmuls.
        return in_parts(
            partial(conv_stem, backend="triton"),
            partial(depthwise_conv2d, backend="triton"),
            run_bias_relu,
            x,
            parameters,
            frames,
            padding=padding,
            dtype=dtype,
        )
    if not torch.is_grad_enabled():
        from speechbrain_triton.ops.frontend import launch

        layers = launch.layers_of(parameters, padding, dtype)
        lengths = launch.frames_of_layers(frames, len(parameters.blocks))
        return launch.launch_frontend(x, layers, lengths).y
    return _FrontEnd.apply(x, frames, padding, dtype, *parameters.flat())


class _FrontEnd(torch.autograd.Function):
    # For backward are kept, with N = B T F C / 16 elements behind the first
    # depthwise convolution: the inputs of the pointwise layers (N, N / 4) and
    # the result (N / 4). Of a small batch also the patches (64 N / C with 3 x 3
    # taps) and, if another layer follows, the first pointwise one's output (N).
    @staticmethod
    def forward(ctx, x, frames, padding, dtype, *tensors):
        from speechbrain_triton.ops.frontend import launch

        p = FrontEndParameters.of(tensors)
        n = len(p.blocks)
        layers = launch.layers_of(p, padding, dtype)
        lengths = launch.frames_of_layers(frames, n)
        kept = launch.launch_frontend(x, layers, lengths)
        ctx.save_for_backward(*layers.weights, *tensors, *kept.flat())
        ctx.options = padding, dtype, n
        return kept.y

    @staticmethod
    def backward(ctx, dy):
        from speechbrain_triton.ops.frontend import launch

        padding, dtype, n = ctx.options
        needs = ctx.needs_input_grad
        saved = ctx.saved_tensors
        end = n + len(needs) - 4
        weights, tensors = saved[:n], saved[n:end]
        kept = launch.Kept.of(saved[end:], n)
        if torch.is_grad_enabled():
            dx, *grads = gradients_by_twin(
                lambda x, *tensors: frontend_reference(
                    x,
                    FrontEndParameters.of(tensors),
                    kept.frames[0],
                    padding=padding,
                    dtype=dtype,
                ),
                (kept.x, *tensors),
                (needs[0], *needs[4:]),
                dy,
            )
            return dx, None, None, None, *grads
        p = FrontEndParameters.of(tensors)
        layers = launch.Layers(p, weights, padding, dtype)
        with without_autocast(dy.device.type):
            dx, grads = launch.launch_frontend_grad(dy, kept, layers, needs[0])
        grads = map(like, tensors, grads)
        return dx, None, None, None, *grads
