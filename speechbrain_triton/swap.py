"""Switch a model's modules to this package's kernels, and back."""

from dataclasses import dataclass

from speechbrain_triton.backend import BACKENDS, check_choice
from speechbrain_triton.kinds import (
    KINDS,
    KindReport,
    restore_layer,
    switch_layers,
)
from speechbrain_triton.model import Model, announce, named_modules


@dataclass
class SwapReport:
    """What :func:`apply_kernels` did, a :class:`KindReport` for each kind."""

    conv: KindReport
    frontend: KindReport
    ffn: KindReport

    def lines(self) -> list[str]:
        """A line for each kind; none for other architectures' kinds."""
        kinds = [self.conv]
        for kind in (self.frontend, self.ffn):
            if kind.names or kind.left_alone:
                kinds.append(kind)
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
    training mode; a module of SpeechBrain's gets another class. Calling it
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
        Backend of every ``FastConformerFrontEnd`` and every
        ``ConvolutionFrontEnd`` of SpeechBrain: ``"auto"``, ``"triton"`` or
        ``"torch"`` (plain PyTorch; SpeechBrain's own forward). Subclasses of
        them are left alone.
    ffn : str
        Backend of every ``GEGLUFeedForward``: ``"auto"``, ``"triton"`` or
        ``"torch"`` (plain PyTorch). Subclasses of it are left alone, and so
        are SpeechBrain's own feed-forwards, which have no kernels.
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
    flags = {"conv": conv, "frontend": frontend, "ffn": ffn}
    for flag, backend in flags.items():
        check_choice(flag, backend, BACKENDS)
    if loss is not None:
        raise ValueError(f"loss={loss!r} is not one of None.")
    modules = list(named_modules(model))
    # All before the first change: a flag may be refused.
    plans = [kind.plan(modules, flags[kind.flag]) for kind in KINDS]
    report = SwapReport(
        **{
            kind.flag: kind.apply(plan)
            for kind, plan in zip(KINDS, plans, strict=True)
        }
    )
    switch_layers(module for _, module in modules)
    for line in report.lines():
        announce(line)
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
    for _, module in named_modules(model):
        restored += any(kind.restore(module) for kind in KINDS)
        restore_layer(module)
    return restored
