"""The convolution module on a GPU at real sizes."""

import pytest
import torch
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig
from stock import exact_outcome, outcome, pair
from tolerance import assert_as_exact_as_stock

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("chunk_size", [None, 16])
def test_module_under_autocast_is_as_exact_as_stock(chunk_size, half, launches):
    stock, ours = pair(512, 31, backend="auto", device="cuda")
    x, dy = torch.randn(2, 16, 401, 512, device="cuda")
    args = (None, chunk_size and DynChunkTrainConfig(chunk_size))
    with torch.autocast("cuda", half):
        result = outcome(ours, x, dy, *args)
        expected = outcome(stock, x, dy, *args)
    assert launches["conv_kernel"] == 2
    assert result["y"].dtype == half
    assert_as_exact_as_stock(
        result, expected, exact_outcome(stock, x, dy, *args)
    )


@pytest.mark.parametrize("chunk_size", [None, 16])
def test_module_in_float32_is_as_exact_as_stock(chunk_size, launches):
    stock, ours = pair(256, 31, backend="auto", device="cuda")
    x, dy = torch.randn(2, 8, 401, 256, device="cuda")
    args = (None, chunk_size and DynChunkTrainConfig(chunk_size))
    result = outcome(ours, x, dy, *args)
    assert launches["conv_kernel"] == 2
    assert_as_exact_as_stock(
        result,
        outcome(stock, x, dy, *args),
        exact_outcome(stock, x, dy, *args),
    )


def test_gradient_scaler_skips_a_step_that_overflows(launches):
    """Non-finite gradients must come through, not be hidden."""
    _, ours = pair(64, 15, backend="auto", device="cuda")
    optimizer = torch.optim.SGD(ours.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)
    before = ours.conv.weight.detach().clone()
    with torch.autocast("cuda", torch.float16):
        loss = ours(torch.randn(2, 50, 64, device="cuda")).float().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert launches["conv_kernel"] == 2
    assert torch.equal(ours.conv.weight, before)
    assert scaler.get_scale() < 2.0**40


def test_module_can_be_captured_into_graphs():
    _, ours = pair(64, 15, backend="auto", device="cuda")
    _, eager = pair(64, 15, backend="auto", device="cuda")
    eager.load_state_dict(ours.state_dict())
    x = torch.randn(2, 50, 64, device="cuda", requires_grad=True)
    dy = torch.randn(2, 50, 64, device="cuda").bfloat16()
    results = []
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        graphed = torch.cuda.make_graphed_callables(ours, (x,))
        for module, parameters in ((graphed, ours), (eager, eager)):
            y = module(x)
            leaves = (x, *parameters.parameters())
            results.append((y, *torch.autograd.grad(y, leaves, dy)))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
