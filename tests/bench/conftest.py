"""Passes without a clock."""

from dataclasses import replace

import pytest
import torch

from speechbrain_triton.bench import measure, timing


@pytest.fixture(autouse=True)
def undo_global_settings():
    """Give back what a recipe sets for the whole process."""
    cudnn_sdp = torch.backends.cuda.cudnn_sdp_enabled()
    yield
    torch.backends.cuda.enable_cudnn_sdp(cudnn_sdp)


@pytest.fixture
def one_set(monkeypatch):
    """Draw the fewest sets: their bytes matter to a clock only."""
    monkeypatch.setattr(timing, "MOST_SETS", timing.FEWEST_SETS)


@pytest.fixture
def calls(monkeypatch, one_set):
    """Run each pass's call on each set; keep the results by its name."""
    calls = {}

    def timer_of(name):
        def timer(call, sets):
            calls[name] = [call(*inputs) for inputs in sets]
            return timing.Timing(1.0, 1.0, 1.0, 0.0)

        return timer

    passes = {
        op: tuple(replace(p, timer=timer_of(p.name)) for p in passes)
        for op, passes in measure.PASSES.items()
    }
    monkeypatch.setattr(measure, "PASSES", passes)
    return calls
