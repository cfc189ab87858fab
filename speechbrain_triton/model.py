"""Models as callers hand them in: finding modules, and saying what was done."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping

from torch import nn

logger = logging.getLogger(__name__)

Model = nn.Module | Mapping | list | tuple


def named_modules(model: Model) -> Iterator[tuple[str, nn.Module]]:
    """Find all modules of a model, each once.

    Arguments
    ---------
    model : torch.nn.Module, or a dict, list or tuple of them
        What else a container holds is passed by.

    Yields
    ------
    tuple
        Name and module.

    Raises
    ------
    TypeError
        If ``model`` holds no module.

    Example
    -------
    >>> [name for name, _ in named_modules({"out": nn.Linear(1, 1), "lr": 1})]
    ['out']
    """
    if isinstance(model, nn.Module):
        roots = [("", model)]
    elif isinstance(model, Mapping):
        roots = [(str(name), root) for name, root in model.items()]
    elif isinstance(model, list | tuple):
        roots = [(str(index), root) for index, root in enumerate(model)]
    else:
        roots = []
    roots = [
        (name, root) for name, root in roots if isinstance(root, nn.Module)
    ]
    if not roots:
        raise TypeError(
            f"model must be a torch.nn.Module, or a dict, list or tuple with "
            f"at least one; got {type(model).__name__}."
        )
    seen: set[nn.Module] = set()
    for name, root in roots:
        yield from root.named_modules(memo=seen, prefix=name)


def announce(message: str) -> None:
    """Log, or print: a YAML is loaded before a recipe configures logging."""
    if os.environ.get("RANK", "0") != "0":
        return
    if logging.getLogger().hasHandlers():
        logger.info(message)
    else:
        print(f"speechbrain_triton: {message}", file=sys.stderr)
