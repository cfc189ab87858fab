"""Measure one callable: time, spread and memory."""

import functools
import gc
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice, pairwise
from typing import NamedTuple

import torch

Inputs = tuple[torch.Tensor, ...]

# Together, the sets of inputs exceed any L2 cache several times. Where 16
# sets do not, the tensors are so small that in training, too, they come from
# the cache.
ROTATED_BYTES = 2**28
FEWEST_SETS, MOST_SETS = 4, 16

# A replay is long beside the gap between two of them (some microseconds).
REPLAY_MS = 2.0
REPLAYS = 20
UNTIMED_REPLAYS = 3

# Written before each call that is timed by itself. It exceeds any L2 cache,
# and takes so long that the host is ahead of the GPU when the call begins.
FLUSHED_BYTES = 2**30
CALLS = 20

# Many groups of few calls: the median passes over those that the host's
# other work has disturbed.
GROUPS = 25
STEPS = 10
FEWEST_STEPS = 2
GROUP_MS = 50.0

# Steps of a training, each of which takes tens of milliseconds. In float16 the
# first ones bring the loss's scale to where gradients do not overflow.
UNTIMED_TRAINING_STEPS = 12
TRAINING_GROUPS = 8


class Timing(NamedTuple):
    """Milliseconds a call (median, 20th and 80th percentile) and MiB.

    ``peak_mib`` is what the call allocates at its peak above what stood
    before it (inputs and parameters), or, of a training step, all but its
    batches.
    """

    median_ms: float
    p20_ms: float
    p80_ms: float
    peak_mib: float


def rotate(draw: Callable[[], Inputs]) -> list[Inputs]:
    """Draw so many sets of inputs that no call finds its own in the cache.

    Arguments
    ---------
    draw : callable
        Returns a new set of tensors.

    Returns
    -------
    list of tuple
        4 to 16 sets, 256 MiB together where that needs no more.

    Example
    -------
    >>> len(rotate(lambda: (torch.empty(2**25, dtype=torch.uint8),)))
    8
    """
    first = draw()
    size = sum(tensor.nbytes for tensor in first)
    sets = math.ceil(ROTATED_BYTES / size)
    sets = max(FEWEST_SETS, min(MOST_SETS, sets))
    return [first, *(draw() for _ in range(sets - 1))]


def time_kernel(call: Callable[..., object], sets: Sequence[Inputs]) -> Timing:
    """What the GPU itself needs for a call: the host's time does not count.

    The call is captured into a CUDA graph, once for each set of inputs and
    as often again as fills some milliseconds, and the graph's replays are
    timed by device events. Results are kept until the sets have gone round,
    so that they too are written to memory and not over each other in the
    cache.

    Arguments
    ---------
    call : callable
        Takes a set of inputs. May not wait for the GPU or move data from or
        to the host.
    sets : sequence of tuple of torch.Tensor
        See :func:`rotate`.

    Returns
    -------
    Timing
        The memory is that of a call outside of a graph.
    """
    peak = _peak_mib(call, sets[0])
    with _captured(call, sets) as graph:
        times = _replay_ms(graph)
    rounds = math.ceil(REPLAY_MS / statistics.median(times))
    if rounds > 1:
        with _captured(call, sets, rounds) as graph:
            times = _replay_ms(graph)
    calls = rounds * len(sets)
    return _summary([time / calls for time in times], peak)


def time_steps(call: Callable[..., object], sets: Sequence[Inputs]) -> Timing:
    """Wall time of a call that is issued back to back, as in training.

    What the host needs to launch the work counts where it is the slower
    side.

    Arguments
    ---------
    call : callable
        Takes a set of inputs.
    sets : sequence of tuple of torch.Tensor
        See :func:`rotate`.

    Returns
    -------
    Timing
    """
    peak = _peak_mib(call, sets[0])
    feed = cycle(sets)
    steps = steps_in_group(_wall_ms(call, islice(feed, STEPS)) / STEPS)
    times = [_wall_ms(call, islice(feed, steps)) / steps for _ in range(GROUPS)]
    return _summary(times, peak)


