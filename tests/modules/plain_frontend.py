"""The front end in plain PyTorch layers, as the measure of ours."""

import copy

import torch
from torch import nn

from speechbrain_triton.modules import FastConformerFrontEnd


def plain(frontend):
    """The same layers, with the same parameters, on (B, 1, T, F)."""
    C, K = frontend.channels, frontend.kernel_size
    half = (K - 1) // 2
    before = K - 1 if frontend.causal else half
    behind = 0 if frontend.causal else half

    def strided(channels, groups):
        return (
            nn.ZeroPad2d((half, half, before, behind)),
            nn.Conv2d(channels, C, K, stride=2, groups=groups),
        )

    layers = [*strided(1, 1), nn.ReLU()]
    for _ in frontend.blocks:
        layers += [*strided(C, C), nn.Conv2d(C, C, 1), nn.ReLU()]
    model = nn.Sequential(*layers).to(frontend.conv.weight)
    with torch.no_grad():
        for ours, theirs in zip(
            frontend.parameters(), model.parameters(), strict=True
        ):
            theirs.copy_(ours)
    return model


def build(device="cpu", **options):
    """A front end with parameters that are large enough to matter."""
    frontend = FastConformerFrontEnd(**options).to(device)
    with torch.no_grad():
        for parameter in frontend.parameters():
            parameter.normal_(std=0.5)
    return frontend


def outcome(model, x, dy, *args):
    """Output and the gradients of the input and of every parameter."""
    x = x.detach().requires_grad_()
    y = model(x, *args)
    leaves = [x, *model.parameters()]
    grads = torch.autograd.grad(y, leaves, dy.to(y))
    names = [str(index) for index in range(len(grads))]
    return {"y": y.detach(), **dict(zip(names, grads, strict=True))}


class Plain(nn.Module):
    """The plain layers with our layout of input and output."""

    def __init__(self, frontend):
        super().__init__()
        self.layers = plain(frontend)

    def forward(self, x):
        return self.layers(x[:, None]).permute(0, 2, 3, 1).contiguous()

    def exact(self):
        return copy.deepcopy(self).double()
