"""Tensors on a card that is not the current one, and on more than one."""

import re

import pytest
import torch
from device_cases import Case, fused_case, module_case, modules, op_cases

from speechbrain_triton.ops.geglu_linear import launch

OTHER = torch.device("cuda:1")
two_gpus = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="needs two GPUs"
)
ON_HOPPER = (
    torch.cuda.is_available()
    and torch.version.hip is None
    and torch.cuda.get_device_capability() == (9, 0)
)
CASES = {case.name: case for case in op_cases()}
MODULES = tuple(modules())
HALVES = (torch.bfloat16, torch.float16)


def case_of(name: str) -> Case:
    return CASES[name] if name in CASES else module_case(name)


def outcome(case: Case, backend: str, device, late: bool) -> dict:
    """Run a case on the current stream of a device.

    ``late`` lets inputs arrive there after some milliseconds: what does not
    wait for the stream finds NaN, or zeros, in their place.
    """
    sent = {n: t.to(device) for n, t in case.tensors.items()}
    torch.cuda.synchronize(device)
    if late:
        empty = {
            n: torch.full_like(t, torch.nan if t.is_floating_point() else 0)
            for n, t in sent.items()
        }
        with torch.cuda.device(device):
            torch.cuda._sleep(50_000_000)
        for name, tensor in empty.items():
            tensor.copy_(sent[name])
        sent = empty
    result = case.outcome(sent, backend)
    torch.cuda.synchronize(device)
    return result


def assert_right(ours: dict, plain: dict, rtol: float, device) -> None:
    for name, expected in plain.items():
        found = ours[name]
        assert found.device == expected.device == device
        assert found.dtype == expected.dtype
        error = (found.double() - expected.double()).norm()
        assert error <= rtol * expected.double().norm(), name


def check(case: Case, device, side_stream: bool, threads: bool) -> None:
    """Compare both backends on a device while GPU 0 is the current one."""
    torch.cuda.set_device(0)
    with torch.autograd.set_multithreading_enabled(threads):
        plain = outcome(case, "torch", device, late=False)
        torch.cuda.reset_peak_memory_stats(0)
        before = torch.cuda.memory_allocated(0)
        stream = torch.cuda.current_stream(device)
        if side_stream:
            stream = torch.cuda.Stream(device)
        # The stream's context makes its device the current one.
        with torch.cuda.stream(stream), torch.cuda.device(0):
            assert torch.cuda.current_stream(device) == stream
            ours = outcome(case, "triton", device, late=True)
            assert torch.cuda.current_device() == 0
    assert_right(ours, plain, case.rtol, device)
    if device.index != 0:
        assert torch.cuda.max_memory_allocated(0) == before


each_way = pytest.mark.parametrize(
    ("side_stream", "threads"),
    [(False, True), (True, False)],
    ids=["default stream", "side stream"],
)
named = pytest.mark.parametrize("name", [*CASES, *MODULES])


@pytest.mark.gpu
@two_gpus
@each_way
@named
def test_on_the_other_card(name, side_stream, threads, launches):
    check(case_of(name), OTHER, side_stream, threads)
    assert launches


@pytest.mark.gpu
@pytest.mark.skipif(not ON_HOPPER, reason="needs a Hopper GPU")
@two_gpus
@each_way
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_fused_on_the_other_card(
    dtype, side_stream, threads, launches, monkeypatch
):
    monkeypatch.setattr(launch, "is_fused", lambda x, weight: True)
    check(fused_case(dtype), OTHER, side_stream, threads)
    assert launches["geglu_linear_hopper_kernel"]


@pytest.mark.gpu
@named
def test_on_a_side_stream_of_the_only_card(name, launches):
    check(case_of(name), torch.device("cuda:0"), True, False)
    assert launches


@pytest.mark.gpu
@two_gpus
def test_one_variant_starts_on_either_card(launches):
    """The compiled form that is remembered is that of the card."""
    case = case_of("layer_norm")
    first = torch.device("cuda:0")
    for device in (first, OTHER, first, OTHER):
        check(case, device, False, True)


def assert_refused(call, first, second) -> None:
    """In one sentence that names both devices."""
    with pytest.raises((ValueError, RuntimeError)) as refusal:
        call()
    sentence = str(refusal.value)
    assert str(first) in sentence and str(second) in sentence, sentence
    assert re.search(r"\bdevice\b", sentence)
    assert "\n" not in sentence.strip()


def mixed(case: Case, device, other):
    """Its tensors on one device, but for each in turn."""
    sent = {n: t.to(device) for n, t in case.tensors.items()}
    for name, tensor in case.tensors.items():
        yield name, {**sent, name: tensor.to(other)}


@pytest.mark.parametrize("name", [n for n in CASES if n != "reflection_pad2d"])
def test_an_op_refuses_a_second_device(name):
    case = CASES[name]
    for moved, tensors in mixed(case, "cpu", "meta"):
        with pytest.raises(ValueError) as refusal:
            case.run(tensors, "torch")
        sentence = str(refusal.value)
        assert re.search(r"(?s)on (meta|cpu).* on (meta|cpu)", sentence), moved


@pytest.mark.parametrize("name", MODULES)
def test_a_module_refuses_a_second_device(name, device):
    module, (x, *more) = modules()[name]
    module.backend = "triton"
    arguments = (x.to(device), *(t.to(device) for t in more))
    assert_refused(lambda: module.to("meta")(*arguments), device, "meta")


@pytest.mark.gpu
@two_gpus
@pytest.mark.parametrize("name", [n for n in CASES if n != "reflection_pad2d"])
def test_an_op_refuses_two_cards(name):
    torch.cuda.set_device(0)
    case = CASES[name]
    for other in ("cuda:0", "cpu"):
        for _, tensors in mixed(case, OTHER, other):
            assert_refused(
                lambda t=tensors: case.run(t, "triton"), OTHER, other
            )


@pytest.mark.gpu
@two_gpus
@pytest.mark.parametrize("name", MODULES)
def test_a_module_refuses_two_cards(name):
    torch.cuda.set_device(0)
    module, (x, *more) = modules()[name]
    module.to(OTHER).backend = "triton"
    arguments = (x.to("cuda:0"), *(t.to("cuda:0") for t in more))
    assert_refused(lambda: module(*arguments), OTHER, "cuda:0")


@pytest.mark.gpu
@two_gpus
@pytest.mark.parametrize("name", MODULES)
def test_data_parallel_over_two_cards(name, launches):
    """As SpeechBrain's --data_parallel_backend: a thread for each card."""
    torch.cuda.set_device(0)
    module, inputs = modules()[name]
    module.to("cuda:0")
    inputs = tuple(t.to("cuda:0") for t in inputs)
    results = {}
    for backend in ("torch", "triton"):
        module.backend = backend
        module.zero_grad()
        y = torch.nn.DataParallel(module, [0, 1])(*inputs)
        dy = torch.linspace(0.5, 1.5, y.numel(), device="cuda:0")
        y.backward(dy.view(y.shape))
        grads = {n: p.grad for n, p in module.named_parameters()}
        results[backend] = {"y": y.detach(), **grads}
    assert launches
    assert_right(
        results["triton"], results["torch"], 1e-4, torch.device("cuda:0")
    )
