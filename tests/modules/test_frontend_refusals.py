"""What the front end refuses, and what it leaves to the torch path."""

import logging

import pytest
import torch
from plain_frontend import Plain, build
from torch import nn

from speechbrain_triton import backend as backends
from speechbrain_triton.modules import FastConformerFrontEnd
from speechbrain_triton.modules.frontend_checks import frontend_obstacle


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_mels": 0}, "n_mels=0 is not a positive integer"),
        ({"n_mels": "80"}, "n_mels='80' is not a positive integer"),
        ({"channels": -1}, "channels=-1 is not a positive integer"),
        ({"channels": 256.0}, "channels=256.0 is not a positive integer"),
        ({"channels": True}, "channels=True is not a positive integer"),
        ({"kernel_size": 0}, "kernel_size=0 is not a positive integer"),
        ({"kernel_size": 4}, "kernel_size=4 is even"),
        ({"kernel_size": (3, 3)}, "kernel_size=.3, 3. is not a positive"),
        ({"subsampling": 2}, "subsampling=2 is not one of 4, 8"),
        ({"subsampling": 8.0}, "subsampling=8.0 is not one of 4, 8"),
        ({"causal": "no"}, "causal='no' is not one of True, False"),
        ({"activation": nn.ReLU()}, "activation=ReLU.. is not a class"),
        ({"activation": "relu"}, "activation='relu' is not a class"),
        # Its own name would have an address in it.
        pytest.param(
            {"activation": torch.relu},
            "is not a class such as torch.nn.ReLU",
            id="a function",
        ),
        ({"activation": dict}, "is not a class such as torch.nn.ReLU"),
        ({"backend": None}, "backend=None is not one of 'auto'"),
        ({"backend": "triton "}, "backend='triton ' is not one of 'auto'"),
        (
            {"backend": "triton", "activation": nn.SiLU},
            "'triton' does not cover the activation SiLU",
        ),
        (
            {"backend": "triton", "kernel_size": 7},
            "'triton' does not cover kernel_size 7, above 5",
        ),
    ],
    ids=str,
)
def test_argument_out_of_range_gets_a_sentence(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        FastConformerFrontEnd(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize(
    ("x", "lengths", "message"),
    [
        (torch.zeros(2, 5, 8), None, "x has 8 features .* n_mels=9"),
        (torch.zeros(5, 9), None, r"x must be \(batch, frames, n_mels\)"),
        (torch.zeros(2, 5, 9, 1), None, r"x must be .*\(2, 5, 9, 1\)"),
        (torch.zeros(2, 0, 9), None, "x has T=0 frames"),
        (torch.zeros(2, 5, 9).long(), None, "floating dtype; got torch.int64"),
        (torch.zeros(2, 5, 9), torch.ones(3), "3 entries for 2 utterances"),
        (torch.zeros(2, 5, 9), torch.ones(2, 1), r"lengths must be \(batch,\)"),
        (torch.zeros(2, 5, 9), torch.tensor([5, 3]), "got torch.int64"),
        (
            torch.zeros(2, 5, 9),
            torch.ones(2, device="meta"),
            "x is on .* and lengths on meta",
        ),
    ],
    ids=str,
)
def test_input_that_does_not_fit_gets_a_sentence(
    backend, x, lengths, message, device
):
    frontend = build(device, n_mels=9, channels=4, backend=backend)
    if lengths is not None and lengths.device.type != "meta":
        lengths = lengths.to(device)
    with pytest.raises(ValueError, match=message) as caught:
        frontend(x.to(device), lengths)
    assert "\n" not in str(caught.value)


def test_out_lengths_refuses_absolute_ones():
    frontend = FastConformerFrontEnd(channels=4)
    with pytest.raises(ValueError, match="relative to the longest"):
        frontend.out_lengths(torch.tensor([5, 3]), 5)


def hook(module):
    module.register_forward_hook(lambda *_: None)


def replace_pointwise(module):
    module.blocks[0].pointwise = nn.Sequential(module.blocks[0].pointwise)


def weight_norm(module):
    nn.utils.parametrizations.weight_norm(module.blocks[1].depthwise)


def own_forward(module):
    module.conv.forward = module.conv.forward


def no_bias(module):
    module.conv.bias = None


def dilate(module):
    module.blocks[1].depthwise.dilation = (2, 2)


def drop_block(module):
    del module.blocks[1]


CHANGES = [
    (lambda module: hook(module.conv), "hooks on conv"),
    (lambda module: hook(module.activation), "hooks on activation"),
    (lambda module: hook(module.blocks[1]), "hooks on blocks.1"),
    (
        lambda module: hook(module.blocks[0].depthwise),
        "hooks on blocks.0.depthwise",
    ),
    (replace_pointwise, "a Sequential in place of blocks.0.pointwise"),
    (weight_norm, "a ParametrizedStridedConv2d in place of blocks.1.depthwise"),
    (own_forward, "a forward of its own on conv"),
    (no_bias, "a conv other than the front end built"),
    (dilate, "a blocks.1.depthwise other than the front end built"),
    (drop_block, "blocks other than the front end built"),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_changed_layers_are_called_and_not_passed_by(
    change, reason, device, launches
):
    frontend = build(device, n_mels=9, channels=4)
    assert frontend_obstacle(frontend) is None
    change(frontend)
    assert frontend_obstacle(frontend) == reason
    frontend(torch.randn(2, 20, 9, device=device))
    assert not launches
    frontend.backend = "triton"
    with pytest.raises(RuntimeError, match=f"because {reason}; use 'auto'"):
        frontend(torch.randn(2, 20, 9, device=device))


def test_hooks_on_inner_layers_run(device):
    frontend = build(device, n_mels=9, channels=4)
    seen = []
    for layer in (frontend.conv, frontend.blocks[1].pointwise):
        layer.register_forward_hook(lambda _, i, o: seen.append(o.shape[1]))
    frontend(torch.randn(2, 20, 9, device=device))
    assert seen == [4, 4]


@pytest.mark.parametrize("activation", [nn.SiLU, nn.Sigmoid])
def test_other_activations_take_the_torch_path(activation, device, launches):
    frontend = build(device, n_mels=9, channels=4, activation=activation)
    stock = Plain(frontend)
    for index, layer in enumerate(stock.layers):
        if isinstance(layer, nn.ReLU):
            stock.layers[index] = activation()
    x = torch.randn(2, 20, 9, device=device)
    torch.testing.assert_close(frontend(x), stock(x))
    lengths = torch.tensor([0.4, 1.0], device=device)
    y = frontend(x, lengths)
    torch.testing.assert_close(y[0, :1], stock(x[:1, :8])[0])
    assert not y[0, 1:].any() and not launches


def test_path_and_reason_are_logged_once(caplog, device):
    backends._log_first.cache_clear()
    frontend = build(device, n_mels=9, channels=4, activation=nn.SiLU)
    with caplog.at_level(logging.INFO, "speechbrain_triton"):
        for _ in range(3):
            frontend(torch.randn(2, 20, 9, device=device))
    assert caplog.messages == [
        "FastConformerFrontEnd: torch path, because the activation SiLU."
    ]


@pytest.mark.parametrize("value", [None, "False", "no", 1.0, "Triton"])
def test_backend_set_later_is_checked_too(value):
    frontend = build(n_mels=9, channels=4)
    frontend.backend = value
    with pytest.raises(ValueError, match="backend=.* is not one of 'auto'"):
        frontend(torch.zeros(1, 5, 9))


@pytest.mark.parametrize("call", [{"x": None}, {"lengths": [1.0, 0.5]}])
def test_what_is_no_tensor_is_named(call):
    frontend = FastConformerFrontEnd(9, channels=4)
    (name,) = call
    with pytest.raises(TypeError, match=f"{name} must be a tensor; got a"):
        frontend(**{"x": torch.zeros(2, 5, 9), **call})
