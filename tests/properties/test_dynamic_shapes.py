"""``torch.compile`` with dynamic shapes, for modules not tested so elsewhere:
what two batches have it compile is right for others, and enough for them."""

import pytest
import torch
from examples import features, module

MODULES = ("FastConformerFrontEnd", "ConformerEncoderLayer")
# Whole chunks and parts of one, several tiles.
LENGTHS = ((2, 9), (3, 12), (2, 21))
WARM = 2


@pytest.mark.parametrize("name", MODULES)
def test_module_is_the_eager_one_at_every_length(name, device, launches):
    net = module(name, device)
    for part in net.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    graphs = []

    def count(graph, inputs):
        # Inductor builds C++ on a CPU: there the graphs are enough.
        inner = "inductor" if device == "cuda" else "aot_eager"
        graphs.append(graph)
        return torch._dynamo.lookup_backend(inner)(graph, inputs)

    torch.compiler.reset()
    fast = torch.compile(net, backend=count, fullgraph=True, dynamic=True)
    parameters = [p for p in net.parameters() if p.requires_grad]
    compiled = []
    for B, T in LENGTHS:
        x = features(device, B, T)
        expected = outcome(net, x, parameters)
        launches.clear()
        found = outcome(fast, x, parameters)
        assert launches
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        compiled.append(len(graphs))
    torch.compiler.reset()
    assert compiled[0] and compiled[-1] == compiled[WARM - 1]


def outcome(forward, x, parameters):
    """y and the gradients of all parameters."""
    y = forward(x)
    assert y.is_contiguous()
    dy = torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape)
    return [y, *torch.autograd.grad(y, parameters, dy)]
