"""The kinds of module that have kernels: finding and switching them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from speechbrain.lobes.models.convolution import ConvolutionFrontEnd
from speechbrain.lobes.models.transformer.Conformer import (
    ConformerEncoderLayer,
    ConvolutionModule,
)
from torch import nn

from speechbrain_triton.backend import ON_CPU, triton_obstacle
from speechbrain_triton.modules.convolution import TritonConvolutionModule
from speechbrain_triton.modules.convolution_frontend import (
    TritonConvolutionFrontEnd,
)
from speechbrain_triton.modules.convolution_frontend_checks import (
    convolution_frontend_obstacle,
)
from speechbrain_triton.modules.coverage import module_obstacle
from speechbrain_triton.modules.encoder import TritonConformerEncoderLayer
from speechbrain_triton.modules.feedforward import (
    GEGLUFeedForward,
    feedforward_obstacle,
)
from speechbrain_triton.modules.frontend import FastConformerFrontEnd
from speechbrain_triton.modules.frontend_checks import frontend_obstacle

NamedModules = list[tuple[str, nn.Module]]


@dataclass
class KindReport:
    """What was done to one kind of module.

    Arguments
    ---------
    kind : str
        ``"conv"``, ``"frontend"`` or ``"ffn"``.
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
class Switchable:
    """A class of modules that have kernels.

    Arguments
    ---------
    module_class : type
        The class. One of this package's has the attribute ``backend``.
    obstacle : callable
        Says why the kernels do not cover a module, or None.
    triton_class : type, optional
        What a module of SpeechBrain's becomes when it is switched.
    """

    module_class: type[nn.Module]
    obstacle: Callable[[nn.Module], str | None]
    triton_class: type[nn.Module] | None = None

    def is_exact(self, module: nn.Module) -> bool:
        """Whether a module is of the very class, not of a subclass."""
        return type(module) in (self.module_class, self.triton_class)

    def switch(self, module: nn.Module, backend: str) -> None:
        """Let a module, which is as it was built, follow the flag."""
        if self.triton_class and type(module) is self.module_class:
            if backend == "torch":
                return
            module.__class__ = self.triton_class
        # None stands for SpeechBrain's class.
        module._backend_before = module.__dict__.get("backend")
        module.backend = backend

    def restore(self, module: nn.Module) -> bool:
        """Undo :meth:`switch`, if it was done to this module."""
        if "_backend_before" not in module.__dict__:
            return False
        module.backend = module.__dict__.pop("_backend_before")
        if module.backend is None:
            module.__class__ = self.module_class
            del module.backend
        return True


@dataclass
class Kind:
    """Modules that one flag switches.

    Arguments
    ---------
    flag : str
        The argument of ``apply_kernels``.
    classes : tuple of Switchable
        Theirs.
    hint : str
        A question to a user whose model has none of them.
    torch_path : str
        What the flag's value ``"torch"`` asks for, in words.
    """

    flag: str
    classes: tuple[Switchable, ...]
    hint: str
    torch_path: str

    def of(self, module: nn.Module) -> Switchable | None:
        """The class that a module is an instance of, if it is of the kind."""
        for switchable in self.classes:
            if isinstance(module, switchable.module_class):
                return switchable
        return None

    def plan(self, modules: NamedModules, backend: str) -> "Plan":
        """Find the modules, and change none.

        Arguments
        ---------
        modules : list of tuple
            All modules of the model, with their names.
        backend : str
            The flag's value, ``"auto"``, ``"triton"`` or ``"torch"``.

        Returns
        -------
        Plan
            What :meth:`apply` is to do.

        Raises
        ------
        ValueError
            If ``"triton"`` does not cover a module, or there is none.
        """
        plan = Plan(KindReport(self.flag, backend))
        left_alone = plan.report.left_alone
        for name, module in modules:
            switchable = self.of(module)
            if switchable is None:
                continue
            if not switchable.is_exact(module):
                left_alone[name] = f"its class {type(module).__name__}"
                continue
            obstacle = switchable.obstacle(module)
            if obstacle is None or backend == "torch":
                plan.covered.append((name, module))
            else:
                plan.uncovered.append(module)
                left_alone[name] = obstacle
        if backend == "triton":
            self._check(plan)
        return plan

    def _check(self, plan: "Plan") -> None:
        if plan.report.left_alone:
            name, obstacle = next(iter(plan.report.left_alone.items()))
            raise ValueError(
                f"{self.flag}='triton' does not cover {obstacle} "
                f"(module {name!r}); use 'auto' or 'torch'."
            )
        if not plan.covered:
            raise ValueError(
                f"{self.flag}='triton', but {self._nothing()}; {self.hint}"
            )

    def _nothing(self) -> str:
        names = " or ".join(s.module_class.__name__ for s in self.classes)
        return f"the model has no {names} to switch"

    def apply(self, plan: "Plan") -> KindReport:
        """Let the modules of a plan follow the flag."""
        report = plan.report
        # A layer may have been replaced in a module since it was switched.
        for module in plan.uncovered:
            self.restore(module)
        for name, module in plan.covered:
            self.restore(module)
            self.of(module).switch(module, report.requested)
            report.names.append(name)
        if plan.covered:
            report.path, report.reason = expected_path(
                report.requested, self.torch_path
            )
        else:
            report.reason = self._nothing()
        return report

    def restore(self, module: nn.Module) -> bool:
        """Undo what was done to a module, if it is of the kind."""
        switchable = self.of(module)
        return switchable is not None and switchable.restore(module)


