"""What a front end refuses, and what its kernels do not cover.

What they cover is asked in every forward: see ``modules/coverage.py`` on why
dictionaries are read in place of attributes.
"""

import functools
from collections.abc import Callable, Iterator

import torch
from torch import nn

from speechbrain_triton.modules.coverage import layer_obstacle, weight_and_bias
from speechbrain_triton.modules.frontend_layers import (
    STRIDE,
    SeparableConv2d,
    StridedConv2d,
)

SUBSAMPLING = (4, 8)
MAX_TAPS = 5


def check_arguments(
    n_mels: int,
    subsampling: int,
    channels: int,
    kernel_size: int,
    activation: Callable[[], nn.Module],
    causal: bool,
) -> None:
    """Refuse what no front end can be made of."""
    sizes = {"n_mels": n_mels, "channels": channels, "kernel_size": kernel_size}
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise ValueError(f"{name}={size!r} is not a positive integer.")
    if kernel_size % 2 == 0:
        raise ValueError(
            f"kernel_size={kernel_size} is even; the front end takes odd ones."
        )
    if type(subsampling) is not int or subsampling not in SUBSAMPLING:
        raise ValueError(f"subsampling={subsampling!r} is not one of 4, 8.")
    if type(causal) is not bool:
        raise ValueError(f"causal={causal!r} is not one of True, False.")
    if not _makes_a_module(activation):
        raise ValueError(
            f"activation={activation!r} is not a class such as torch.nn.ReLU "
            "(in YAML: !name:torch.nn.ReLU)."
        )


def _makes_a_module(activation: Callable[[], nn.Module]) -> bool:
    if isinstance(activation, nn.Module) or not callable(activation):
        return False
    try:
        return isinstance(activation(), nn.Module)
    except TypeError:  # It wants arguments, as torch.relu does.
        return False


def check_call(
    x: torch.Tensor, lengths: torch.Tensor | None, n_mels: int
) -> None:
    """Refuse input that does not fit the front end."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x must be a tensor; got a {type(x).__name__}.")
    if x.ndim != 3:
        raise ValueError(
            "x must be (batch, frames, n_mels); got the shape "
            f"{tuple(x.shape)}."
        )
    if x.shape[2] != n_mels:
        raise ValueError(
            f"x has {x.shape[2]} features a frame; this front end was built "
            f"with n_mels={n_mels}."
        )
    if x.shape[1] == 0:
        raise ValueError("x has T=0 frames; the front end needs 1 or more.")
    if not x.is_floating_point():
        raise ValueError(f"x must be of a floating dtype; got {x.dtype}.")
    if lengths is None:
        return
    check_lengths(lengths)
    if lengths.shape[0] != x.shape[0]:
        raise ValueError(
            f"lengths has {lengths.shape[0]} entries for {x.shape[0]} "
            "utterances."
        )
    if lengths.device != x.device:
        raise ValueError(
            f"x is on {x.device} and lengths on {lengths.device}; both must "
            "be on one device."
        )


def check_lengths(lengths: torch.Tensor) -> None:
    """Refuse lengths that are not SpeechBrain's relative ones."""
    if not isinstance(lengths, torch.Tensor):
        raise TypeError(
            f"lengths must be a tensor; got a {type(lengths).__name__}."
        )
    if lengths.ndim != 1 or not lengths.is_floating_point():
        raise ValueError(
            "lengths must be (batch,) of a floating dtype, relative to the "
            f"longest; got {lengths.dtype} of shape {tuple(lengths.shape)}."
        )


def frontend_obstacle(module: nn.Module) -> str | None:
    """Say what keeps a front end from the Triton path, if anything.

    Besides shapes without kernels, the inner layers, which the Triton path
    does not call, must be those that the front end built, without hooks.

    Arguments
    ---------
    module : FastConformerFrontEnd
        The front end.

    Returns
    -------
    str or None
        The reason, or None where the Triton path covers the module.
    """
    modules = module._modules
    activation, blocks = modules["activation"], modules["blocks"]
    if type(activation) is not nn.ReLU:
        return f"the activation {type(activation).__name__}"
    if module.kernel_size > MAX_TAPS:
        return f"kernel_size {module.kernel_size}, above {MAX_TAPS}"
    if not (
        type(blocks) is nn.ModuleList
        and 2 ** (1 + len(blocks)) == module.subsampling
    ):
        return "blocks other than the front end built"
    # Of a cache torch.compile would warn.
    layers_built = _built if torch.compiler.is_compiling() else _cached_built
    built = layers_built(
        len(blocks), module.channels, module.kernel_size, module.causal
    )
    for (name, kind, layout), layer in zip(built, _inner(module), strict=True):
        if obstacle := layer_obstacle(name, layer, kind):
            return obstacle
        if layout is not None and _layout(layer) != layout:
            return f"a {name} other than the front end built"
    return None


def _inner(module: nn.Module) -> Iterator[nn.Module | None]:
    """The layers that the Triton path replaces; a block before what it has."""
    modules = module._modules
    yield modules["activation"]
    yield modules["conv"]
    for block in modules["blocks"]._modules.values():
        yield block
        yield block._modules.get("depthwise")
        yield block._modules.get("pointwise")


def _built(
    n_blocks: int, C: int, K: int, causal: bool
) -> tuple[tuple[str, type, tuple | None], ...]:
    """Name, class and layout of what a front end has, as _inner finds them."""
    half = (K - 1) // 2
    padding = 0 if causal else half, half
    strided = (STRIDE, STRIDE), padding, (1, 1), "zeros", False
    pointwise = (C, C, 1, 1), 1, (1, 1), (0, 0), (1, 1), "zeros", False
    layers = [
        ("activation", nn.ReLU, None),
        ("conv", StridedConv2d, ((C, 1, K, K), 1, *strided)),
    ]
    for name in (f"blocks.{n}" for n in range(n_blocks)):
        depthwise = (C, 1, K, K), C, *strided
        layers += [
            (name, SeparableConv2d, None),
            (f"{name}.depthwise", StridedConv2d, depthwise),
            (f"{name}.pointwise", nn.Conv2d, pointwise),
        ]
    return tuple(layers)


_cached_built = functools.cache(_built)


def _layout(conv: nn.Conv2d) -> tuple:
    weight, bias = weight_and_bias(conv)
    return (
        weight.shape,
        conv.groups,
        conv.stride,
        conv.padding,
        conv.dilation,
        conv.padding_mode,
        bias is None,
    )
