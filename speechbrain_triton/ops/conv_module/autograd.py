"""The convolution module: forward, backward, and how autograd finds them.

One autograd function for the whole module, since on a fast GPU the host's time
counts: every function of its own costs about 20 us a step, and every launch
10. So the two linear layers are here too, and all sums over rows (gradients of
biases and of the layer norms) share one launch at the end.
"""

import torch

from speechbrain_triton.ops.casts import cast, without_autocast, zeros_like
from speechbrain_triton.ops.conv_block.autograd import run_conv_block
from speechbrain_triton.ops.conv_module.reference import (
    ConvModuleParameters,
    conv_module_reference,
    in_parts,
)
from speechbrain_triton.ops.layer_norm.autograd import run_layer_norm
from speechbrain_triton.ops.twin import gradients_by_twin


def run_conv_module(
    x: torch.Tensor, parameters: ConvModuleParameters, options: dict
) -> torch.Tensor:
    """Run the kernels on arguments that are known to fit.

    Arguments
    ---------
    x : torch.Tensor
        (B, T, C).
    parameters : ConvModuleParameters
        Of any floating dtype.
    options : dict
        The keyword arguments of :func:`conv_module_reference`, all of them.

    Returns
    -------
    torch.Tensor
        (B, T, C) in the dtype among the options.
    """
    if torch.compiler.is_compiling():
        # In parts: the compiler fuses casts and biases into the matmuls.
        return in_parts(
            run_layer_norm, run_conv_block, x, parameters, **options
        )
    if not torch.is_grad_enabled():
        from speechbrain_triton.ops.conv_module.launch import launch_module

        return launch_module(x, parameters, options)[0]
    return _ConvModule.apply(x, *parameters, options)


def run_conv_module_on_chunk(
    x: torch.Tensor,
    parameters: ConvModuleParameters,
    options: dict,
    left_context: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for the next chunk of a stream, without gradients.

    Arguments
    ---------
    x : torch.Tensor
        (B, T, C), the chunk.
    parameters : ConvModuleParameters
        Of any floating dtype.
    options : dict
        As for :func:`run_conv_module`.
    left_context : torch.Tensor, optional
        (B, L, C), what the depthwise convolution read before.

    Returns
    -------
    tuple of torch.Tensor
        The result and what the depthwise convolution read of x, (B, T, C).
    """
    from speechbrain_triton.ops.conv_module.launch import launch_module

    if left_context is not None:
        left_context = cast(left_context, options["dtype"])
    y, _, g, _ = launch_module(x, parameters, options, left_context)
    return y, g


class _ConvModule(torch.autograd.Function):
    # For backward are kept, beside x: the normalised x (C elements a frame),
    # the first linear layer's output h (2 C), the convolution's output u (C)
    # and the second linear layer's input z (C). In half precision that is
    # 10 C bytes a frame.
    @staticmethod
    def forward(ctx, x, *arguments):
        from speechbrain_triton.ops.conv_module.launch import launch_module

        *p, ctx.options = arguments
        y, kept, _, ctx.block = launch_module(
            x, ConvModuleParameters(*p), ctx.options
        )
        ctx.save_for_backward(x, *p, *kept)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, *saved = ctx.saved_tensors
        p = ConvModuleParameters(*saved[:-6])
        if torch.is_grad_enabled():
            grads = gradients_by_twin(
                lambda x, *p: conv_module_reference(
                    x, ConvModuleParameters(*p), **ctx.options
                ),
                (x, *p),
                ctx.needs_input_grad[:-1],
                dy,
            )
            return *grads, None
        if dy.numel() == 0:
            return *map(zeros_like, (x, *p)), None
        from speechbrain_triton.ops.conv_module.launch import (
            launch_module_grad,
        )

        with without_autocast(dy.device.type):
            grads = launch_module_grad(
                dy,
                x,
                p,
                saved[-6:],
                ctx.options["layer_norm_eps"],
                ctx.block,
                ConvModuleParameters(*ctx.needs_input_grad[1:-1]),
            )
        return *grads, None
