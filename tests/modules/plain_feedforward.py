"""Plain layers as the measure of the gated feed-forward."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from speechbrain_triton.modules import GEGLUFeedForward

D, D_FFN = 24, 40


class Plain(nn.Module):
    """Three plain linear layers with the parameters of a feed-forward."""

    def __init__(self, feedforward):
        super().__init__()
        self.approximate = feedforward.approximate
        state = {k: v.detach() for k, v in feedforward.named_parameters()}
        self.first, self.second = (
            self._linear(weight, bias)
            for weight, bias in zip(
                state["linear_in.weight"].chunk(2),
                state["linear_in.bias"].chunk(2),
                strict=True,
            )
        )
        self.out = self._linear(
            state["linear_out.weight"], state["linear_out.bias"]
        )

    @staticmethod
    def _linear(weight, bias):
        linear = nn.Linear(*weight.shape[::-1]).to(weight)
        linear.weight = nn.Parameter(weight.clone())
        linear.bias = nn.Parameter(bias.clone())
        return linear

    def forward(self, x):
        gate = F.gelu(self.second(x), approximate=self.approximate)
        return self.out(self.first(x) * gate)

    def exact(self):
        return copy.deepcopy(self).double()

    def gradients(self, by_name):
        """Gradients under the names of the feed-forward's parameters."""
        halves = [by_name.pop(f"{half}.weight") for half in ("first", "second")]
        by_name["linear_in.weight"] = torch.cat(halves)
        halves = [by_name.pop(f"{half}.bias") for half in ("first", "second")]
        by_name["linear_in.bias"] = torch.cat(halves)
        for name in ("weight", "bias"):
            by_name[f"linear_out.{name}"] = by_name.pop(f"out.{name}")
        return by_name


def build(device="cpu", **options):
    """A feed-forward with parameters that are large enough to matter."""
    feedforward = GEGLUFeedForward(
        **{"d_ffn": D_FFN, "input_size": D, **options}
    )
    with torch.no_grad():
        for parameter in feedforward.parameters():
            parameter.normal_(std=0.3)
    return feedforward.to(device)


def outcome(model, x, dy):
    """Output and the gradients of the input and of every parameter."""
    x = x.detach().requires_grad_()
    y = model(x)
    leaves = {"x": x, **dict(model.named_parameters())}
    grads = torch.autograd.grad(y, list(leaves.values()), dy.to(y))
    found = {"y": y.detach(), **dict(zip(leaves, grads, strict=True))}
    return model.gradients(found) if isinstance(model, Plain) else found
