"""Transducer loss at sizes that only a GPU has time for."""

import pytest
import torch
from test_transducer_loss import HALVES, assert_kernel_is_right, batch

from speechbrain_triton.ops import transducer_loss

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("V", [29, 500, 1000, 4096, 10000])
def test_kernel_is_right_at_real_sizes(V, dtype, device, launches):
    arguments = batch(
        (120, 77, 101), (31, 40, 12), V, dtype=dtype, device=device
    )
    assert_kernel_is_right(arguments, launches)


@pytest.mark.parametrize("U", [63, 64, 127, 128, 255, 500, 1023, 1024, 3000])
def test_kernel_is_right_for_any_number_of_labels(U, device, launches):
    arguments = batch((40, 9), (U, U // 3), 20, device=device)
    assert_kernel_is_right(arguments, launches)


def test_more_than_two_to_the_31_logits(device):
    """The last utterance is beyond what 32 bits address."""
    B, T, U, V = 3, 800, 99, 9000
    logits = torch.empty(B, T, U + 1, V, dtype=torch.bfloat16, device=device)
    assert logits[:2].numel() < 2**31 < logits.numel()
    logits.normal_()
    arguments = {
        "logits": logits,
        "targets": torch.randint(1, V, (B, U), device=device),
        "logit_lengths": torch.tensor([T, 1, T - 1], device=device),
        "target_lengths": torch.tensor([U, 0, U - 1], device=device),
    }

    def run(logits, **arguments):
        logits = logits.detach().requires_grad_()
        cost = transducer_loss(logits, **arguments, backend="triton")
        return cost, *torch.autograd.grad(cost.sum(), logits)

    cost, grad = run(**arguments)
    alone = run(**{name: t[2:] for name, t in arguments.items()})
    assert torch.equal(cost[2:], alone[0])
    assert torch.equal(grad[2:], alone[1])
    assert alone[1].any() and not grad[1, 1:].any()


def test_a_step_needs_the_gradient_and_little_more(device):
    arguments = batch((200,) * 8, (40,) * 8, 1000, device=device)
    logits = arguments.pop("logits").bfloat16().requires_grad_()
    size = logits.numel() * logits.element_size()

    def peak(inplace):
        x = logits * 1
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss = transducer_loss(
            x, **arguments, reduction="mean", inplace=inplace, backend="triton"
        )
        torch.autograd.grad(loss, x)
        return torch.cuda.max_memory_allocated() - before

    assert peak(inplace=False) <= 1.05 * size
    assert peak(inplace=True) <= 0.05 * size
