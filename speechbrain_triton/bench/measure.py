"""How a case is measured: check an implementation, then time its passes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from speechbrain_triton.bench import (
    conv_module,
    conv_stream,
    convolution_frontend,
    depthwise_conv1d,
    frontend,
    geglu_ffn,
    geglu_ladder,
    geglu_linear,
    train_step,
    transducer_joint_loss,
    transducer_loss,
)
from speechbrain_triton.bench.check import CheckFailed, complaint
from speechbrain_triton.bench.shapes import Measured
from speechbrain_triton.bench.timing import (
    Timing,
    rotate,
    time_calls,
    time_kernel,
    time_steps,
    time_training,
)
from speechbrain_triton.bench.train_step import StepVariant
from speechbrain_triton.bench.variant import (
    AnyVariant,
    ForwardVariant,
    Variant,
)

OPS = {
    "depthwise_conv1d": depthwise_conv1d,
    "conv_module": conv_module,
    "conv_stream": conv_stream,
    "frontend": frontend,
    "convolution_frontend": convolution_frontend,
    "geglu_linear": geglu_linear,
    "geglu_ffn": geglu_ffn,
    "geglu_ffn_dropout": geglu_ffn,
    "geglu_ladder": geglu_ladder,
    "transducer_loss": transducer_loss,
    "transducer_joint_loss": transducer_joint_loss,
    "train_step": train_step,
}

# What an op's work is compared with has no result that could be checked.
UNCHECKED = ("matmul_only", "limit")


@dataclass(frozen=True)
class Pass:
    """What of an op is timed, and how.

    Arguments
    ---------
    name : str
        As in the tables.
    timer : callable
        Takes a call and its sets of inputs, and returns a Timing.
    impls : tuple of str
        For which implementations there is a row.
    """

    name: str
    timer: Callable[..., Timing]
    impls: tuple[str, ...]

    @property
    def backward(self) -> bool:
        return "bwd" in self.name


# What an op gains is on the device, and a graph shows it; a module is also
# many launches, which only wall time counts. The plain names go to the time
# that matters more.
ON_DEVICE = ("stock", "triton", "limit")
GEGLU = ("eager", "compile", "liger", "triton")
LOSSES = ("torchaudio", "numba", "triton", "limit")


def _module_passes(
    *others: str, without: str | None = None
) -> tuple[Pass, ...]:
    """Passes of a module, some of which have other implementations, too."""

    def timed(name, timer, impls):
        impls = (impl for impl in (*impls, *others) if impl != without)
        return Pass(name, timer, tuple(impls))

    in_steps = ("stock", "compile", "triton")
    return (
        timed("fwd", time_steps, in_steps),
        timed("fwd_bwd", time_steps, in_steps),
        timed("fwd_gpu", time_kernel, ON_DEVICE),
        timed("fwd_bwd_gpu", time_kernel, ON_DEVICE),
    )


PASSES: dict[str, tuple[Pass, ...]] = {
    "depthwise_conv1d": (
        Pass("fwd", time_kernel, ON_DEVICE),
        Pass("fwd_bwd", time_kernel, ON_DEVICE),
        Pass("fwd_wall", time_steps, ("stock", "triton")),
        Pass("fwd_bwd_wall", time_steps, ("stock", "triton")),
    ),
    "conv_module": _module_passes(),
    "frontend": _module_passes("channels_last"),
    "convolution_frontend": _module_passes("channels_last", without="limit"),
    "conv_stream": (
        Pass("step", time_steps, ("stock", "triton")),
        Pass("step_gpu", time_kernel, ("stock", "triton")),
    ),
    "geglu_linear": (
        Pass("fwd", time_kernel, (*GEGLU, "matmul_only")),
        Pass("fwd_bwd", time_kernel, (*GEGLU, "matmul_only")),
        Pass("fwd_wall", time_steps, GEGLU),
        Pass("fwd_bwd_wall", time_steps, GEGLU),
    ),
    "geglu_ffn": _module_passes(),
    # Compiled, stock draws a mask that nothing else draws.
    "geglu_ffn_dropout": _module_passes(without="compile"),
    "geglu_ladder": (Pass("fwd", time_kernel, ("eager", "compile", "triton")),),
    # Others' losses wait for the GPU and cannot be captured.
    "transducer_loss": (
        Pass("fwd", time_calls, LOSSES),
        Pass("fwd_bwd", time_calls, (*LOSSES, "triton_inplace")),
    ),
    "transducer_joint_loss": (
        Pass("fwd", time_calls, (*LOSSES, "triton_fused_joint")),
        Pass("fwd_bwd", time_calls, (*LOSSES, "triton_fused_joint")),
    ),
    "train_step": (Pass("step", time_training, tuple(train_step.TIMED)),),
}


def check(case: Measured, impl: str = "triton", device: str = "cuda") -> None:
    """Run an implementation once, in all its passes, and check it.

    Arguments
    ---------
    case : Measured
        What to run.
    impl : str
        Any but a limit.
    device : str
        Where.

    Raises
    ------
    CheckFailed
        If a result is worse than plain PyTorch's in the same dtype.
    """
    _checked(case, impl, device)


def measure(
    case: Measured, impl: str, device: str = "cuda"
) -> Iterator[tuple[str, Timing]]:
    """Check an implementation of a case, then time it.

    The check comes before any time is reported; stock, eager and a loss's
    twin are what it compares with, and a limit has no result. A training step
    without kernels is not checked either.

    Arguments
    ---------
    case : Measured
        What to time.
    impl : str
        ``"stock"``, ``"eager"`` (plain PyTorch where SpeechBrain has
        nothing), ``"channels_last"`` (only front ends), ``"compile"``,
        ``"liger"`` (only ``geglu_linear``), ``"torchaudio"`` and ``"numba"``
        (only losses and ``train_step``), ``"triton"``, ``"triton_inplace"``
        (only the gradient of ``transducer_loss``), ``"triton_fused_joint"``
        (only ``transducer_joint_loss`` and ``train_step``), ``"matmul_only"``
        (the matmuls of ``geglu_linear`` by themselves) or ``"limit"`` (a copy
        that moves as many bytes as the op must; for a module after its
        matmuls, and for ``transducer_joint_loss`` its matmuls alone).
    device : str
        Where.

    Returns
    -------
    iterator of tuple
        Names of passes, and their timings; none where the case has no such
        implementation. ``fwd`` is without autograd, ``fwd_bwd`` with the
        gradients of all parameters and, but for a front end, of the input.
        For ops these are times of the device and ``fwd_wall`` and
        ``fwd_bwd_wall`` wall times of calls issued back to back; for modules
        they are such wall times, and ``fwd_gpu`` and ``fwd_bwd_gpu`` times of
        the device. ``step`` and ``step_gpu`` are the same for a chunk of a
        stream; ``step`` of ``train_step`` is a training step's wall time.
        Those of the losses are times between device events.

    Raises
    ------
    CheckFailed
        If a result is worse than plain PyTorch's in the same dtype.
    """
    op = OPS[case.kind]
    passes = [p for p in PASSES[case.kind] if impl in p.impls]
    if not passes:
        return
    if impl in UNCHECKED:
        for timed in passes:
            call, sets = getattr(op, impl)(case, timed.backward, device)
            yield timed.name, timed.timer(call, sets)
        return
    variant = _checked(case, impl, device)
    if variant is None:
        return
    sets = rotate(lambda: variant.inputs(*op.draw(case, device)))
    for timed in passes:
        call = variant.run_both if timed.backward else variant.run_forward
        yield timed.name, timed.timer(call, sets)


def _checked(
    case: Measured, impl: str, device: str
) -> AnyVariant | StepVariant | None:
    op = OPS[case.kind]
    torch.manual_seed(0)
    variants = op.variants(case, device)
    if impl == "compile":
        variants[impl] = _compiled(variants)
    variant = variants.get(impl)
    if variant is None or impl == variant.against[0]:
        return variant
    inputs = op.draw(case.checked, device)

    def outcome(name):
        # Each draws the same seeds, where there is dropout.
        torch.manual_seed(1)
        return variants[name].outcome(*inputs)

    outcomes = map(outcome, (impl, *variant.against))
    problem = complaint(*outcomes, rounding=case.rounding)
    if problem is not None:
        raise CheckFailed(
            f"{case.op} {case.shape} {case.dtype} {impl}: {problem}; no time "
            "is reported."
        )
    return variant


def _compiled(
    variants: dict[str, Variant | ForwardVariant],
) -> Variant | ForwardVariant:
    """Plain PyTorch's, compiled for the shapes that it meets."""
    # Else what was compiled for the cases before counts against the limit,
    # after which the function runs as it is.
    torch.compiler.reset()
    plain = variants["eager" if "eager" in variants else "stock"]
    forward = torch.compile(plain.forward, dynamic=False)
    return replace(plain, forward=forward)
