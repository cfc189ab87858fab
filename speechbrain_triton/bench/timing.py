"""Measure one callable: time, spread and memory."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch


class Timing(NamedTuple):
    """Milliseconds a call (median, 20th and 80th percentile) and MiB.

    ``peak_mib`` is what the call allocates at its peak above what stood
    before it (inputs and parameters).
    """

    median_ms: float
    p20_ms: float
    p80_ms: float
    peak_mib: float


def time_kernel(call: Callable[[], object]) -> Timing:
    """Time between device events around a call, with a cold L2 cache.

    Where the device waits for the host, the wait counts.

    Arguments
    ---------
    call : callable
        Without arguments; run many times.

    Returns
    -------
    Timing
    """
    from triton.testing import do_bench

    peak = _peak_mib(call)
    median, p20, p80 = do_bench(
        call, warmup=25, rep=150, quantiles=[0.5, 0.2, 0.8]
    )
    return Timing(median, p20, p80, peak)


def time_steps(
    call: Callable[[], object], steps: int = 10, samples: int = 15
) -> Timing:
    """Wall time of a call that is issued back to back, as in training.

    What the host needs to launch the work counts where it is the slower
    side.

    Arguments
    ---------
    call : callable
        Without arguments.
    steps : int
        Calls between two synchronizations.
    samples : int
        How many such groups are timed, after two that are not.

    Returns
    -------
    Timing
    """
    peak = _peak_mib(call)
    times = []
    for sample in range(samples + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            call()
        torch.cuda.synchronize()
        if sample >= 2:
            times.append((time.perf_counter() - start) * 1e3 / steps)
    quintiles = statistics.quantiles(times, n=5)
    return Timing(statistics.median(times), quintiles[0], quintiles[-1], peak)


def _peak_mib(call: Callable[[], object]) -> float:
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20
