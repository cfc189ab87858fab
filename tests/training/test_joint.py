"""The joint network of the recipes, called or left to the loss."""

import logging

import pytest
import torch
from speechbrain.nnet.linear import Linear
from speechbrain.nnet.transducer.transducer_joint import Transducer_joint
from torch import nn
from torch.nn.utils import parametrizations

from speechbrain_triton import backend
from speechbrain_triton.training import TransducerJoint, transducer_loss
from speechbrain_triton.training.joint import JointLogits, joint_obstacle

J, V = 12, 7
pytestmark = pytest.mark.filterwarnings(
    # Of Triton's interpreter.
    "ignore:divide by zero",
    "ignore:invalid value",
)


def layers(nonlinearity=nn.Tanh, **options):
    return (
        Transducer_joint(nonlinearity=nonlinearity),
        Linear(V, input_size=J, **options),
    )


def inputs(device="cpu"):
    return torch.randn(3, 6, J, device=device), torch.randn(
        3, 4, J, device=device
    )


def losses(joint, encoder, predictor, **options):
    """The loss and the gradients of all that has one."""
    device = encoder.device
    leaves = [x.detach().requires_grad_() for x in (encoder, predictor)] + list(
        joint.parameters()
    )
    loss = transducer_loss(
        joint(*leaves[:2]),
        torch.tensor([[1, 2, 3], [4, 5, 0], [6, 6, 1]], device=device),
        torch.tensor([1.0, 0.5, 2 / 3], device=device),
        torch.tensor([1.0, 2 / 3, 1.0], device=device),
        0,
        **options,
    )
    weights = torch.arange(1.0, loss.numel() + 1, device=device)
    grads = torch.autograd.grad(loss, leaves, weights.view_as(loss))
    return [loss.detach(), *grads]


@pytest.mark.parametrize(
    "nonlinearity", [nn.Tanh, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.Identity]
)
@pytest.mark.parametrize("bias", [True, False])
def test_fused_and_unfused_are_the_same(nonlinearity, bias, device, launches):
    joint = TransducerJoint(*layers(nonlinearity, bias=bias)).to(device)
    tensors = inputs(device)
    expected = losses(joint, *tensors, backend="torch")
    assert not launches
    joint.fused, joint.backend = True, "triton"
    found = losses(joint, *tensors, backend="triton")
    assert launches["joint_grad_kernel"] == 1
    for ours, right in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, right)


@pytest.mark.parametrize("scale", ["torchaudio", "speechbrain"])
@pytest.mark.parametrize("reduction", ["mean", "batchmean", "sum", "none"])
def test_reductions_and_scales(reduction, scale, device):
    joint = TransducerJoint(*layers()).to(device)
    tensors = inputs(device)
    options = {"reduction": reduction, "scale": scale}
    expected = losses(joint, *tensors, backend="torch", **options)
    joint.fused, joint.backend = True, "triton"
    found = losses(joint, *tensors, backend="triton", **options)
    for ours, right in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, right)


def test_logits_to_come_have_the_shape_of_logits(device):
    joint = TransducerJoint(*layers(), fused=True, backend="triton")
    joint.to(device)
    logits = joint(*inputs(device))
    joint.fused = False
    expected = joint(*inputs(device))
    assert isinstance(logits, JointLogits)
    assert (logits.shape, logits.ndim) == (expected.shape, expected.ndim)
    assert logits.device == expected.device


def test_data_parallel_processes_share_the_gradients(device, tmp_path):
    """Though the loss is computed behind the wrapped module's forward."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    shared = []

    def share(_, bucket):
        shared.append(bucket.buffer().numel())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    try:
        joint = TransducerJoint(*layers(), fused=True, backend="triton")
        joint = nn.parallel.DistributedDataParallel(joint.to(device))
        joint.register_comm_hook(None, share)
        encoder, predictor = inputs(device)
        transducer_loss(
            joint(encoder, predictor),
            torch.ones(3, 3, dtype=torch.long, device=device),
            *torch.ones(2, 3, device=device),
            0,
        ).backward()
    finally:
        torch.distributed.destroy_process_group()
    assert sum(shared) == V * J + V
    assert all(p.grad.any() for p in joint.parameters())


def adapter(joint, linear):
    linear.w = nn.Sequential(linear.w)


def hook(joint, linear):
    linear.w.register_forward_hook(lambda *_: None)


def parametrization(joint, linear):
    parametrizations.weight_norm(linear.w)


def concat(joint, linear):
    joint.joint = "concat"


def sigmoid(joint, linear):
    joint.nonlinearity = nn.Sigmoid()


def steep(joint, linear):
    joint.nonlinearity = nn.LeakyReLU(0.2)


def approximate(joint, linear):
    joint.nonlinearity = nn.GELU("tanh")


def hook_on_nonlinearity(joint, linear):
    joint.nonlinearity.register_forward_pre_hook(lambda *_: None)


def max_norm(joint, linear):
    linear.max_norm = 1.0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (adapter, "a Sequential in place of the output layer's w"),
        (hook, "hooks on the output layer's w"),
        (parametrization, "a ParametrizedLinear in place of"),
        (concat, "a joint by 'concat', not 'sum'"),
        (sigmoid, r"the nonlinearity Sigmoid\(\)"),
        (steep, r"the nonlinearity LeakyReLU\(negative_slope=0.2\)"),
        (approximate, r"the nonlinearity GELU\(approximate='tanh'\)"),
        (hook_on_nonlinearity, r"the nonlinearity Tanh\(\)"),
        (max_norm, "an output layer with max_norm"),
    ],
)
def test_what_the_kernels_would_pass_by_is_called(change, reason, device):
    joint = TransducerJoint(*layers(), fused=True, backend="triton")
    joint.to(device)
    assert joint_obstacle(joint.joint, joint.linear) is None
    change(joint.joint, joint.linear)
    with pytest.raises(RuntimeError, match=f"because {reason}"):
        joint(*inputs(device))
    if change is concat:
        return  # its output layer would be another one
    joint.backend = "auto"
    assert isinstance(joint(*inputs(device)), torch.Tensor)


def test_without_a_gpu_logits_are_made_and_the_reason_is_told(caplog):
    backend._log_first.cache_clear()
    joint = TransducerJoint(*layers(), fused=True)
    with caplog.at_level(logging.INFO, "speechbrain_triton.backend"):
        logits = joint(*inputs())
    assert isinstance(logits, torch.Tensor)
    assert "fused_joint: torch path, because " in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fused": "yes"}, "fused_joint='yes' is not one of True, False"),
        ({"fused": None}, "fused_joint=None is not one of True, False"),
        (
            {"fused": True, "backend": "torchaudio"},
            "fused_joint='torchaudio' is not one of 'auto', 'triton'",
        ),
    ],
)
def test_wrong_flags_get_a_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        TransducerJoint(*layers(), **options)


def test_another_backend_cannot_make_the_logits(device):
    joint = TransducerJoint(*layers(), fused=True, backend="triton")
    with pytest.raises(ValueError, match="fused joint='torchaudio' is not"):
        losses(joint.to(device), *inputs(device), backend="torchaudio")
