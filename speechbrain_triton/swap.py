"""Switch a model's modules to this package's kernels, and back."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from speechbrain_triton.backend import BACKENDS, check_choice
from speechbrain_triton.kinds import (
    CONV,
    FRONTEND,
    KINDS,
    KindReport,
    restore_layer,
    switch_layers,
)

logger = logging.getLogger(__name__)

Model = nn.Module | Mapping | list | tuple


@dataclass
class SwapReport:
    """What :func:`apply_kernels` did, a :class:`KindReport` for each kind."""

    conv: KindReport
    frontend: KindReport

    def lines(self) -> list[str]:
        """A line for each kind; none for front ends where there are none."""
        kinds = [self.conv]
        if self.frontend.names or self.frontend.left_alone:
            kinds.append(self.frontend)
        return [str(kind) for kind in kinds]

    def __str__(self) -> str:
        return " ".join(self.lines())


def apply_kernels(
    model: Model,
    conv: str = "auto",
    frontend: str = "auto",
    ffn: str = "auto",
    loss: None = None,
) -> SwapReport:
    """Switch the kernels on in one model, in place.

    Modules keep their identity: the very same objects, parameters, hooks and
    training mode; a ``ConvolutionModule`` gets another class. Calling it
    again only changes the flags. A line for each kind of module says what was
    done, through logging, or on stderr while logging is not configured.

    Arguments
    ---------
    model : torch.nn.Module, or a dict, list or tuple of them
        The model, for instance a recipe's ``Transformer`` or ``modules``, or
        a list of its ``CNN`` and its ``Transformer``.
    conv : str
        Backend of every SpeechBrain ``ConvolutionModule``: ``"auto"``,
        ``"triton"`` or ``"torch"`` (SpeechBrain's own forward). Subclasses
        of it are left alone.
    frontend : str
        Backend of every ``FastConformerFrontEnd``: ``"auto"``, ``"triton"``
        or ``"torch"`` (plain PyTorch). Subclasses of it are left alone.
    ffn : str
        ``"auto"`` or ``"torch"``: no feed-forward kernel exists yet.
    loss : None
        No loss kernel exists yet.

    Returns
    -------
    SwapReport
        The modules changed and those left alone, with reasons.

    Raises
    ------
    ValueError
        For an unknown flag value, or if ``"triton"`` does not cover one of
        the flag's modules or finds none. Nothing is changed then.
    TypeError
        If ``model`` holds no module.

    Example
    -------
    >>> from speechbrain.lobes.models.transformer import Conformer
    >>> module = Conformer.ConvolutionModule(64, kernel_size=15)
    >>> apply_kernels(module, conv="auto").conv.names
    ['']
    >>> type(module).__name__
    'TritonConvolutionModule'
    >>> restore(module)
    1
    """
    check_choice("conv", conv, BACKENDS)
    check_choice("frontend", frontend, BACKENDS)
    check_choice("ffn", ffn, ("auto", "torch"))
    if loss is not None:
        raise ValueError(f"loss={loss!r} is not one of None.")
    modules = list(_named_modules(model))
    # Both before the first change: a flag may be refused.
    plans = CONV.plan(modules, conv), FRONTEND.plan(modules, frontend)
    report = SwapReport(
        conv=CONV.apply(plans[0]), frontend=FRONTEND.apply(plans[1])
    )
    switch_layers(module for _, module in modules)
    for line in report.lines():
        _announce(line)
    return report


def restore(model: Model) -> int:
    """Undo :func:`apply_kernels`: classes and backends are what they were.

    Arguments
    ---------
    model : torch.nn.Module, or a dict, list or tuple of them
        What was passed to :func:`apply_kernels`, or a part of it.

    Returns
    -------
    int
        How many modules were restored.

    Raises
    ------
    TypeError
        If ``model`` holds no module.
    """
    restored = 0
    for _, module in _named_modules(model):
        restored += any(
            kind.restore(module)
            for kind in KINDS
            if isinstance(module, kind.module_class)
        )
        restore_layer(module)
    return restored


def _named_modules(model: Model) -> Iterator[tuple[str, nn.Module]]:
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


def _announce(message: str) -> None:
    """Log, or print: a YAML is loaded before a recipe configures logging."""
    if os.environ.get("RANK", "0") != "0":
        return
    if logging.getLogger().hasHandlers():
        logger.info(message)
    else:
        print(f"speechbrain_triton: {message}", file=sys.stderr)
