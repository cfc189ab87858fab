"""The convolution module's kernels and matmuls, forward and backward.

Between the matmuls tensors are kept as rows (B T, C), as the matmuls take them:
each view that this spares costs the host as much as an allocation.
"""

import torch
import torch.nn.functional as F

from speechbrain_triton.ops.casts import cast, like, matmul
from speechbrain_triton.ops.conv_block.launch import (
    BlockOptions,
    BlockParameters,
    launch_block,
    launch_block_grad,
)
from speechbrain_triton.ops.conv_module.reference import ConvModuleParameters
from speechbrain_triton.ops.depthwise_conv1d.geometry import geometry_of
from speechbrain_triton.ops.layer_norm.launch import (
    launch_layer_norm,
    launch_layer_norm_grad,
)
from speechbrain_triton.ops.reduction import ColumnSums


def launch_module(
    x: torch.Tensor,
    p: ConvModuleParameters,
    options: dict,
    left_context: torch.Tensor | None = None,
) -> tuple[torch.Tensor, tuple, torch.Tensor, BlockOptions]:
    """Run the module.

    Arguments
    ---------
    x : torch.Tensor
        (B, T, C).
    p : ConvModuleParameters
        As they are.
    options : dict
        The keyword arguments of ``conv_module_reference``, all of them.
    left_context : torch.Tensor, optional
        (B, L, C), the gated frames before x, in the dtype among the options.

    Returns
    -------
    y : torch.Tensor
        (B, T, C).
    kept : tuple of torch.Tensor
        What backward reads again: the normalised x, the first linear layer's
        output h, the convolution's output u, the second linear layer's input
        z, and the weights of the two in the matmuls' dtype.
    g : torch.Tensor
        (B, T, C), what the depthwise convolution read of x.
    block : BlockOptions
        For backward.
    """
    dtype = options["dtype"]
    B, T, C = x.shape
    n = launch_layer_norm(
        x,
        p.layer_norm_weight,
        p.layer_norm_bias,
        options["layer_norm_eps"],
        "none",
        dtype,
        (B * T, C),
    )
    first = cast(p.bottleneck_weight.squeeze(-1), dtype)
    second = cast(p.linear_weight, dtype)
    block = BlockOptions(
        geometry_of(
            T,
            p.conv_weight.shape[2],
            options["padding"],
            options["chunk_size"],
        ),
        options["norm_eps"],
        options["activation"],
    )
    h = F.linear(n, first)
    z, u, g = launch_block(h, B, _block_parameters(p), block, left_context)
    bias = cast(p.linear_bias, dtype)
    # Not by a view of the rows: the host masks the result in place.
    y = F.linear(z, second, bias).resize_(B, T, C)
    return y, (n, h, u, z, first, second), g, block


def launch_module_grad(
    dy: torch.Tensor,
    x: torch.Tensor,
    p: ConvModuleParameters,
    kept: tuple,
    layer_norm_eps: float,
    block: BlockOptions,
    needs: ConvModuleParameters,
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of x and of every parameter.

    Arguments
    ---------
    dy : torch.Tensor
        (B, T, C), not empty.
    x, p, kept, layer_norm_eps, block
        As in and from forward.
    needs : ConvModuleParameters
        Of bool: for which parameters a gradient is wanted. Only those are
        left out, as None, whose gradient takes a launch of its own.

    Returns
    -------
    tuple of torch.Tensor or None
        In the order of forward's inputs, in their shapes and dtypes.
    """
    n, h, u, z, first, second = kept
    B, T, C = x.shape
    dy = dy.contiguous().view(-1, C)
    sums = ColumnSums(B * T, 7 * C, x.device)
    dsecond = dfirst = None
    if needs.linear_weight:
        dsecond = matmul(dy.t(), z, p.linear_weight.dtype)
    dh, dweight, dbias = launch_block_grad(
        torch.mm(dy, second),
        h,
        u,
        _block_parameters(p),
        block,
        sums,
        column=2 * C,
        extra=dy,
        convolution=needs.conv_weight or needs.conv_bias,
    )
    if needs.bottleneck_weight:
        dfirst = matmul(dh.t(), n, p.bottleneck_weight.dtype).unsqueeze(-1)
    dx = launch_layer_norm_grad(
        x,
        p.layer_norm_weight,
        p.layer_norm_bias,
        torch.mm(dh, first),
        layer_norm_eps,
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


def _block_parameters(p: ConvModuleParameters) -> BlockParameters:
    return BlockParameters(
        p.conv_weight,
        p.conv_bias,
        p.norm_weight,
        p.norm_bias,
        p.bottleneck_bias,
    )
