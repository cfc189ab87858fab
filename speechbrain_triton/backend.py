"""Which path runs a call, and why: one rule for every op and module."""

import functools
import importlib.util
import logging
import os
from collections.abc import Sequence

import torch

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "triton", "torch")

ON_CPU = "the tensors are on the CPU"


def check_choice(flag: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse any value of a flag that is not one of its names.

    Arguments
    ---------
    flag : str
        The flag's name, for the message.
    value : object
        What the caller gave. Nothing is stripped, cast or guessed.
    allowed : sequence of str
        The names that are allowed.

    Raises
    ------
    ValueError
        If ``value`` is not exactly one of ``allowed``.

    Example
    -------
    >>> check_choice("conv", "auto", BACKENDS)
    """
    if not isinstance(value, str) or value not in allowed:
        names = ", ".join(repr(name) for name in allowed)
        raise ValueError(f"{flag}={value!r} is not one of {names}.")


TRITON_INSTALLED = importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (``TRITON_INTERPRET=1``).

    Triton decides this when a kernel is defined: the variable has to be set
    before the first kernel runs.
    """
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def triton_obstacle(
    device: torch.device, dtype: torch.dtype | None = None
) -> str | None:
    """Say why Triton kernels cannot run on a device.

    Arguments
    ---------
    device : torch.device
        Where the tensors are.
    dtype : torch.dtype, optional
        Their dtype, where it is known.

    Returns
    -------
    str or None
        The reason, to be read after "because"; None where they can run.

    Example
    -------
    >>> triton_obstacle(torch.device("meta"))
    'the tensors are on a meta device'
    """
    if not TRITON_INSTALLED:
        return "the package triton is not installed"
    if not torch.compiler.is_compiling():
        if torch.jit.is_tracing():
            return "torch.jit.trace cannot record kernels"
        if torch._C._are_functorch_transforms_active():
            return "torch.func cannot transform kernels"
        if torch.autograd.forward_ad._current_level >= 0:
            return "the kernels have no forward-mode derivatives"
    if dtype is torch.float64:
        return "the kernels accumulate in float32 and the tensors are float64"
    if dtype is not None and dtype not in (
        torch.float32,
        torch.float16,
        torch.bfloat16,
    ):
        return f"the kernels have no {str(dtype).removeprefix('torch.')} path"
    if device.type == "cpu":
        if interpreted():
            return None
        return ON_CPU
    if device.type != "cuda":
        return f"the tensors are on a {device.type} device"
    if torch.compiler.is_compiling():
        # It cannot trace what is remembered from call to call.
        return None
    if dtype is torch.bfloat16 and _lacks_bfloat16(device.index):
        return "bfloat16 kernels need compute capability 8.0 or newer"
    return None


def autocast_dtype(x: torch.Tensor) -> torch.dtype | None:
    """Say to which dtype autocast casts a tensor.

    Arguments
    ---------
    x : torch.Tensor
        A floating tensor on any device.

    Returns
    -------
    torch.dtype or None
        None where autocast is off, or leaves x alone: it never casts float64.

    Example
    -------
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     autocast_dtype(torch.zeros(2))
    torch.bfloat16
    """
    device = x.device.type
    # torch.compile, which cannot ask, compiles for devices that have autocast.
    compiling = torch.compiler.is_compiling()
    if not (compiling or torch.amp.is_autocast_available(device)):
        return None
    if not torch.is_autocast_enabled(device) or x.dtype is torch.float64:
        return None
    return torch.get_autocast_dtype(device)


@functools.cache
def _lacks_bfloat16(index: int | None) -> bool:
    if torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(index) < (8, 0)


def use_triton(
    backend: str,
    what: str,
    device: torch.device,
    dtype: torch.dtype | None = None,
    obstacle: str | None = None,
) -> bool:
    """Choose the path of one call.

    Arguments
    ---------
    backend : str
        ``"triton"``, ``"torch"`` or ``"auto"``.
    what : str
        The op or module that asks, for messages.
    device : torch.device
        Where the tensors are.
    dtype : torch.dtype, optional
        Their dtype.
    obstacle : str, optional
        A reason of the caller's own against Triton.

    Returns
    -------
    bool
        True for the Triton path. ``"auto"`` logs each new reason for the
        torch path once; the next call decides afresh.

    Raises
    ------
    ValueError
        If ``backend`` is unknown.
    RuntimeError
        If ``backend`` is ``"triton"`` and the kernels cannot run.
    """
    check_choice("backend", backend, BACKENDS)
    if backend == "torch":
        return False
    obstacle = obstacle or triton_obstacle(device, dtype)
    if backend == "auto" and obstacle is None and device.type == "cpu":
        obstacle = "TRITON_INTERPRET=1 runs kernels for debugging only"
    if obstacle is None:
        return True
    if backend == "triton":
        raise RuntimeError(
            f"{what}: backend='triton' cannot run here because {obstacle}; "
            "use 'auto' or 'torch'."
        )
    log_once(f"{what}: torch path, because {obstacle}.")
    return False


def log_once(message: str) -> None:
    """Log a message at level INFO the first time it comes up."""
    if not torch.compiler.is_compiling():
        _log_first(message)


@functools.cache
def _log_first(message: str) -> None:
    logger.info(message)
