"""How a case is measured: check an implementation, then time its passes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from speechbrain_triton.bench import (
    conv_module,
    conv_stream,
    depthwise_conv1d,
    frontend,
)
from speechbrain_triton.bench.cases import Case
from speechbrain_triton.bench.check import CheckFailed, complaint
from speechbrain_triton.bench.timing import (
    Timing,
    rotate,
    time_kernel,
    time_steps,
)
from speechbrain_triton.bench.variant import Variant

OPS = {
    "depthwise_conv1d": depthwise_conv1d,
    "conv_module": conv_module,
    "conv_stream": conv_stream,
    "frontend": frontend,
}


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


def _module_passes(*formats: str) -> tuple[Pass, ...]:
    """Passes of a module, of which stock has more memory formats than one."""
    in_steps = ("stock", *formats, "compile", "triton")
    return (
        Pass("fwd", time_steps, in_steps),
        Pass("fwd_bwd", time_steps, in_steps),
        Pass("fwd_gpu", time_kernel, (*formats, *ON_DEVICE)),
        Pass("fwd_bwd_gpu", time_kernel, (*formats, *ON_DEVICE)),
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
    "conv_stream": (
        Pass("step", time_steps, ("stock", "triton")),
        Pass("step_gpu", time_kernel, ("stock", "triton")),
    ),
}


# So many utterances are checked, where float64 of all would not fit beside.
CHECKED_BATCH = {"frontend": 2}


def check(case: Case, impl: str = "triton", device: str = "cuda") -> None:
    """Run an implementation once, forward and backward, and check it.

    Arguments
    ---------
    case : Case
        What to run.
    impl : str
        ``"triton"``, ``"compile"`` or ``"channels_last"``.
    device : str
        Where.

    Raises
    ------
    CheckFailed
        If a result is worse than stock's in the same dtype.
    """
    _checked(case, impl, device)


def measure(
    case: Case, impl: str, device: str = "cuda"
) -> Iterator[tuple[str, Timing]]:
    """Check an implementation of a case, then time it.

    The check comes before any time is reported; stock is what it compares
    with, and a limit has no result.

    Arguments
    ---------
    case : Case
        What to time.
    impl : str
        ``"stock"``, ``"channels_last"`` (only front ends), ``"compile"``,
        ``"triton"`` or ``"limit"`` (a copy that moves as many bytes as the op
        must; for a module after its matmuls).
    device : str
        Where.

    Returns
    -------
    iterator of tuple
        Names of passes, and their timings. ``fwd`` is without autograd,
        ``fwd_bwd`` with the gradients of all parameters and, but for a front
        end, of the input.
        For ``depthwise_conv1d`` these are times of the device and
        ``fwd_wall`` and ``fwd_bwd_wall`` wall times of calls issued back to
        back; for modules they are such wall times, and ``fwd_gpu`` and
        ``fwd_bwd_gpu`` times of the device. ``step`` and ``step_gpu`` are
        the same for a chunk of a stream.

    Raises
    ------
    CheckFailed
        If a result is worse than stock's in the same dtype.
    """
    passes = [p for p in PASSES[case.kind] if impl in p.impls]
    if not passes:
        return
    if impl == "limit":
        for timed in passes:
            call, sets = OPS[case.kind].limit(case, timed.backward, device)
            yield timed.name, timed.timer(call, sets)
        return
    variant = _checked(case, impl, device)
    sets = rotate(lambda: variant.inputs(*OPS[case.kind].draw(case, device)))
    for timed in passes:
        call = variant.run_both if timed.backward else variant.run_forward
        yield timed.name, timed.timer(call, sets)


def _checked(
    case: Case, impl: str, device: str
) -> Variant | conv_stream.StreamVariant:
    op = OPS[case.kind]
    torch.manual_seed(0)
    variants = op.variants(case, device)
    stock = variants["stock"]
    if impl == "stock":
        return stock
    if impl == "compile":
        # Else what was compiled for the cases before counts against the
        # limit, after which the function runs as it is.
        torch.compiler.reset()
        variants[impl] = replace(stock, forward=torch.compile(stock.forward))
    batch = min(case.B, CHECKED_BATCH.get(case.op, case.B))
    inputs = op.draw(replace(case, B=batch), device)
    problem = complaint(
        *(variants[name].outcome(*inputs) for name in (impl, "stock", "exact"))
    )
    if problem is not None:
        raise CheckFailed(
            f"{case.op} {case.shape} {case.dtype} {impl}: {problem}; no time "
            "is reported."
        )
    return variants[impl]
