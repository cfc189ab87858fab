"""Checkpoints and copies of the feed-forward, and files of other ones."""

import copy
import pickle

import pytest
import torch
from plain_feedforward import D_FFN, D, build
from speechbrain.nnet.attention import PositionalwiseFeedForward
from speechbrain.utils.checkpoints import Checkpointer, average_checkpoints
from speechbrain.utils.parameter_transfer import Pretrainer
from torch import nn

KEYS = [
    "_extra_state",
    "linear_in.weight",
    "linear_in.bias",
    "linear_out.weight",
    "linear_out.bias",
]


def stock(d_ffn=D_FFN):
    return PositionalwiseFeedForward(d_ffn, input_size=D)


def in_a_model(feedforward):
    return nn.ModuleDict({"ffn1": feedforward, "out": nn.Linear(2, 2)})


WRAPS = [lambda module: module, in_a_model]


def test_keys_say_what_they_are():
    state = build(backend="torch").state_dict()
    assert sorted(state) == KEYS[:1] + sorted(KEYS[1:])
    assert state["linear_in.weight"].shape == (2 * D_FFN, D)
    assert state["linear_out.weight"].shape == (D, D_FFN)
    other = build(backend="triton").state_dict()
    assert list(other) == list(state)
    assert all(
        value.shape == other[name].shape for name, value in state.items()
    )


@pytest.mark.parametrize(
    ("saved", "loaded"), [("torch", "triton"), ("triton", "torch")]
)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_file_of_one_backend_loads_with_the_other(
    saved, loaded, approximate, device, tmp_path
):
    source = build(device, backend=saved, approximate=approximate)
    target = build(device, backend=loaded, approximate=approximate)
    torch.save(source.state_dict(), tmp_path / "model.ckpt")
    state = torch.load(tmp_path / "model.ckpt", weights_only=True)
    assert (
        str(target.load_state_dict(state)) == "<All keys matched successfully>"
    )
    x = torch.randn(2, 30, D, device=device)
    torch.testing.assert_close(target(x), source(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checkpointer_recovers_and_averages(tmp_path, approximate, dtype):
    options = {"approximate": approximate}
    saver = Checkpointer(tmp_path, {"model": None})
    states = []
    for backend in ("torch", "triton", "torch"):
        model = in_a_model(build(backend=backend, **options)).to(dtype)
        saver.recoverables["model"] = model
        saver.save_checkpoint(name=f"n{len(states)}")
        states.append(model.state_dict())
    found = saver.find_checkpoints()
    assert len(found) == 3
    mean = average_checkpoints(found, "model")
    model = in_a_model(build(**options)).to(dtype)
    model.load_state_dict(mean)
    for name, value in model.named_parameters():
        expected = sum(state[name].float() for state in states) / 3
        torch.testing.assert_close(
            value.float(), expected, rtol=2e-2, atol=2e-2
        )
    saver.recoverables["model"] = model
    saver.recover_if_possible()
    weight = states[-1]["ffn1.linear_in.weight"]
    assert torch.equal(model["ffn1"].linear_in.weight, weight)


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "pickle"],
)
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_copy_is_a_feed_forward_of_its_own(duplicate, backend, device):
    module = build(device, backend=backend, approximate="tanh")
    other = duplicate(module)
    x = torch.randn(2, 5, D, device=device)
    assert torch.equal(other(x), module(x))
    assert (other.backend, other.approximate) == (backend, "tanh")
    with torch.no_grad():
        module.linear_in.weight.add_(1)
    assert not torch.equal(other(x), module(x))


@pytest.mark.parametrize("wrap", WRAPS, ids=["alone", "in a model"])
@pytest.mark.parametrize("strict", [True, False])
def test_file_of_speechbrains_feed_forward_gets_a_sentence(wrap, strict):
    loaded = wrap(build())
    before = copy.deepcopy(loaded.state_dict())
    with pytest.raises(RuntimeError) as caught:
        loaded.load_state_dict(wrap(stock()).state_dict(), strict=strict)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 300
    assert (
        "SpeechBrain's PositionalwiseFeedForward and not a GEGLUFee" in message
    )
    assert "ffn: standard" in message
    for name, value in loaded.state_dict().items():
        if "out." not in name or "linear" in name:
            assert torch.equal(value, before[name])


