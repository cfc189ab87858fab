"""Switch a model's modules to this package's kernels, and back."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from speechbrain.lobes.models.transformer.Conformer import (
    ConformerEncoderLayer,
    ConvolutionModule,
)
from torch import nn

from speechbrain_triton.backend import (
    BACKENDS,
    ON_CPU,
    check_choice,
    triton_obstacle,
)
from speechbrain_triton.modules.convolution import TritonConvolutionModule
from speechbrain_triton.modules.coverage import module_obstacle
from speechbrain_triton.modules.encoder import TritonConformerEncoderLayer

logger = logging.getLogger(__name__)

Model = nn.Module | Mapping | list | tuple


@dataclass
class KindReport:
    """What was done to one kind of module.

    Arguments
    ---------
    kind : str
        ``"conv"``.
    requested : str
        The flag's value.
    names : list of str
        The modules that now follow the flag.
    left_alone : dict
        Name to reason, for the modules that the kernels do not cover.
    path : str
        ``"triton"``, ``"torch"`` or ``"no"`` (calls will raise): what would
        run on this machine's device.
    reason : str
        Why.
    """

    kind: str
    requested: str
    names: list[str] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)
    path: str = "torch"
    reason: str = ""

    def __str__(self) -> str:
        count = len(self.names)
        line = (
            f"{self.kind}={self.requested}: {count} "
            f"module{'' if count == 1 else 's'}, "
            f"{self.path} path, because {self.reason}"
        )
        for name, reason in self.left_alone.items():
            line += f"; {name or 'the model'} is left alone for {reason}"
        return line + "."


@dataclass
class SwapReport:
    """What :func:`apply_kernels` did, a :class:`KindReport` for each kind."""

    conv: KindReport

    def __str__(self) -> str:
        return str(self.conv)


def apply_kernels(
    model: Model,
    conv: str = "auto",
    frontend: str = "auto",
    ffn: str = "auto",
    loss: None = None,
) -> SwapReport:
    """Switch the kernels on in one model, in place.

    Modules keep their identity: the very same objects, parameters, hooks and
    training mode, under another class. Calling it again only changes the
    flags. One line says what was done, through logging, or on stderr while
    logging is not configured.

    Arguments
    ---------
    model : torch.nn.Module, or a dict, list or tuple of them
        The model, for instance a recipe's ``Transformer`` or ``modules``.
    conv : str
        Backend of every SpeechBrain ``ConvolutionModule``: ``"auto"``,
        ``"triton"`` or ``"torch"`` (SpeechBrain's own forward). Subclasses
        of it are left alone.
    frontend : str
        ``"auto"`` or ``"torch"``: no front-end kernel exists yet.
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
        For an unknown flag value, or if ``conv="triton"`` does not cover one
        of the modules or finds none. Nothing is changed then.
    TypeError
        If ``model`` holds no module.

    Example
    -------
    >>> module = ConvolutionModule(64, kernel_size=15)
    >>> apply_kernels(module, conv="auto").conv.names
    ['']
    >>> type(module).__name__
    'TritonConvolutionModule'
    >>> restore(module)
    1
    """
    check_choice("conv", conv, BACKENDS)
    check_choice("frontend", frontend, ("auto", "torch"))
    check_choice("ffn", ffn, ("auto", "torch"))
    if loss is not None:
        raise ValueError(f"loss={loss!r} is not one of None.")
    report = SwapReport(conv=_swap_convolutions(model, conv))
    _announce(str(report))
    return report


def restore(model: Model) -> int:
    """Give every module that :func:`apply_kernels` changed its class back.

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
        restored += _restore_convolution(module)
        _restore_layer(module)
    return restored


def _swap_convolutions(model: Model, conv: str) -> KindReport:
    report = KindReport("conv", conv)
    covered, uncovered = [], []
    for name, module in _named_modules(model):
        if type(module) not in (ConvolutionModule, TritonConvolutionModule):
            if isinstance(module, ConvolutionModule):
                report.left_alone[name] = f"its class {type(module).__name__}"
            continue
        obstacle = module_obstacle(module)
        if obstacle is None or conv == "torch":
            covered.append((name, module))
        else:
            uncovered.append(module)
            report.left_alone[name] = obstacle

    if conv == "triton" and not (covered or report.left_alone):
        raise ValueError(
            "conv='triton', but the model has no ConvolutionModule to switch; "
            "is it the recipe's Transformer?"
        )
    if conv == "triton" and report.left_alone:
        name, obstacle = next(iter(report.left_alone.items()))
        raise ValueError(
            f"conv='triton' does not cover {obstacle} "
            f"(module {name!r}); use 'auto' or 'torch'."
        )
    # An adapter may have been put into a module since it was switched.
    for module in uncovered:
        _restore_convolution(module)
    for name, module in covered:
        _switch_convolution(module, conv)
        report.names.append(name)
    for _, module in _named_modules(model):
        _switch_layer(module)
    if covered:
        report.path, report.reason = expected_path(conv)
    else:
        report.reason = "the model has no ConvolutionModule to switch"
    return report


def _switch_convolution(module: ConvolutionModule, conv: str) -> None:
    _restore_convolution(module)
    if type(module) is ConvolutionModule:
        if conv == "torch":
            return
        module.__class__ = TritonConvolutionModule
    # What restore brings back; None stands for SpeechBrain's class.
    module._backend_before = module.__dict__.get("backend")
    module.backend = conv


def _restore_convolution(module: nn.Module) -> bool:
    if "_backend_before" not in module.__dict__:
        return False
    before = module.__dict__.pop("_backend_before")
    if before is None:
        module.__class__ = ConvolutionModule
        del module.backend
    else:
        module.backend = before
    return True


def _switch_layer(module: nn.Module) -> None:
    """Let an encoder layer stream as its convolution module can."""
    _restore_layer(module)
    if type(module) is ConformerEncoderLayer and isinstance(
        module.convolution_module, TritonConvolutionModule
    ):
        module.__class__ = TritonConformerEncoderLayer
        module._class_before = ConformerEncoderLayer


def _restore_layer(module: nn.Module) -> None:
    if "_class_before" in module.__dict__:
        module.__class__ = module.__dict__.pop("_class_before")


def expected_path(conv: str) -> tuple[str, str]:
    """Say which path a backend takes once a model is on this machine's device.

    Arguments
    ---------
    conv : str
        ``"auto"``, ``"triton"`` or ``"torch"``.

    Returns
    -------
    tuple of str
        ``"triton"``, ``"torch"`` or, where ``"triton"`` would raise, ``"no"``;
        and the reason, to be read after "because".

    Example
    -------
    >>> expected_path("torch")
    ('torch', "the flag asks for SpeechBrain's own forward")
    """
    if conv == "torch":
        return "torch", "the flag asks for SpeechBrain's own forward"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    obstacle = triton_obstacle(device)
    if device.type == "cpu" and (conv == "auto" or obstacle == ON_CPU):
        obstacle = "this machine has no GPU"
    if obstacle is not None:
        return "no" if conv == "triton" else "torch", obstacle
    name = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else "Triton's interpreter"
    )
    return "triton", f"the kernels run on {name}"


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
