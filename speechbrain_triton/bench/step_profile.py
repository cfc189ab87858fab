"""What a training step's time goes to, part by part."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice

import torch
from speechbrain.lobes.models.transformer.Conformer import ConformerEncoderLayer
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import profile, record_function

from speechbrain_triton.bench.check import CheckFailed
from speechbrain_triton.bench.shapes import TrainingCase
from speechbrain_triton.bench.timing import (
    FEWEST_SETS,
    UNTIMED_TRAINING_STEPS,
)
from speechbrain_triton.bench.train_step import StepVariant, draw, variants
from speechbrain_triton.training import TransducerBrain

REST = "rest"
PARTS = (
    "features",
    "front end",
    "convolution modules",
    "attention",
    "feed-forwards",
    "prediction network",
    "joint and losses",
    "optimizer",
    REST,
)
PROFILED_STEPS = 3

_RANGE = "part of a step: "
_NODE = "autograd::engine::evaluate_function: "


def profile_step(
    case: TrainingCase, impl: str, device: str = "cuda"
) -> dict[str, float]:
    """Run training steps under PyTorch's profiler.

    Arguments
    ---------
    case : TrainingCase
        Model, batch, and autocast's dtype.
    impl : str
        One that ``train_step`` times.
    device : str
        Where.

    Returns
    -------
    dict of float
        Part to milliseconds a step, forward and backward together, in the
        order of ``PARTS``: what the GPU works, or on a CPU what the CPU does.
        Layer norms, masks and sums between a layer's modules are ``"rest"``.

    Raises
    ------
    CheckFailed
        If the profiler saw nothing of the GPU, whose tracing (CUPTI) may be
        missing or not permitted.
    """
    variant = variants(case, device)[impl]
    torch.manual_seed(0)
    feed = cycle([draw(case, device) for _ in range(FEWEST_SETS)])
    for inputs in islice(feed, UNTIMED_TRAINING_STEPS):
        variant.run_forward(*inputs)
    events = _record(variant, islice(feed, PROFILED_STEPS))
    if device != "cpu" and all(map(_on_host, events)):
        raise CheckFailed(
            f"{case.op} {case.shape} {case.dtype} {impl}: no profile, because "
            "PyTorch's profiler recorded no work of the GPU."
        )
    times = times_by_part(events)
    return {part: times[part] / PROFILED_STEPS for part in PARTS}


def _record(variant: StepVariant, sets: Iterable) -> list[FunctionEvent]:
    with _ranges(variant.brain), profile() as recorded:
        for inputs in sets:
            variant.run_forward(*inputs)
    return recorded.events()


@contextmanager
def _ranges(brain: TransducerBrain) -> Iterator[None]:
    """Have each part say to the profiler when it begins and ends."""
    with ExitStack() as stack:
        for module, part in _parts_of(brain):
            for handle in _mark(module, part):
                stack.callback(handle.remove)
        methods = {
            "compute_objectives": "joint and losses",
            "optimizers_step": "optimizer",
        }
        for name, part in methods.items():
            marked = record_function(_RANGE + part)(getattr(brain, name))
            setattr(brain, name, marked)
            stack.callback(delattr, brain, name)
        yield


def _parts_of(brain: TransducerBrain) -> Iterator[tuple[torch.nn.Module, str]]:
    yield brain.hparams.compute_features, "features"
    modules = brain.modules
    yield modules.normalize, "features"
    yield modules.CNN, "front end"
    for layer in modules.enc.modules():
        if isinstance(layer, ConformerEncoderLayer):
            yield layer.convolution_module, "convolution modules"
            yield layer.mha_layer, "attention"
            yield layer.ffn_module1, "feed-forwards"
            yield layer.ffn_module2, "feed-forwards"
    for module in (modules.emb, modules.dec, modules.proj_dec):
        yield module, "prediction network"
    yield modules.joint, "joint and losses"
    yield modules.proj_ctc, "joint and losses"


def _mark(module: torch.nn.Module, part: str):
    """Hooks on a module as a whole, which keep no kernel from running."""
    entered = []

    def enter(*_):
        entered.append(record_function(_RANGE + part).__enter__())

    def leave(*_):
        entered.pop().__exit__(None, None, None)

    yield module.register_forward_pre_hook(enter)
    yield module.register_forward_hook(leave)


def times_by_part(events: Iterable[FunctionEvent]) -> dict[str, float]:
    """Add up the events' own times.

    An event of the forward pass belongs to the range around it. Autograd gives
    each node of the backward pass the number of the forward event that made
    it, and so its part. What a GPU does without any event of the host around
    it is ``"rest"``.

    Arguments
    ---------
    events : iterable of FunctionEvent
        The profiler's, by their start.

    Returns
    -------
    dict of float
        Part to milliseconds: of the GPU's work, or the CPU's where none was
        recorded.
    """
    on_host, on_gpu = [], []
    for event in events:
        if not _on_host(event):
            on_gpu.append(event)
        elif not event.is_async:
            on_host.append(event)
    own_time = _gpu_time if on_gpu else _cpu_time
    part_of_node: dict[int, str] = {}
    times: defaultdict[str, float] = defaultdict(float)
    for event in on_host:
        part = _part(event, part_of_node)
        if event.sequence_nr >= 0 and not event.name.startswith(_NODE):
            # The last of several events with a number is the one that made
            # the node.
            part_of_node[event.sequence_nr] = part
        times[part] += own_time(event) / 1e3
    gpu = sum(
        event.time_range.elapsed_us()
        for event in on_gpu
        if not event.is_user_annotation
    )
    if on_gpu:
        times[REST] += gpu / 1e3 - sum(times.values())
    return times


def _on_host(event: FunctionEvent) -> bool:
    return event.device_type == DeviceType.CPU


def _part(event: FunctionEvent, part_of_node: dict[int, str]) -> str:
    while event is not None:
        if event.name.startswith(_RANGE):
            return event.name.removeprefix(_RANGE)
        if event.name.startswith(_NODE):
            return part_of_node.get(event.sequence_nr, REST)
        event = event.cpu_parent
    return REST


def _cpu_time(event: FunctionEvent) -> float:
    return event.self_cpu_time_total


def _gpu_time(event: FunctionEvent) -> float:
    """Of the kernels that the event itself started, in microseconds.

    A range that the user named has the time on the GPU of all that is in it.
    """
    if event.is_user_annotation:
        return 0.0
    return sum(kernel.duration for kernel in event.kernels)
