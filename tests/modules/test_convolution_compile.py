"""The module under ``torch.compile``: one graph, any length."""

import pytest
import torch
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig
from tolerance import assert_as_exact_as_stock

from speechbrain_triton.modules import TritonConvolutionModule
from speechbrain_triton.ops import conv_block, depthwise_conv1d, layer_norm

C, K = 16, 7


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def backend(device):
    # Inductor builds C++ on a CPU: there the graphs are enough.
    return "inductor" if device == "cuda" else "aot_eager"


class Counted:
    """A compiler backend that counts what it is asked to compile."""

    def __init__(self, inner):
        self.inner = inner
        self.count = 0

    def __call__(self, graph, inputs):
        self.count += 1
        compile_fx = torch._dynamo.lookup_backend(self.inner)
        return compile_fx(graph, inputs)


def outcome(forward, module, x, dy, config, dtype):
    leaf = x.detach().requires_grad_()
    with torch.autocast(
        x.device.type, dtype or torch.bfloat16, enabled=bool(dtype)
    ):
        y = forward(leaf, None, config)
    names, parameters = zip(*module.named_parameters(), strict=True)
    grads = torch.autograd.grad(y, (leaf, *parameters), dy.to(y.dtype))
    return {"y": y.detach(), **dict(zip(("dx", *names), grads, strict=True))}


@pytest.mark.parametrize(
    "dtype", [None, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_compiled_module_is_stocks_at_every_length(
    chunk_size, dtype, backend, device, launches
):
    stock = ConvolutionModule(C, K).to(device)
    ours = TritonConvolutionModule(C, K, backend="triton").to(device)
    ours.load_state_dict(stock.state_dict())
    counted = Counted(backend)
    compiled = torch.compile(
        ours, backend=counted, fullgraph=True, dynamic=True
    )
    config = DynChunkTrainConfig(chunk_size) if chunk_size else None
    counts = []
    for B, T in ((2, 9), (3, 12), (2, 30)):
        x = torch.randn(B, T, C, device=device)
        dy = torch.randn(B, T, C, device=device)
        launches.clear()
        result = outcome(compiled, ours, x, dy, config, dtype)
        assert launches["conv_kernel"] == 2, "the kernels did not run"
        expected = outcome(stock, stock, x, dy, config, dtype)
        exact = outcome(stock.double(), stock, x.double(), dy, config, None)
        stock.float()
        assert_as_exact_as_stock(result, expected, exact)
        counts.append(counted.count)
    assert counts[0] == counts[-1], "a new length was compiled anew"


@pytest.mark.parametrize("needed", ["nothing", "x"])
def test_compiled_module_runs_frozen(needed, backend, device):
    module = TritonConvolutionModule(C, K, backend="triton").to(device)
    module.requires_grad_(False)
    compiled = torch.compile(module, backend=backend, fullgraph=True)
    x = torch.randn(2, 9, C, device=device, requires_grad=needed == "x")
    y, expected = compiled(x), module(x)
    torch.testing.assert_close(y, expected)
    if needed == "x":
        grads = (torch.autograd.grad(t.sum(), x)[0] for t in (y, expected))
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    "op",
    [
        lambda x, w, b, v: layer_norm(
            x, v, b, activation="gelu", backend="triton"
        ),
        lambda x, w, b, v: depthwise_conv1d(
            x, w, b, chunk_size=4, backend="triton"
        ),
        lambda x, w, b, v: depthwise_conv1d(
            x, w, padding="causal", backend="triton"
        ),
        lambda x, w, b, v: conv_block(
            torch.cat((x, x), -1), w, None, v, b, backend="triton"
        ),
    ],
    ids=["layer_norm", "depthwise_conv1d", "causal", "conv_block"],
)
def test_compiled_op_is_the_eager_one(op, backend, device):
    leaves = [
        torch.randn(*shape, device=device, requires_grad=True)
        for shape in ((2, 9, C), (C, 1, K), (C,), (C,))
    ]
    compiled = torch.compile(op, backend=backend, fullgraph=True, dynamic=True)
    y, expected = compiled(*leaves), op(*leaves)
    dy = torch.randn_like(y)
    ours, eager = (
        torch.autograd.grad(t, leaves, dy, materialize_grads=True)
        for t in (y, expected)
    )
    torch.testing.assert_close(y, expected)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b)
