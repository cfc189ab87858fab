"""Reflection padding: forward, backward, and how autograd finds them.

It is linear: each of padding and its transpose is the other's backward, and so
derivatives of any order are kernels too.
"""

import torch

from speechbrain_triton.ops.reflection_pad2d.reference import (
    reflection_pad2d_reference,
)


def run_reflection_pad2d(
    x: torch.Tensor, pad: tuple[int, int], dtype: torch.dtype
) -> torch.Tensor:
    """Run the kernels on arguments that are known to fit.

    ``torch.compile`` fuses the twin itself, with what is around it.

    Arguments
    ---------
    x : torch.Tensor
        (B, T, F, C).
    pad : tuple of int
        Frames and bins, less than T and F.
    dtype : torch.dtype
        Of the result.

    Returns
    -------
    torch.Tensor
        (B, T + 2 pad[0], F + 2 pad[1], C).
    """
    if torch.compiler.is_compiling():
        return reflection_pad2d_reference(x, pad, dtype=dtype)
    return _Reflect.apply(x, pad, dtype)


class _Reflect(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, pad, dtype):
        from speechbrain_triton.ops.reflection_pad2d import launch

        ctx.options = pad, x.dtype
        return launch.launch_reflect(x, pad, dtype)

    @staticmethod
    def backward(ctx, dy):
        return _ReflectGrad.apply(dy, *ctx.options), None, None


class _ReflectGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dy, pad, dtype):
        from speechbrain_triton.ops.reflection_pad2d import launch

        ctx.options = pad, dy.dtype
        return launch.launch_reflect_grad(dy, pad, dtype)

    @staticmethod
    def backward(ctx, ddx):
        return _Reflect.apply(ddx, *ctx.options), None, None
