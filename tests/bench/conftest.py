"""Passes without a clock."""

import sys
import types
from dataclasses import replace

import pytest
import torch

from speechbrain_triton.bench import measure, timing
from speechbrain_triton.ops.transducer_loss import transducer_loss_reference

NUMBA = "speechbrain.integrations.numba.transducer_loss"


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


@pytest.fixture
def numba(monkeypatch):
    """Put a class in the place of SpeechBrain's, which needs a card.

    Its values are divided by the frames and its gradients are not, or both
    are.
    """

    def put(per_frame_gradient=False):
        class Transducer(torch.autograd.Function):
            @staticmethod
            def forward(ctx, log_probs, labels, T, U, blank, reduction):
                assert reduction == "none"
                with torch.enable_grad():
                    x = log_probs.detach().requires_grad_()
                    cost = transducer_loss_reference(
                        x, labels, T, U, blank=blank
                    )
                    (ctx.grads,) = torch.autograd.grad(cost.sum(), x)
                if per_frame_gradient:
                    ctx.grads /= T.view(-1, 1, 1, 1)
                return cost.detach() / T

            @staticmethod
            def backward(ctx, grad):
                return ctx.grads * grad.view(-1, 1, 1, 1), *(None,) * 5

        module = types.ModuleType(NUMBA)
        module.Transducer = Transducer
        monkeypatch.setitem(sys.modules, NUMBA, module)

    put()
    return put
