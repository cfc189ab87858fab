"""What SpeechBrain's front end consists of, and what the kernels cover of it.

It is asked in every forward: see ``modules/coverage.py`` on why dictionaries
are read in place of attributes.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from speechbrain.lobes.models.convolution import ConvBlock, ConvolutionFrontEnd
from speechbrain.nnet.CNN import Conv2d
from speechbrain.nnet.containers import Sequential
from speechbrain.nnet.normalization import LayerNorm
from torch import nn

from speechbrain_triton.modules.coverage import layer_obstacle, weight_and_bias
from speechbrain_triton.ops.layer_norm.op import MAX_CHANNELS


class Layer(NamedTuple):
    """A convolution, and what stands behind it; the branches have no more.

    The Triton path calls neither the convolution nor the norm.
    """

    conv: Conv2d
    norm: LayerNorm | None
    activation: nn.Module | None = None
    dropout: nn.Dropout | None = None


class Block(NamedTuple):
    """A block's layers, its residual branch and the dropout behind both."""

    layers: list[Layer]
    branch: Layer | None
    dropout: nn.Dropout | None


def blocks_of(module: ConvolutionFrontEnd) -> Iterator[Block]:
    """The blocks of a front end of which nothing is an obstacle."""
    for block in module._modules.values():
        own = block._modules
        convs = own["convs"]._modules
        layers = [
            Layer(
                convs[f"conv_{i}"],
                convs.get(f"norm_{i}"),
                convs[f"act_{i}"],
                convs[f"dropout_{i}"],
            )
            for i in range(len(convs) // len(_parts(convs)))
        ]
        branch = own.get("reduce_conv")
        if branch is not None:
            branch = Layer(*branch._modules.values())
        yield Block(layers, branch, own.get("drop"))


def _parts(convs: dict[str, nn.Module]) -> tuple[str, ...]:
    if "norm_0" in convs:
        return "conv", "norm", "act", "dropout"
    return "conv", "act", "dropout"


def convolution_frontend_obstacle(module: ConvolutionFrontEnd) -> str | None:
    """Say what keeps SpeechBrain's front end from the Triton path, if anything.

    Its blocks, convolutions, layer norms and dropouts must be those that
    SpeechBrain built, without hooks: an adapter or a parametrization that was
    put in their place would be passed by. Activations are called where they
    have no kernel, and may be any.

    Arguments
    ---------
    module : ConvolutionFrontEnd
        SpeechBrain's front end, switched or not.

    Returns
    -------
    str or None
        The reason, or None where the Triton path covers the module.

    Example
    -------
    >>> from speechbrain.nnet.normalization import BatchNorm2d
    >>> frontend = ConvolutionFrontEnd((8, 10, 40), norm=BatchNorm2d)
    >>> convolution_frontend_obstacle(frontend)
    'a BatchNorm2d in place of convblock_0.convs.norm_0'
    """
    blocks = module._modules
    names = [f"convblock_{i}" for i in range(len(blocks))]
    if not names or list(blocks) != names:
        return "blocks other than SpeechBrain built"
    for name, block in blocks.items():
        if obstacle := _block_obstacle(name, block):
            return obstacle
    return None


def _block_obstacle(name: str, block: nn.Module) -> str | None:
    if obstacle := layer_obstacle(name, block, ConvBlock):
        return obstacle
    own = block._modules
    convs, branch = own.get("convs"), own.get("reduce_conv")
    if obstacle := layer_obstacle(f"{name}.convs", convs, Sequential):
        return obstacle
    parts = _parts(convs._modules)
    count = len(convs._modules) // len(parts)
    names = [f"{part}_{i}" for i in range(count) for part in parts]
    obstacle = _layers_obstacle(f"{name}.convs", convs, names)
    if obstacle or branch is None:
        return obstacle
    within = f"{name}.reduce_conv"
    return (
        layer_obstacle(within, branch, Sequential)
        or _layers_obstacle(within, branch, ["conv", "norm"])
        or layer_obstacle(f"{name}.drop", own.get("drop"), nn.Dropout)
    )


def _layers_obstacle(
    within: str, container: Sequential, names: list[str]
) -> str | None:
    layers = container._modules
    if not names or list(layers) != names:
        return f"layers of {within} other than SpeechBrain built"
    for name, layer in layers.items():
        check = _CHECKS.get(name.partition("_")[0])
        if check and (obstacle := check(f"{within}.{name}", layer)):
            return obstacle
    return None


def _conv_obstacle(name: str, conv: nn.Module) -> str | None:
    if obstacle := layer_obstacle(name, conv, Conv2d):
        return obstacle
    inner = conv._modules["conv"]
    if obstacle := layer_obstacle(f"{name}.conv", inner, nn.Conv2d):
        return obstacle
    if (
        conv.padding not in ("same", "causal", "valid")
        or conv.padding_mode != "reflect"
        or conv.max_norm is not None
        or conv.swap
        or conv.skip_transpose
        or inner.padding != (0, 0)
    ):
        return f"a {name} other than SpeechBrain built"
    if conv.unsqueeze and inner.out_channels == 1:
        return f"the 1 channel of {name}, which SpeechBrain takes away"
    return None


def _norm_obstacle(name: str, norm: nn.Module) -> str | None:
    if obstacle := layer_obstacle(name, norm, LayerNorm):
        return obstacle
    inner = norm._modules["norm"]
    if obstacle := layer_obstacle(f"{name}.norm", inner, nn.LayerNorm):
        return obstacle
    weight, bias = weight_and_bias(inner)
    if weight is None or bias is None:
        return f"a {name} without weight and bias"
    shape = inner.normalized_shape
    if len(shape) != 2:
        return f"a {name} that is not over features and channels"
    if math.prod(shape) > MAX_CHANNELS:
        return f"the size of {name}, {math.prod(shape)}, above {MAX_CHANNELS}"
    return None


def _dropout_obstacle(name: str, dropout: nn.Module) -> str | None:
    return layer_obstacle(name, dropout, nn.Dropout)


_CHECKS = {
    "conv": _conv_obstacle,
    "norm": _norm_obstacle,
    "dropout": _dropout_obstacle,
}