@dataclass
class Plan:
    """What a flag will change: a report to fill, and the modules."""

    report: KindReport
    covered: NamedModules = field(default_factory=list)
    uncovered: list[nn.Module] = field(default_factory=list)


CONV = Kind(
    "conv",
    (Switchable(ConvolutionModule, module_obstacle, TritonConvolutionModule),),
    "is it the recipe's Transformer?",
    "SpeechBrain's own forward",
)
FRONTEND = Kind(
    "frontend",
    (
        Switchable(FastConformerFrontEnd, frontend_obstacle),
        Switchable(
            ConvolutionFrontEnd,
            convolution_frontend_obstacle,
            TritonConvolutionFrontEnd,
        ),
    ),
    "is the recipe's CNN one, and part of the model?",
    "the plain PyTorch path",
)
FFN = Kind(
    "ffn",
    (Switchable(GEGLUFeedForward, feedforward_obstacle),),
    "were its feed-forwards chosen (ffn: geglu) before its kernels?",
    "the plain PyTorch path",
)
KINDS = (CONV, FRONTEND, FFN)


def switch_layers(modules: Iterable[nn.Module]) -> None:
    """Let encoder layers stream as their convolution modules can."""
    for module in modules:
        restore_layer(module)
        if type(module) is ConformerEncoderLayer and isinstance(
            module.convolution_module, TritonConvolutionModule
        ):
            module.__class__ = TritonConformerEncoderLayer
            module._class_before = ConformerEncoderLayer


def restore_layer(module: nn.Module) -> None:
    """Undo :func:`switch_layers`, if it was done to this module."""
    if "_class_before" in module.__dict__:
        module.__class__ = module.__dict__.pop("_class_before")


def expected_path(
    backend: str, torch_path: str = "the torch path"
) -> tuple[str, str]:
    """Say which path a backend takes once a model is on this machine's device.

    Arguments
    ---------
    backend : str
        ``"auto"``, ``"triton"`` or ``"torch"``.
    torch_path : str
        What ``"torch"`` asks for, in words.

    Returns
    -------
    tuple of str
        ``"triton"``, ``"torch"`` or, where ``"triton"`` would raise, ``"no"``;
        and the reason, to be read after "because".

    Example
    -------
    >>> expected_path("torch")
    ('torch', 'the flag asks for the torch path')
    """
    if backend == "torch":
        return "torch", f"the flag asks for {torch_path}"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    obstacle = triton_obstacle(device)
    if device.type == "cpu" and (backend == "auto" or obstacle == ON_CPU):
        obstacle = "this machine has no GPU"
    if obstacle is not None:
        return "no" if backend == "triton" else "torch", obstacle
    name = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else "Triton's interpreter"
    )
    return "triton", f"the kernels run on {name}"
