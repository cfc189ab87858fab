"""The convolution module: forward, backward, and how autograd finds them.

One autograd function for the whole module, since on a fast GPU the host's time
counts: every function of its own costs about 20 us a step, and every launch
10. So the two linear layers are here too, and all sums over rows (gradients of
biases and of the layer norms) share one launch at the end.
"""

from contextlib import nullcontext

import torch

from speechbrain_triton.ops.conv_block.autograd import (
    block_options,
    cast,
    like,
    run_conv_block,
    zeros_like,
)
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
        return _forward(x, parameters, options)[0]
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
    if left_context is not None:
        left_context = cast(left_context, options["dtype"])
    y, (*_, g) = _forward(x, parameters, options, left_context, chunk=True)
    return y, g


def _forward(x, p, options, left_context=None, chunk=False):
    """The result; and the normalised x, h, u, z, casted weights and g.

    g is kept only of a chunk of a stream.
    """
    from speechbrain_triton.ops.conv_block.launch import launch_block
    from speechbrain_triton.ops.layer_norm.launch import launch_layer_norm

    dtype = options["dtype"]
    n = launch_layer_norm(
        x,
        p.layer_norm_weight,
        p.layer_norm_bias,
        options["layer_norm_eps"],
        "none",
        dtype,
    )
    first = cast(p.bottleneck_weight.squeeze(-1), dtype)
    second = cast(p.linear_weight, dtype)
    B, T, C = x.shape
    h = torch.mm(n.view(-1, C), first.t()).view(B, T, 2 * C)
    z, u, g = launch_block(
        h, _block_parameters(p), _block_options(x, p, options), left_context
    )
    if not chunk:
        g = None
    # Not by F.linear, which returns a view: the host masks in place.
    y = torch.empty_like(z)
    y_rows, z_rows = y.view(-1, C), z.view(-1, C)
    if p.linear_bias is None:
        torch.mm(z_rows, second.t(), out=y_rows)
    else:
        bias = cast(p.linear_bias, dtype)
        torch.addmm(bias, z_rows, second.t(), out=y_rows)
    return y, (n, h, u, z, first, second, g)


class _ConvModule(torch.autograd.Function):
    # For backward are kept, beside x: the normalised x (C elements a frame),
    # the first linear layer's output h (2 C), the convolution's output u (C)
    # and the second linear layer's input z (C). In half precision that is
    # 10 C bytes a frame.
    @staticmethod
    def forward(ctx, x, *arguments):
        *p, ctx.options = arguments
        y, (*kept, _) = _forward(x, ConvModuleParameters(*p), ctx.options)
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
        with _without_autocast(dy.device.type):
            return *_gradients(ctx, dy, x, p, *saved[-6:]), None


def _gradients(ctx, dy, x, p, n, h, u, z, first, second):
    from speechbrain_triton.ops.conv_block.launch import launch_block_grad
    from speechbrain_triton.ops.layer_norm.launch import launch_layer_norm_grad
    from speechbrain_triton.ops.reduction import ColumnSums

    needs = ConvModuleParameters(*ctx.needs_input_grad[1:-1])
    B, T, C = x.shape
    dy = dy.contiguous()
    dy_rows = dy.view(-1, C)
    sums = ColumnSums(B * T, 7 * C, x.device)
    dsecond = dfirst = None
    if needs.linear_weight:
        dsecond = _matmul(dy_rows.t(), z.view(-1, C), p.linear_weight.dtype)
    dh, dweight, dbias = launch_block_grad(
        torch.mm(dy_rows, second).view(dy.shape),
        h,
        u,
        _block_parameters(p),
        _block_options(x, p, ctx.options),
        sums,
        column=2 * C,
        extra=dy,
        convolution=needs.conv_weight or needs.conv_bias,
    )
    dh_rows = dh.view(-1, 2 * C)
    if needs.bottleneck_weight:
        dfirst = _matmul(dh_rows.t(), n.view(-1, C), p.bottleneck_weight.dtype)
        dfirst = dfirst.view(p.bottleneck_weight.shape)
    dx = launch_layer_norm_grad(
        x,
        p.layer_norm_weight,
        p.layer_norm_bias,
        torch.mm(dh_rows, first).view(x.shape),
        ctx.options["layer_norm_eps"],
        "none",
        sums,
    )
    parts = sums.total().split((C, C, 2 * C, C, C, C))
    return (
        dx,
        like(p.layer_norm_weight, parts[0]),
        like(p.layer_norm_bias, parts[1]),
        dfirst,
        like(p.bottleneck_bias, parts[2]),
        dweight,
        dbias,
        like(p.norm_weight, parts[3]),
        like(p.norm_bias, parts[4]),
        dsecond,
        like(p.linear_bias, parts[5]),
    )


def _block_options(x, p, options):
    return block_options(
        x.shape[1],
        p.conv_weight.shape[2],
        options["norm_eps"],
        options["activation"],
        options["padding"],
        options["chunk_size"],
    )


def _block_parameters(p: ConvModuleParameters):
    from speechbrain_triton.ops.conv_block.launch import BlockParameters

    return BlockParameters(
        p.conv_weight,
        p.conv_bias,
        p.norm_weight,
        p.norm_bias,
        p.bottleneck_bias,
    )


def _matmul(
    a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """a @ b, rounded once to dtype."""
    if dtype is torch.float32 and a.dtype is not dtype and _mixed_matmul(a):
        return torch.mm(a, b, out_dtype=dtype)
    return cast(torch.mm(a, b), dtype)


def _mixed_matmul(a: torch.Tensor) -> bool:
    # PyTorch has matmuls from half precision to float32 only for CUDA.
    return a.device.type == "cuda" and torch.version.hip is None


def _without_autocast(device_type: str):
    # Backward may be called under another autocast than forward ran under.
    if torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()
