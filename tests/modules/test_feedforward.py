"""The gated feed-forward against plain layers, on both paths."""

import math

import pytest
import torch
from plain_feedforward import D_FFN, D, Plain, build, outcome
from speechbrain.nnet.attention import PositionalwiseFeedForward
from tolerance import assert_as_exact_as_stock
from torch import nn
from torch.utils.checkpoint import checkpoint

from speechbrain_triton.modules import GEGLUFeedForward
from speechbrain_triton.ops.dropout import draw_seed
from speechbrain_triton.ops.geglu_ffn import geglu_ffn_reference

BACKENDS = ["torch", "triton"]


def frames(device, *shape):
    return torch.randn(*(shape or (2, 37)), D, device=device)


def assert_near(ours, expected):
    """For the same sums in another order."""
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def assert_path(backend, launches):
    assert bool(launches) is (backend == "triton"), launches


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_values_and_gradients_are_those_of_plain_layers(
    backend, approximate, device, launches
):
    ours = build(device, backend=backend, approximate=approximate)
    stock = Plain(ours)
    x, dy = frames(device), frames(device)
    result = outcome(ours, x, dy)
    assert_path(backend, launches)
    assert_as_exact_as_stock(
        result,
        outcome(stock, x, dy),
        outcome(stock.exact(), x.double(), dy.double()),
    )
    assert result["y"].is_contiguous()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("approximate", "gate"),
    [
        ("none", 2.70 * 0.5 * (1 + math.erf(2.70 / math.sqrt(2)))),
        (
            "tanh",
            1.35
            * (
                1
                + math.tanh((2.70 + 0.044715 * 2.70**3) * (2 / math.pi) ** 0.5)
            ),
        ),
    ],
)
def test_gelu_is_the_one_that_was_asked_for(
    backend, approximate, gate, device, launches
):
    """Where the two are farthest apart."""
    module = build(
        device, d_ffn=1, input_size=2, backend=backend, approximate=approximate
    )
    with torch.no_grad():
        module.linear_in.weight.copy_(torch.eye(2))
        module.linear_out.weight.fill_(1)
        module.linear_in.bias.zero_()
        module.linear_out.bias.zero_()
    y = module(torch.tensor([[1.0, 2.70]], device=device))
    torch.testing.assert_close(
        y.double().cpu(),
        torch.full((1, 2), gate, dtype=torch.float64),
        rtol=0,
        atol=1e-6,
    )
    assert_path(backend, launches)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(0, 20), (3, 0), (1, 1), (5,), (2, 3, 4)])
def test_any_number_of_frames_will_do(backend, shape, device):
    module = build(device, backend=backend)
    x = frames(device, *shape).requires_grad_()
    y = module(x)
    assert_near(y, Plain(module)(x))
    y.sum().backward()
    assert all(p.grad.isfinite().all() for p in (x, *module.parameters()))


