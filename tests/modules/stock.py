"""SpeechBrain's own module as the measure of ours."""

import copy

import torch
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule

from speechbrain_triton.modules import TritonConvolutionModule


def pair(*args, device, backend="triton", **kwargs):
    """SpeechBrain's module and ours, with the same random parameters."""
    stock = ConvolutionModule(*args, **kwargs).to(device)
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.normal_(std=0.5)
    ours = TritonConvolutionModule(*args, backend=backend, **kwargs)
    ours.load_state_dict(stock.state_dict(), strict=True)
    return stock, ours.to(device)


def outcome(module, x, dy, *args):
    """Output and the gradients of the input and of every parameter."""
    x = x.detach().requires_grad_()
    y = module(x, *args)
    leaves = {"x": x, **dict(module.named_parameters())}
    grads = torch.autograd.grad(y, list(leaves.values()), dy.to(y))
    return {"y": y.detach(), **dict(zip(leaves, grads, strict=True))}


def exact_outcome(stock, x, dy, *args):
    """The same in float64."""
    return outcome(
        copy.deepcopy(stock).double(), x.double(), dy.double(), *args
    )
