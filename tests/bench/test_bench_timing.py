"""The clocks' arithmetic, on a device that is made up."""

from contextlib import contextmanager, nullcontext

import pytest
import torch

from speechbrain_triton.bench import timing

MIB = 2**20


class Device:
    """Graphs on it take so long as the calls that they captured."""

    def __init__(self):
        self.now_ms = 0.0
        self.capturing = None
        self.graphs = []


@pytest.fixture
def device(monkeypatch):
    device = Device()

    class Graph:
        def __init__(self):
            self.calls, self.lives = [], True
            device.graphs.append(self)

        def replay(self):
            assert self.lives
            device.now_ms += sum(ms for _, ms in self.calls)

        def reset(self):
            self.lives = False

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = device.now_ms

        def elapsed_time(self, end):
            return end.at - self.at

    @contextmanager
    def graph(captured, stream):
        assert stream == "side stream"
        device.capturing = captured
        yield
        device.capturing = None

    fakes = {
        "CUDAGraph": Graph,
        "Event": Event,
        "graph": graph,
        "Stream": lambda index: "side stream",
        "stream": lambda stream: nullcontext(),
        "current_device": lambda: 0,
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "memory_allocated": lambda: 5 * MIB,
        "max_memory_allocated": lambda: 8 * MIB,
        "reset_peak_memory_stats": lambda: None,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    timing._capture_stream.cache_clear()
    yield device
    timing._capture_stream.cache_clear()


def call_of(device, ms):
    def call(x):
        # A capture runs nothing; outside of one, the device's time passes.
        if device.capturing is None:
            device.now_ms += ms
        else:
            device.capturing.calls.append((int(x), ms))

    return call


@pytest.mark.parametrize("ms", [0.004, 0.3, 40.0])
def test_device_time_is_that_of_one_call(device, ms):
    sets = [(torch.tensor(i),) for i in range(4)]
    measured = timing.time_kernel(call_of(device, ms), sets)
    assert measured == pytest.approx((ms, ms, ms, 3.0))
    last = device.graphs[-1]
    assert ms * len(last.calls) >= timing.REPLAY_MS or len(last.calls) == 4
    # Each set as often as any other, in turn.
    order = [index for index, _ in last.calls]
    assert order == [0, 1, 2, 3] * (len(order) // 4)
    assert not any(graph.lives for graph in device.graphs)


def test_a_failed_capture_gives_its_memory_back(device):
    def call(x):
        if device.capturing is not None:
            raise RuntimeError("not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        timing.time_kernel(call, [(torch.tensor(0),)] * 4)
    assert [graph.lives for graph in device.graphs] == [False]


def test_single_calls_are_timed_behind_a_flush(device, monkeypatch):
    monkeypatch.setattr(timing, "FLUSHED_BYTES", 2**10)
    order = []

    class Flushed:
        def zero_(self):
            order.append("flush")
            device.now_ms += 7.0

    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: Flushed())

    def call(x):
        order.append(int(x))
        # Every tenth call something else keeps the device busy.
        device.now_ms += 100.0 if len(order) % 20 == 0 else 3.0

    measured = timing.time_calls(call, [(torch.tensor(i),) for i in range(2)])
    assert measured == pytest.approx((3.0, 3.0, 3.0, 3.0))
    # Two calls to see the memory, then each set in turn.
    assert order == [0, 0] + ["flush", 0, "flush", 1] * (timing.CALLS // 2)


@pytest.mark.parametrize("ms, steps", [(0.5, 10), (8.0, 6), (40.0, 2)])
def test_wall_time_is_the_median_over_groups(device, monkeypatch, ms, steps):
    # Every fifth group the host is busy with something else.
    groups = []

    def perf_counter():
        if len(groups) % 2:
            busy = 100.0 if len(groups) % 10 == 9 else 0.0
            device.now_ms += busy
        groups.append(device.now_ms)
        return device.now_ms / 1e3

    monkeypatch.setattr(timing.time, "perf_counter", perf_counter)
    sets = [(torch.tensor(i),) for i in range(4)]
    measured = timing.time_steps(call_of(device, ms), sets)
    assert measured.median_ms == pytest.approx(ms)
    assert measured.p20_ms == pytest.approx(ms)
    assert measured.peak_mib == 3.0
    # One group to see how long a call takes, then those that count.
    assert len(groups) == 2 * (timing.GROUPS + 1)
    assert groups[3] - groups[2] == pytest.approx(ms * steps)


def test_training_steps_are_timed_in_small_groups(device, monkeypatch):
    clock = []

    def perf_counter():
        clock.append(device.now_ms)
        return device.now_ms / 1e3

    monkeypatch.setattr(timing.time, "perf_counter", perf_counter)
    order = []

    def call(x):
        order.append(int(x[0]))
        # The first step builds the optimizer's state and compiles.
        device.now_ms += 60.0 if len(order) > 1 else 9000.0

    sets = [(torch.full((MIB // 8,), i),) for i in range(2)]
    measured = timing.time_training(call, sets)
    # All that is allocated but for the two sets, of 1 MiB each.
    assert measured == pytest.approx((60.0, 60.0, 60.0, 6.0))
    steps = timing.UNTIMED_TRAINING_STEPS + 2 * timing.TRAINING_GROUPS
    assert order == [0, 1] * (steps // 2)
    assert len(clock) == 2 * (timing.TRAINING_GROUPS + 1)


@pytest.mark.parametrize(
    "nbytes, count", [(2**10, 16), (2**26, 4), (2**27 // 3, 7), (2**30, 4)]
)
def test_sets_exceed_a_cache_without_end_or_want(nbytes, count):
    x = torch.zeros(1, dtype=torch.uint8).expand(nbytes)
    assert len(timing.rotate(lambda: (x,))) == count
