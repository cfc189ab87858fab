"""What the gated feed-forward refuses, and leaves to the torch path."""

import logging

import pytest
import torch
from plain_feedforward import D_FFN, D, Plain, build
from torch import nn

from speechbrain_triton import backend as backends
from speechbrain_triton.modules import GEGLUFeedForward
from speechbrain_triton.modules.feedforward import feedforward_obstacle

REFUSED = [None, "False", "no", "triton ", "Triton", "", 1.0, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_ffn": 0}, "d_ffn=0 is not a positive integer"),
        ({"d_ffn": 8.0}, "d_ffn=8.0 is not a positive integer"),
        ({"d_ffn": True}, "d_ffn=True is not a positive integer"),
        ({"input_size": "4"}, "input_size='4' is not a positive integer"),
        ({"input_size": None}, "input_shape or input_size must be given"),
        (
            {"dropout": 1.5},
            r"dropout must be a probability in \[0, 1\], got 1.5",
        ),
        ({"dropout": "0.1"}, "dropout must be a probability .* got '0.1'"),
        (
            {"approximate": None},
            "approximate=None is not one of 'none', 'tanh'",
        ),
        ({"approximate": "erf"}, "approximate='erf' is not one of 'none'"),
        *(
            ({"backend": value}, f"backend={value!r} is not one of 'auto'")
            for value in REFUSED
        ),
    ],
    ids=str,
)
def test_argument_out_of_range_gets_a_sentence(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        GEGLUFeedForward(**{"d_ffn": 8, "input_size": 4, **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.zeros(2, 5, D + 1), ValueError, r"x must be \(..., 24\); got"),
        (torch.zeros(()), ValueError, r"x must be \(..., 24\); got the shape"),
        (
            torch.zeros(2, 5, D).long(),
            ValueError,
            "floating dtype; got torch.in",
        ),
        (None, TypeError, "x must be a tensor; got a NoneType"),
    ],
    ids=["size", "scalar", "int64", "None"],
)
def test_input_that_does_not_fit_gets_a_sentence(
    backend, x, error, message, device
):
    module = build(device, backend=backend)
    with pytest.raises(error, match=message) as caught:
        module(x if x is None else x.to(device))
    assert "\n" not in str(caught.value)


def hook(layer):
    layer.register_forward_hook(lambda *_: None)


def adapter(module):
    module.linear_in = nn.Sequential(module.linear_in)


def weight_norm(module):
    nn.utils.parametrizations.weight_norm(module.linear_out)


def own_forward(module):
    module.linear_in.forward = module.linear_in.forward


def other_size(module):
    module.linear_out = nn.Linear(D_FFN, D + 1)


CHANGES = [
    (lambda m: hook(m.linear_in), "hooks on linear_in"),
    (lambda m: hook(m.linear_out), "hooks on linear_out"),
    (lambda m: hook(m.dropout), "hooks on dropout"),
    (adapter, "a Sequential in place of linear_in"),
    (weight_norm, "a ParametrizedLinear in place of linear_out"),
    (own_forward, "a forward of its own on linear_in"),
    (other_size, "a linear_out other than the feed-forward built"),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_changed_layers_are_called_and_not_passed_by(
    change, reason, device, launches
):
    module = build(device)
    assert feedforward_obstacle(module) is None
    change(module)
    module.to(device)
    assert feedforward_obstacle(module) == reason
    module(torch.randn(2, 5, D, device=device))
    assert not launches
    module.backend = "triton"
    with pytest.raises(RuntimeError, match=f"because {reason}; use 'auto'"):
        module(torch.randn(2, 5, D, device=device))


def test_layer_taken_away_is_an_obstacle():
    module = build()
    module.dropout = None
    assert feedforward_obstacle(module) == "a NoneType in place of dropout"


def test_layers_without_bias_are_covered(device, launches):
    module = build(device, backend="triton")
    for linear in (module.linear_in, module.linear_out):
        linear.bias = None
    x = torch.randn(2, 5, D, device=device)
    ours = module(x)
    assert launches
    module.backend = "torch"
    torch.testing.assert_close(ours, module(x), rtol=1e-4, atol=1e-4)


def test_hooks_on_inner_layers_run_and_may_change_the_output(device):
    module = build(device)
    module.linear_out.register_forward_hook(lambda _, x, y: 2 * y)
    x = torch.randn(2, 5, D, device=device)
    expected = 2 * Plain(module)(x)
    torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_hooks_on_the_block_itself_run(backend, device, launches):
    module = build(device, backend=backend)
    seen = []
    module.register_forward_hook(lambda *_: seen.append("forward"))
    module.register_full_backward_hook(lambda *_: seen.append("backward"))
    x = torch.randn(2, 5, D, device=device, requires_grad=True)
    module(x).sum().backward()
    assert seen == ["forward", "backward"]
    assert bool(launches) is (backend == "triton")


def test_path_and_reason_are_logged_once(caplog, device):
    backends._log_first.cache_clear()
    module = build(device)
    hook(module.linear_in)
    with caplog.at_level(logging.INFO, "speechbrain_triton"):
        for _ in range(3):
            module(torch.randn(2, 5, D, device=device))
    assert caplog.messages == [
        "GEGLUFeedForward: torch path, because hooks on linear_in."
    ]


def test_triton_path_is_logged_too(caplog, device):
    backends._log_first.cache_clear()
    module = build(device, backend="triton")
    assert module.takes_triton(torch.randn(2, 5, D, device=device))
    # It is there already if another test has set the level.
    caplog.clear()
    with caplog.at_level(logging.INFO, "speechbrain_triton"):
        backends._log_first.cache_clear()
        module(torch.randn(2, 5, D, device=device))
    assert caplog.messages == ["GEGLUFeedForward: Triton path."]


@pytest.mark.parametrize("value", REFUSED)
def test_backend_set_later_is_checked_too(value):
    module = build()
    module.backend = value
    with pytest.raises(ValueError, match="backend=.* is not one of 'auto'"):
        module(torch.zeros(1, 5, D))


def test_print_says_what_it_is():
    text = repr(build(dropout=0.1, approximate="tanh", backend="torch"))
    assert "approximate='tanh', backend='torch'" in text
    assert "Dropout(p=0.1" in text
