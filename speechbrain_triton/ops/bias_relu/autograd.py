"""The bias with ReLU: forward, backward, and how autograd finds them."""

import torch

from speechbrain_triton.ops.bias_relu.reference import bias_relu_reference
from speechbrain_triton.ops.twin import gradients_by_twin


def run_bias_relu(
    x: torch.Tensor, bias: torch.Tensor, lengths: torch.Tensor | None
) -> torch.Tensor:
    """Run the kernels on arguments that are known to fit.

    ``torch.compile`` fuses the twin itself, with what is around it.

    Arguments
    ---------
    x : torch.Tensor
        (B, T, F, C).
    bias : torch.Tensor
        (C,), of any floating dtype.
    lengths : torch.Tensor, optional
        (B,).

    Returns
    -------
    torch.Tensor
        Of x's shape and dtype.
    """
    if torch.compiler.is_compiling():
        return _twin(x, bias, lengths)
    if not torch.is_grad_enabled():
        from speechbrain_triton.ops.bias_relu import launch

        return launch.launch_bias_relu(x, bias, lengths)
    return _BiasReLU.apply(x, bias, lengths)


def _twin(x, bias, lengths):
    return bias_relu_reference(x, bias.to(x.dtype), lengths)


class _BiasReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, lengths):
        from speechbrain_triton.ops.bias_relu import launch

        y = launch.launch_bias_relu(x, bias, lengths)
        ctx.save_for_backward(y, bias)
        return y

    @staticmethod
    def backward(ctx, dy):
        from speechbrain_triton.ops.bias_relu import launch
        from speechbrain_triton.ops.reduction import ColumnSums

        y, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Where y is zero stays so: y stands for x + bias.
            inputs = y, torch.zeros_like(bias).requires_grad_()
            needed = ctx.needs_input_grad[:2]
            grads = gradients_by_twin(
                lambda y, bias: _twin(y, bias, None), inputs, needed, dy
            )
            return *grads, None
        if y.numel() == 0:
            return torch.zeros_like(y), torch.zeros_like(bias), None
        C = y.shape[3]
        sums = ColumnSums(y.numel() // C, C, y.device)
        dx = launch.launch_bias_relu_grad(dy, y, sums)
        return dx, sums.total().to(bias.dtype), None
