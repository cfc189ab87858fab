"""The one rule for which path a call takes, and why."""

import logging

import pytest
import torch

from speechbrain_triton import backend
from speechbrain_triton.backend import (
    autocast_dtype,
    check_choice,
    triton_obstacle,
    use_triton,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def machine(monkeypatch):
    """Pretend to be a machine: whether Triton is there and what it can do."""

    def pretend(installed=True, interpreted=False, capability=(9, 0), hip=None):
        monkeypatch.setattr(backend, "TRITON_INSTALLED", installed)
        monkeypatch.setattr(backend, "interpreted", lambda: interpreted)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda index: capability
        )

    for cache in (backend._lacks_bfloat16, backend._log_first):
        cache.cache_clear()
    yield pretend
    for cache in (backend._lacks_bfloat16, backend._log_first):
        cache.cache_clear()


@pytest.mark.parametrize("value", ["auto", "triton", "torch"])
def test_allowed_choice_passes(value):
    assert check_choice("conv", value, backend.BACKENDS) is None


@pytest.mark.parametrize(
    "value", [None, "False", "no", "triton ", "Auto", "", 1.0, 0, True, []]
)
def test_any_other_choice_is_refused_with_flag_and_names(value):
    with pytest.raises(ValueError) as caught:
        check_choice("conv", value, backend.BACKENDS)
    assert str(caught.value) == (
        f"conv={value!r} is not one of 'auto', 'triton', 'torch'."
    )
    with pytest.raises(ValueError, match="backend="):
        use_triton(value, "op", CPU)


@pytest.mark.parametrize(
    ("settings", "device", "dtype", "reason"),
    [
        ({}, CUDA, torch.float32, None),
        ({}, CUDA, torch.bfloat16, None),
        ({}, CUDA, None, None),
        ({"installed": False}, CUDA, None, "triton is not installed"),
        ({"installed": False, "interpreted": True}, CPU, None, "not installed"),
        ({}, CUDA, torch.float64, "tensors are float64"),
        ({}, CUDA, torch.int64, "no int64 path"),
        ({}, CPU, torch.float32, "on the CPU"),
        ({"interpreted": True}, CPU, torch.float32, None),
        ({}, torch.device("meta"), None, "on a meta device"),
        ({"interpreted": True}, torch.device("mps"), None, "a mps device"),
        ({"capability": (7, 5)}, CUDA, torch.bfloat16, "capability 8.0"),
        ({"capability": (7, 5)}, CUDA, torch.float16, None),
        ({"capability": (7, 5), "hip": "6"}, CUDA, torch.bfloat16, None),
    ],
)
def test_obstacle_names_the_reason(settings, device, dtype, reason, machine):
    machine(**settings)
    obstacle = triton_obstacle(device, dtype)
    assert obstacle is None if reason is None else reason in obstacle


@pytest.mark.parametrize(
    ("requested", "device", "interpreted", "taken"),
    [
        ("torch", CUDA, False, False),
        ("triton", CUDA, False, True),
        ("auto", CUDA, False, True),
        ("torch", CPU, True, False),
        ("triton", CPU, True, True),
        ("auto", CPU, True, False),
        ("auto", CPU, False, False),
    ],
)
def test_path_taken(requested, device, interpreted, taken, machine):
    machine(interpreted=interpreted)
    assert use_triton(requested, "op", device, torch.float32) is taken


def test_triton_that_cannot_run_raises_one_sentence(machine):
    machine()
    with pytest.raises(RuntimeError) as caught:
        use_triton("triton", "some op", CPU)
    assert str(caught.value) == (
        "some op: backend='triton' cannot run here because the tensors are "
        "on the CPU; use 'auto' or 'torch'."
    )
    with pytest.raises(RuntimeError, match="because of the caller's own"):
        use_triton("triton", "op", CUDA, obstacle="of the caller's own")


def test_auto_says_each_reason_once_and_decides_every_call_afresh(
    machine, caplog
):
    machine()
    with caplog.at_level(logging.INFO, "speechbrain_triton"):
        for _ in range(3):
            assert not use_triton("auto", "op", CPU)
            assert use_triton("auto", "op", CUDA)
            assert not use_triton("auto", "op", CUDA, torch.float64)
            assert use_triton("auto", "op", CUDA, torch.float32)
    assert caplog.messages == [
        "op: torch path, because the tensors are on the CPU.",
        "op: torch path, because the kernels accumulate in float32 and the "
        "tensors are float64.",
    ]


def test_autocast_dtype_is_what_autocast_would_cast_to():
    single, double = torch.zeros(1), torch.zeros(1).double()
    assert autocast_dtype(single) is None
    assert autocast_dtype(single.to("meta")) is None
    for half in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", half):
            assert autocast_dtype(single) is half
            assert autocast_dtype(single.half()) is half
            assert autocast_dtype(double) is None
            assert autocast_dtype(single.to("meta")) is None
            with torch.autocast("cpu", enabled=False):
                assert autocast_dtype(single) is None
