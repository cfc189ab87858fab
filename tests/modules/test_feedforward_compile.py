"""The gated feed-forward under ``torch.compile``: one graph, any length."""

import pytest
import torch
from plain_feedforward import D, Plain, build, outcome
from test_convolution_compile import Counted
from tolerance import assert_as_exact_as_stock


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def compiler(device):
    # Inductor builds C++ on a CPU: there the graphs are enough.
    return "inductor" if device == "cuda" else "aot_eager"


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_compiled_module_is_plain_layers_at_every_length(
    backend, dtype, compiler, device, launches
):
    module = build(device, backend=backend)
    stock = Plain(module)
    counted = Counted(compiler)
    compiled = torch.compile(
        module, backend=counted, fullgraph=True, dynamic=True
    )
    counts = []
    for B, T in ((2, 9), (3, 12), (2, 30)):
        x, dy = torch.randn(2, B, T, D, device=device)
        launches.clear()
        with torch.autocast(
            device, dtype or torch.bfloat16, enabled=bool(dtype)
        ):
            leaf = x.detach().requires_grad_()
            y = compiled(leaf)
            leaves = {"x": leaf, **dict(module.named_parameters())}
            grads = torch.autograd.grad(y, list(leaves.values()), dy.to(y))
            expected = outcome(stock, x, dy)
        result = {"y": y.detach(), **dict(zip(leaves, grads, strict=True))}
        assert bool(launches) is (backend == "triton")
        exact = outcome(stock.exact(), x.double(), dy.double())
        assert_as_exact_as_stock(result, expected, exact)
        counts.append(counted.count)
    assert counts[0] == counts[-1], "a new length was compiled anew"


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_compiled_dropout_draws_anew(backend, compiler, device):
    module = build(device, backend=backend, dropout=0.5)
    compiled = torch.compile(module, backend=compiler)
    x = torch.randn(2, 9, D, device=device)
    assert not torch.allclose(compiled(x), compiled(x))