@pytest.mark.parametrize("dropout", [0.4, 1.0])
def test_dropout_of_the_kernels_is_that_of_their_twin(
    dropout, device, launches
):
    module = build(device, dropout=dropout, backend="triton")
    x, dy = frames(device), frames(device)
    torch.manual_seed(5)
    ours = outcome(module, x, dy)
    assert launches
    torch.manual_seed(5)
    seed = draw_seed()

    class Twin(nn.Module):
        def forward(self, x):
            return geglu_ffn_reference(
                x, *module.parameters(), dropout=dropout, seed=seed
            )

        def named_parameters(self):
            return module.named_parameters()

    for name, value in outcome(Twin(), x, dy).items():
        assert_near(ours[name], value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_is_of_training_and_of_the_inner_layer(backend, device):
    module = build(device, dropout=0.5, backend=backend)
    x = frames(device)
    assert not torch.allclose(module(x), module(x))
    module.eval()
    expected = Plain(module)(x)
    assert_near(module(x), expected)
    module.train().dropout.eval()
    assert_near(module(x), expected)
    module.train().dropout.p = 0.0
    assert_near(module(x), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_keeps_the_mean(backend, device):
    module = build(device, dropout=0.5, backend=backend)
    x = frames(device, 1, 3).expand(100, -1, -1)
    mean, kept = module(x).mean(0), module.eval()(x[0])
    assert (mean - kept).norm() < 0.3 * kept.norm()


@pytest.mark.parametrize("backend", BACKENDS)
def test_trains_with_dropout(backend, device, launches):
    module = GEGLUFeedForward(D_FFN, input_size=D, dropout=0.1, backend=backend)
    module.to(device)
    x = frames(device, 2, 8)
    target = x.roll(1, -1)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        loss = (module(x) - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    assert_path(backend, launches)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(backend, dtype, device, launches):
    module = build(device, backend=backend)
    x = frames(device).requires_grad_()
    with torch.autocast(device, dtype):
        y = module(x)
        with torch.autocast(device, enabled=False):
            assert module(x).dtype is torch.float32
        assert module(x.detach().to(dtype)).dtype is dtype
    assert y.dtype is dtype
    y.float().pow(2).sum().backward()
    assert_path(backend, launches)
    for tensor in (x, *module.parameters()):
        assert tensor.grad.dtype is torch.float32
        assert tensor.grad.isfinite().all() and tensor.grad.any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1, 30])
def test_autocast_is_as_exact_as_plain_layers(backend, dtype, scale, device):
    module = build(device, backend=backend)
    stock = Plain(module)
    x, dy = scale * frames(device), frames(device)
    with torch.autocast(device, dtype):
        ours, theirs = outcome(module, x, dy), outcome(stock, x, dy)
    exact = outcome(stock.exact(), x.double(), dy.double())
    assert_as_exact_as_stock(ours, theirs, exact)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_without_autocast(backend, dtype, device, launches):
    module = build(device, backend=backend).to(dtype)
    stock = Plain(module)
    x, dy = frames(device).to(dtype), frames(device).to(dtype)
    ours = outcome(module, x, dy)
    assert_path(backend, launches)
    exact = outcome(stock.exact(), x.double(), dy.double())
    assert_as_exact_as_stock(ours, outcome(stock, x, dy), exact)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_dtypes_outside_of_autocast_are_named(backend, device):
    module = build(device, backend=backend).bfloat16()
    with pytest.raises(RuntimeError, match="(?i)float.*bfloat16"):
        module(frames(device))


def test_float64_is_the_torch_paths(device, launches):
    module = build(device).double()
    x = frames(device).double()
    torch.testing.assert_close(module(x), Plain(module)(x))
    module.backend = "triton"
    with pytest.raises(RuntimeError, match="the tensors are float64"):
        module(x)
    assert not launches


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_give_what_contiguous_tensors_give(backend, device):
    module = build(device, backend=backend)
    dy = frames(device, 3, 7)
    for x in (
        frames(device, 7, 3).permute(1, 0, 2),
        frames(device, 3, 14)[:, ::2],
        torch.randn(3, 7, 2 * D, device=device)[..., :D],
        frames(device, 7).expand(3, -1, -1),
        frames(device, 4, 7)[1:],
        torch.randn(3, D, 7, device=device).transpose(1, 2),
    ):
        before = x.clone()
        ours = outcome(module, x, dy)
        for name, value in outcome(module, x.contiguous(), dy).items():
            assert_near(ours[name], value)
        assert torch.equal(x, before)
        # The gradient that arrives may be a view as well.
        given = torch.randn(D, 7, 3, device=device).permute(2, 1, 0)
        for name, value in outcome(module, x, given.contiguous()).items():
            assert_near(outcome(module, x, given)[name], value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_may_be_views(backend, device):
    module = build(device, backend=backend)
    x, dy = frames(device), frames(device)
    expected = outcome(module, x, dy)
    with torch.no_grad():
        for linear in (module.linear_in, module.linear_out):
            columns = linear.weight.t().contiguous().t()
            linear.weight = nn.Parameter(columns)
            assert not linear.weight.is_contiguous()
    for name, value in outcome(module, x, dy).items():
        assert_near(value, expected[name])


@pytest.mark.parametrize("backend", BACKENDS)
def test_input_that_another_function_saved_stays(backend, device):
    module = build(device, backend=backend)
    stock = Plain(module)
    gradients = []
    for model in (module, stock):
        torch.manual_seed(3)
        p = frames(device).requires_grad_()
        model(p.exp()).pow(2).sum().backward()
        gradients.append(p.grad)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_stay_and_backward_may_be_repeated(backend, device):
    module = build(device, backend=backend, dropout=0.3)
    x = frames(device).requires_grad_()
    tensors = [x, *module.parameters()]
    before = [tensor.detach().clone() for tensor in tensors]
    loss = module(x).pow(2).sum()
    loss.backward(retain_graph=True)
    once = [tensor.grad.clone() for tensor in tensors]
    loss.backward()
    for tensor, value, grad in zip(tensors, before, once, strict=True):
        assert torch.equal(tensor, value)
        torch.testing.assert_close(tensor.grad, 2 * grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_output_may_be_changed_in_place(backend, device):
    """As that of a linear layer, which no backward needs."""
    module = build(device, backend=backend)
    x = frames(device).requires_grad_()
    y = module(x)
    y.add_(1)
    y.sum().backward()
    once = x.grad.clone()
    x.grad = None
    module(x).sum().backward()
    assert torch.equal(x.grad, once)


@pytest.mark.parametrize("backend", BACKENDS)
def test_recomputed_activations_give_the_same_gradients(backend, device):
    """With dropout: its seed is drawn again."""
    module = build(device, backend=backend, dropout=0.3)
    x, dy = frames(device), frames(device)

    class Recomputed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    with torch.autocast(device, torch.bfloat16):
        torch.manual_seed(7)
        once = outcome(module, x, dy)
        torch.manual_seed(7)
        again = outcome(Recomputed(), x, dy)
    for name, value in once.items():
        name = name if name in ("x", "y") else f"inner.{name}"
        assert torch.equal(value, again[name]), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives(backend, device):
    module = build(device, backend=backend)
    found = []
    for model in (module, Plain(module)):
        torch.manual_seed(3)
        x = frames(device, 1, 5).requires_grad_()
        (dx,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(dx.pow(2).sum(), x)[0])
    assert_near(*found)


@pytest.mark.parametrize("activation", [nn.GELU, nn.SiLU])
def test_fresh_weights_give_the_variance_of_the_replaced_block(activation):
    x = torch.randn(4, 50, 256)
    old = PositionalwiseFeedForward(1024, input_size=256, activation=activation)
    for parameter in old.parameters():
        if parameter.dim() > 1:  # As TransformerASR draws them.
            nn.init.xavier_normal_(parameter)
    for d_ffn in (1024, 704):
        ratio = GEGLUFeedForward(d_ffn, input_size=256)(x).var() / old(x).var()
        assert 0.8 < ratio < 1.8


def test_backends_draw_the_same_weights():
    states = []
    for backend in BACKENDS:
        torch.manual_seed(1)
        states.append(
            GEGLUFeedForward(8, input_shape=(2, 5, 4), backend=backend)
        )
    for one, other in zip(*(m.parameters() for m in states), strict=True):
        assert torch.equal(one, other)
