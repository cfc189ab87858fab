"""Checkpoints and copies of the front end, and files of other ones."""

import copy
import pickle

import pytest
import torch
from hyperpyyaml import load_hyperpyyaml
from plain_frontend import build
from speechbrain.lobes.models.convolution import ConvolutionFrontEnd
from speechbrain.utils.checkpoints import Checkpointer, average_checkpoints
from torch import nn

from speechbrain_triton.modules import FastConformerFrontEnd

KEYS = [
    f"{layer}.{parameter}"
    for layer in (
        "conv",
        "blocks.0.depthwise",
        "blocks.0.pointwise",
        "blocks.1.depthwise",
        "blocks.1.pointwise",
    )
    for parameter in ("weight", "bias")
]
YAML = """
n_mels: 80
frontend_backend: torch
CNN: !new:speechbrain_triton.modules.FastConformerFrontEnd
   n_mels: !ref <n_mels>
   subsampling: 4
   channels: 24
   kernel_size: 5
   activation: !name:torch.nn.SiLU
   causal: True
   backend: !ref <frontend_backend>
"""


def small(**options):
    return build(n_mels=9, **{"channels": 8, **options})


def stock():
    return ConvolutionFrontEnd(
        (8, 10, 9), num_blocks=2, out_channels=[8, 8], strides=[2, 2]
    )


def test_keys_say_what_they_are():
    state = FastConformerFrontEnd(channels=8, backend="torch").state_dict()
    assert list(state) == KEYS
    assert state["conv.weight"].shape == (8, 1, 3, 3)
    assert state["blocks.0.depthwise.weight"].shape == (8, 1, 3, 3)
    assert state["blocks.1.pointwise.weight"].shape == (8, 8, 1, 1)
    assert list(FastConformerFrontEnd(subsampling=4).state_dict()) == KEYS[:6]


@pytest.mark.parametrize(
    ("saved", "loaded"), [("torch", "triton"), ("triton", "torch")]
)
def test_file_of_one_backend_loads_with_the_other(
    saved, loaded, device, tmp_path
):
    source = build(device, n_mels=9, channels=8, backend=saved)
    target = build(device, n_mels=9, channels=8, backend=loaded)
    torch.save(source.state_dict(), tmp_path / "model.ckpt")
    state = torch.load(tmp_path / "model.ckpt", weights_only=True)
    assert (
        str(target.load_state_dict(state)) == "<All keys matched successfully>"
    )
    x = torch.randn(2, 30, 9, device=device)
    torch.testing.assert_close(target(x), source(x))


def test_checkpointer_recovers_and_averages(tmp_path):
    saver = Checkpointer(tmp_path, {"model": small(backend="torch")})
    states = []
    for backend in ("torch", "triton"):
        model = small(backend=backend)
        saver.recoverables["model"] = model
        saver.save_checkpoint()
        states.append(model.state_dict())
    mean = average_checkpoints(saver.find_checkpoints(), "model")
    model = small(backend="torch")
    model.load_state_dict(mean)
    for name, value in model.state_dict().items():
        expected = (states[0][name] + states[1][name]) / 2
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "pickle"],
)
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_copy_is_a_front_end_of_its_own(duplicate, backend, device):
    frontend = build(device, n_mels=9, channels=8, causal=True, backend=backend)
    other = duplicate(frontend)
    x = torch.randn(2, 30, 9, device=device)
    lengths = torch.tensor([0.4, 1.0], device=device)
    assert torch.equal(other(x, lengths), frontend(x, lengths))
    assert (other.backend, other.causal) == (backend, True)
    with torch.no_grad():
        frontend.conv.weight.add_(1)
    assert not torch.equal(other(x), frontend(x))


def in_a_model(frontend):
    return nn.ModuleDict({"CNN": frontend, "out": nn.Linear(2, 2)})