def test_file_of_the_gated_one_does_not_load_into_speechbrains():
    with pytest.raises(RuntimeError, match='Unexpected.*"linear_in.weight"'):
        stock().load_state_dict(build().state_dict())


def test_checkpointer_and_pretrainer_pass_the_sentence_on(tmp_path):
    saver = Checkpointer(tmp_path / "run", {"model": in_a_model(stock())})
    saved = saver.save_checkpoint()
    saver.recoverables["model"] = in_a_model(build())
    with pytest.raises(RuntimeError, match="^GEGLUFeedForward: .*'ffn1'"):
        saver.recover_if_possible()
    pretrainer = Pretrainer(
        collect_in=tmp_path,
        loadables={"model": in_a_model(build())},
        paths={"model": str(saved.paramfiles["model"])},
    )
    pretrainer.collect_files()
    with pytest.raises(RuntimeError, match="PositionalwiseFeedForward"):
        pretrainer.load_collected()


@pytest.mark.parametrize("wrap", WRAPS, ids=["alone", "in a model"])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"d_ffn": 64}, "the checkpoint has d_ffn=64 and input_size=24"),
        ({"input_size": 8}, "the checkpoint has d_ffn=40 and input_size=8"),
    ],
)
def test_file_of_another_size_gets_a_sentence(wrap, strict, options, said):
    with pytest.raises(RuntimeError, match=said) as caught:
        wrap(build()).load_state_dict(
            wrap(build(**options)).state_dict(), strict=strict
        )
    assert "this feed-forward d_ffn=40 and input_size=24" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrap", WRAPS, ids=["alone", "in a model"])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("saved", "loaded"), [("none", "tanh"), ("tanh", "none")]
)
def test_file_of_the_other_gelu_is_refused(wrap, strict, saved, loaded):
    state = wrap(build(approximate=saved)).state_dict()
    message = f"trained with approximate='{saved}'.*has approximate='{loaded}'"
    with pytest.raises(RuntimeError, match=message) as caught:
        wrap(build(approximate=loaded)).load_state_dict(state, strict=strict)
    assert "\n" not in str(caught.value)


def test_average_over_both_gelus_is_refused(tmp_path):
    saver = Checkpointer(tmp_path, {"model": None})
    for approximate in ("none", "tanh"):
        saver.recoverables["model"] = build(approximate=approximate)
        saver.save_checkpoint(name=approximate)
    mean = average_checkpoints(saver.find_checkpoints(), "model")
    for approximate in ("none", "tanh"):
        with pytest.raises(RuntimeError, match="trained with different GELUs"):
            build(approximate=approximate).load_state_dict(mean)


def test_file_that_lacks_something_is_listed_as_ever():
    model = in_a_model(build())
    state = {"out.weight": torch.ones(2, 2), "out.bias": torch.ones(2)}
    with pytest.raises(
        RuntimeError, match="Missing key.*ffn1.linear_in.weight"
    ):
        model.load_state_dict(state)
    result = model.load_state_dict(state, strict=False)
    assert sorted(result.missing_keys) == sorted(f"ffn1.{key}" for key in KEYS)
    assert (model["out"].weight == 1).all()


def test_parameters_alone_do_not_say_which_gelu():
    """So a strict load asks for it, and any other names what it lacked."""
    module = build()
    state = dict(module.named_parameters())
    with pytest.raises(RuntimeError, match="Missing key.*_extra_state"):
        module.load_state_dict(state)
    result = module.load_state_dict(state, strict=False)
    assert result.missing_keys == ["_extra_state"]


def test_optimizer_made_for_one_backend_goes_on_with_the_other(device):
    module = build(device, backend="torch")
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    x = torch.randn(2, 5, D, device=device)
    before = module(x).detach()
    for backend in ("torch", "triton", "torch"):
        module.backend = backend
        module(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert module(x).pow(2).mean() < before.pow(2).mean()