def time_calls(call: Callable[..., object], sets: Sequence[Inputs]) -> Timing:
    """Time between device events around single calls, from a cold cache.

    For calls that wait for the GPU, of which there is no graph. Where the GPU
    then waits for the host in the midst of a call, that counts.

    Arguments
    ---------
    call : callable
        Takes a set of inputs.
    sets : sequence of tuple of torch.Tensor
        May be one, since other memory is written before each call.

    Returns
    -------
    Timing
    """
    peak = _peak_mib(call, sets[0])
    flushed = torch.empty(
        FLUSHED_BYTES, dtype=torch.uint8, device=sets[0][0].device
    )
    times = [
        _event_ms(call, inputs, flushed)
        for inputs in islice(cycle(sets), CALLS)
    ]
    return _summary(times, peak)


def time_training(
    call: Callable[..., object], sets: Sequence[Inputs]
) -> Timing:
    """Wall time of training steps that are issued back to back.

    Arguments
    ---------
    call : callable
        Takes a set of inputs and changes the model's parameters.
    sets : sequence of tuple of torch.Tensor
        Batches of the same shapes.

    Returns
    -------
    Timing
        The memory is all that is allocated at the peak but for the sets:
        parameters, the optimizer's state and gradients count.
    """
    feed = cycle(sets)
    # What may be left of the models that were checked, or timed before.
    gc.collect()
    _wall_ms(call, islice(feed, UNTIMED_TRAINING_STEPS))
    torch.cuda.reset_peak_memory_stats()
    times = [
        _wall_ms(call, islice(feed, FEWEST_STEPS)) / FEWEST_STEPS
        for _ in range(TRAINING_GROUPS)
    ]
    drawn = sum(tensor.nbytes for inputs in sets for tensor in inputs)
    peak = (torch.cuda.max_memory_allocated() - drawn) / 2**20
    return _summary(times, peak)


def steps_in_group(step_ms: float) -> int:
    """How many calls are issued between two synchronizations.

    Arguments
    ---------
    step_ms : float
        About how long a call takes.

    Returns
    -------
    int
        10, or less where these would take more than 50 ms; at least 2.

    Example
    -------
    >>> steps_in_group(0.3), steps_in_group(8.0), steps_in_group(40.0)
    (10, 6, 2)
    """
    return max(FEWEST_STEPS, min(STEPS, int(GROUP_MS / step_ms)))


def _summary(times: Sequence[float], peak: float) -> Timing:
    quintiles = statistics.quantiles(times, n=5)
    return Timing(statistics.median(times), quintiles[0], quintiles[-1], peak)


def _wall_ms(call: Callable[..., object], sets: Iterable[Inputs]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for inputs in sets:
        call(*inputs)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def _event_ms(
    call: Callable[..., object], inputs: Inputs, flushed: torch.Tensor
) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flushed.zero_()
    start.record()
    call(*inputs)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


@contextmanager
def _captured(
    call: Callable[..., object], sets: Sequence[Inputs], rounds: int = 1
) -> Iterator[torch.cuda.CUDAGraph]:
    """A graph of calls, whose memory is given back at the end."""
    graph = torch.cuda.CUDAGraph()
    try:
        _capture(graph, call, sets, rounds)
        yield graph
    finally:
        graph.reset()
        torch.cuda.empty_cache()


def _capture(graph, call, sets, rounds):
    stream = _capture_stream(torch.cuda.current_device())
    # Libraries take their workspaces, stream by stream, at the first call:
    # outside of the graph, whose memory they would hold for ever.
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for inputs in sets[:2]:
            call(*inputs)
    torch.cuda.synchronize()
    kept = deque(maxlen=len(sets))
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(rounds):
            for inputs in sets:
                kept.append(call(*inputs))


@functools.cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _replay_ms(graph: torch.cuda.CUDAGraph) -> list[float]:
    # Nothing waits in between: the host stays ahead, and the events lie side
    # by side with the replays on the device.
    for _ in range(UNTIMED_REPLAYS):
        graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairwise(marks)]


def _peak_mib(call: Callable[..., object], inputs: Inputs) -> float:
    call(*inputs)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call(*inputs)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20
