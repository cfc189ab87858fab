"""Transducer loss with its joint network at sizes only a GPU has time for."""

import pytest
import torch
from test_transducer_joint import (
    INPUTS,
    assert_kernel_is_right,
    batch,
    fused,
    outcome,
)

from speechbrain_triton.ops import transducer_loss
from speechbrain_triton.ops.transducer_joint_loss.reference import (
    joint_logits,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("nonlinearity", ["tanh", "gelu"])
@pytest.mark.parametrize("V, J", [(29, 320), (1000, 640), (4100, 100)])
def test_kernels_are_right_at_real_sizes(V, J, nonlinearity, dtype, device):
    arguments = batch(
        (120, 77, 101, 90, 64, 33), (31, 40, 12, 25, 8, 33), V, J,
        dtype=dtype, device=device,
    )  # fmt: skip
    # Where logits are so large that single paths decide, their rounding turns
    # gradients over, and chance says whose are further off.
    arguments["weight"] /= 4
    for reduction, workspace in (("none", 2**22), ("mean", 2**24)):
        assert_kernel_is_right(
            arguments,
            workspace,
            nonlinearity=nonlinearity,
            reduction=reduction,
        )


def test_a_slice_of_more_than_two_to_the_31_logits(device):
    T, U, V = 800, 99, 9000
    arguments = batch((T,) * 4, (U,) * 4, V, 8, device=device)
    for name in INPUTS:
        arguments[name] = arguments[name].bfloat16()
    options = {"reduction": "sum", "nonlinearity": "none"}
    assert 4 * T * (U + 1) * V > 2**31
    whole = outcome(fused, arguments, workspace=2**33, **options)
    parts = outcome(fused, arguments, workspace=2**28, **options)
    for name, value in parts.items():
        torch.testing.assert_close(
            whole[name].float(), value.float(), rtol=2e-2, atol=2e-2
        )


@pytest.mark.parametrize("V, U", [(1000, 55), (4096, 30)])
def test_a_step_needs_a_third_of_the_memory(V, U, device):
    arguments = batch((300,) * 24, (U,) * 24, V, 640, device=device)
    inputs = [arguments.pop(n).requires_grad_() for n in INPUTS]

    def unfused():
        logits = joint_logits(*inputs, "tanh")
        return transducer_loss(
            logits, **arguments, reduction="mean", backend="triton"
        )

    def joint():
        names = dict(zip(INPUTS, inputs, strict=True))
        return fused(**names, **arguments, reduction="mean")

    def peak(function):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", torch.bfloat16):
            loss = function()
        torch.autograd.grad(loss, inputs)
        return torch.cuda.max_memory_allocated() - before

    assert peak(joint) <= peak(unfused) / 3
