"""What a front end says of a checkpoint of another architecture."""

from collections.abc import Mapping

import torch
from torch import nn

KEY = "give the YAML's key CNN"


class ExplainedKey(str):
    """A missing or unexpected key that torch prints with the reason.

    torch tells no module whether it loads strictly: a module can only raise
    always, or let the list of keys, which a strict load alone prints, speak.

    Arguments
    ---------
    key : str
        The key; to programs it is nothing else.
    reason : str
        A sentence.
    """

    def __new__(cls, key: str, reason: str = ""):
        self = super().__new__(cls, key)
        self.reason = reason
        return self

    def __format__(self, spec: str) -> str:
        return f"{str(self)} ({self.reason})"


def size_obstacle(
    module: nn.Module, state_dict: Mapping, prefix: str
) -> str | None:
    """Say that a checkpoint's front end has other sizes, if it has.

    Arguments
    ---------
    module : FastConformerFrontEnd
        The front end that loads it.
    state_dict : mapping
        The checkpoint, maybe of a whole model.
    prefix : str
        Begins the names of the front end in it.

    Returns
    -------
    str or None
        A sentence; None where all shapes fit.
    """
    saved, own = _shapes(state_dict, prefix), _own_shapes(module)
    shared = saved.keys() & own.keys()
    if all(saved[name] == own[name] for name in shared):
        return None
    return _two_front_ends(saved, own)


def names_obstacle(
    module: nn.Module, state_dict: Mapping, prefix: str
) -> str | None:
    """Say that a checkpoint has another front end, by its names, if it has.

    Arguments and result are those of :func:`size_obstacle`.
    """
    saved, own = _shapes(state_dict, prefix), _own_shapes(module)
    if saved and not saved.keys() & own.keys():
        what = "another front end"
        if any(name.startswith("convblock_") for name in saved):
            what = "SpeechBrain's ConvolutionFrontEnd"
        return (
            f"the checkpoint holds {what} and not a FastConformerFrontEnd: "
            f"{KEY} the front end that was trained, or train anew"
        )
    if _blocks(saved) not in (set(), _blocks(own)):
        return _two_front_ends(saved, own)
    return None


def _shapes(state_dict: Mapping, prefix: str) -> dict[str, tuple]:
    return {
        name.removeprefix(prefix): tuple(value.shape)
        for name, value in state_dict.items()
        if name.startswith(prefix) and isinstance(value, torch.Tensor)
    }


def _own_shapes(module: nn.Module) -> dict[str, tuple]:
    return {name: tuple(p.shape) for name, p in module.named_parameters()}


def _blocks(shapes: Mapping[str, tuple]) -> set[str]:
    return {n.split(".")[1] for n in shapes if n.startswith("blocks.")}


def _two_front_ends(saved: Mapping, own: Mapping) -> str:
    return (
        f"the checkpoint's front end has {_describe(saved)}, and this one has "
        f"{_describe(own)}: {KEY} the values of the checkpoint, or train anew"
    )


def _describe(shapes: Mapping[str, tuple]) -> str:
    """Read a front end's arguments off its parameters."""
    C, *_, K = shapes.get("conv.weight") or "??"
    return (
        f"channels={C}, kernel_size={K}, "
        f"subsampling={2 ** (1 + len(_blocks(shapes)))}"
    )
