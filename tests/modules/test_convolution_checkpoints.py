"""Checkpoints move freely between kernels on and off."""

import copy

import pytest
import torch
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
from speechbrain.utils.checkpoints import Checkpointer, average_checkpoints
from torch import nn

import speechbrain_triton as st

C = 8
KEYS = [
    f"{layer}.{parameter}"
    for layer in (
        "layer_norm",
        "bottleneck.0",
        "conv",
        "after_conv.0",
        "after_conv.2",
    )
    for parameter in ("weight", "bias")
]


def build(conv, device):
    model = nn.Sequential(ConvolutionModule(C, 3), ConvolutionModule(C, 3))
    st.apply_kernels(model, conv=conv)
    return model.to(device)


def train(model, optimizer, batches):
    for x in batches:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()


def checkpointer(folder, model, optimizer):
    return Checkpointer(folder, {"model": model, "optimizer": optimizer})


@pytest.mark.parametrize("conv", ["torch", "triton"])
def test_state_dict_has_stocks_keys_shapes_and_order(conv, device):
    state = build(conv, device)[0].state_dict()
    assert list(state) == KEYS
    assert state["conv.weight"].shape == (C, 1, 3)
    assert state["bottleneck.0.weight"].shape == (2 * C, C, 1)


@pytest.mark.parametrize(
    ("saved", "loaded"), [("torch", "triton"), ("triton", "torch")]
)
def test_file_saved_with_one_flag_loads_strictly_with_the_other(
    saved, loaded, device, launches, tmp_path
):
    source, target = build(saved, device), build(loaded, device)
    torch.save(source.state_dict(), tmp_path / "model.ckpt")
    state = torch.load(tmp_path / "model.ckpt", weights_only=True)
    target.load_state_dict(state, strict=True)
    x = torch.randn(2, 9, C, device=device)
    torch.testing.assert_close(target(x), source(x))
    assert launches["conv_kernel"] == 2


def test_average_over_files_of_both_flags_is_the_average(device, tmp_path):
    models = [build(conv, device) for conv in ("torch", "triton", "torch")]
    saver = Checkpointer(tmp_path)
    for model in models:
        saver.add_recoverable("model", model)
        saver.save_checkpoint()
        saver.recoverables.clear()
    files = saver.find_checkpoints(max_num_checkpoints=3)
    averaged = average_checkpoints(files, "model")
    states = [model.state_dict() for model in models]
    assert list(averaged) == list(states[0])
    for key, value in averaged.items():
        mean = torch.stack([state[key].cpu() for state in states]).mean(0)
        torch.testing.assert_close(value, mean)
    for model in models:
        model.load_state_dict(averaged, strict=True)


@pytest.mark.parametrize(
    ("before", "after"), [("torch", "triton"), ("triton", "torch")]
)
def test_resumed_training_goes_on_as_if_the_flag_had_not_changed(
    before, after, device, launches, tmp_path
):
    batches = torch.randn(4, 2, 9, C, device=device)
    model = build(before, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, batches[:2])
    checkpointer(tmp_path, model, optimizer).save_checkpoint()
    resumed = build(after, device)
    resumed_optimizer = torch.optim.AdamW(resumed.parameters(), lr=1e-2)
    found = checkpointer(tmp_path, resumed, resumed_optimizer)
    assert found.recover_if_possible() is not None
    assert len(resumed_optimizer.state) == 2 * len(KEYS)

    train(model, optimizer, batches[2:])
    train(resumed, resumed_optimizer, batches[2:])
    assert launches["conv_kernel"] == 2 * 2 * (
        2 + (2 if before == "triton" else 0)
    )
    torch.testing.assert_close(resumed.state_dict(), model.state_dict())


def test_flag_may_change_between_two_steps(device, launches):
    """The optimizer made before goes on: its parameters are the same."""
    batches = torch.randn(4, 2, 9, C, device=device)
    model = build("torch", device)
    stock = copy.deepcopy(model)
    for trained, flags in (
        (stock, ("torch",) * 4),
        (model, ("torch", "triton") * 2),
    ):
        optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
        for x, conv in zip(batches, flags, strict=True):
            st.apply_kernels(trained, conv=conv)
            train(trained, optimizer, [x])
    assert launches["conv_kernel"] == 2 * 2 * 2
    torch.testing.assert_close(model.state_dict(), stock.state_dict())