@pytest.mark.parametrize("wrap", [lambda module: module, in_a_model])
def test_file_of_speechbrains_front_end_gets_a_sentence(wrap):
    with pytest.raises(RuntimeError) as caught:
        wrap(small()).load_state_dict(wrap(stock()).state_dict())
    message = str(caught.value)
    assert message.count("holds SpeechBrain's ConvolutionFrontEnd") == 1
    assert message.index("YAML's key CNN") < 300


@pytest.mark.parametrize("wrap", [lambda module: module, in_a_model])
@pytest.mark.parametrize(
    "options",
    [{"channels": 4}, {"kernel_size": 5}, {"subsampling": 4}],
    ids=str,
)
@pytest.mark.parametrize("turned", [False, True])
def test_file_of_another_size_gets_a_sentence(wrap, options, turned):
    saved, loaded = wrap(small(**options)), wrap(small())
    if turned:
        saved, loaded = loaded, saved
    with pytest.raises(RuntimeError) as caught:
        loaded.load_state_dict(saved.state_dict())
    message = str(caught.value)
    for name, value in {"channels": 8, "subsampling": 8, **options}.items():
        assert f"{name}={value}" in message
    assert message.count("YAML's key CNN") == 1
    assert "size mismatch" not in message


def test_file_that_lacks_the_front_end_is_listed_as_ever():
    model = in_a_model(small())
    state = {"out.weight": torch.ones(2, 2), "out.bias": torch.ones(2)}
    with pytest.raises(RuntimeError, match="Missing key.*CNN.conv.weight"):
        model.load_state_dict(state)
    result = model.load_state_dict(state, strict=False)
    assert result.missing_keys == [f"CNN.{key}" for key in KEYS]
    assert (model["out"].weight == 1).all()


def test_file_with_a_hole_or_an_extra_is_listed_as_ever():
    frontend = small()
    state = frontend.state_dict()
    state["extra"] = state.pop("blocks.1.pointwise.bias")
    with pytest.raises(RuntimeError, match="Missing key") as caught:
        frontend.load_state_dict(state)
    assert '"blocks.1.pointwise.bias"' in str(caught.value)
    assert '"extra"' in str(caught.value)
    assert "YAML" not in str(caught.value)


def test_loading_that_is_not_strict_takes_what_fits():
    model = in_a_model(small())
    before = copy.deepcopy(model["CNN"].state_dict())
    result = model.load_state_dict(in_a_model(stock()).state_dict(), False)
    assert result.missing_keys == [f"CNN.{key}" for key in KEYS]
    assert all("CNN.convblock_" in key for key in result.unexpected_keys)
    for name, value in model["CNN"].state_dict().items():
        assert torch.equal(value, before[name])

    key = result.missing_keys[0]
    assert pickle.loads(pickle.dumps(key)) == key

    source = small(subsampling=4)
    result = model["CNN"].load_state_dict(source.state_dict(), strict=False)
    assert result.missing_keys == KEYS[6:]
    assert "_remark" not in vars(model["CNN"])
    assert torch.equal(model["CNN"].conv.weight, source.conv.weight)
    with pytest.raises(RuntimeError, match="channels=4"):
        model["CNN"].load_state_dict(small(channels=4).state_dict(), False)


def test_yaml_builds_it():
    frontend = load_hyperpyyaml(YAML)["CNN"]
    assert type(frontend) is FastConformerFrontEnd
    assert (frontend.channels, frontend.kernel_size) == (24, 5)
    assert type(frontend.activation) is nn.SiLU and frontend.causal
    assert frontend.backend == "torch"
    assert frontend.output_size == 20 * 24


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("frontend_backend", "'False'", "backend='False' is not one of 'auto'"),
        ("frontend_backend", "", "backend=None is not one of 'auto'"),
        ("n_mels", "80.0", "n_mels=80.0 is not a positive integer"),
    ],
)
def test_yaml_value_that_only_looks_right_is_refused(key, value, message):
    text = "\n".join(
        f"{key}: {value}" if line.startswith(f"{key}:") else line
        for line in YAML.splitlines()
    )
    with pytest.raises(ValueError, match=message):
        load_hyperpyyaml(text)
