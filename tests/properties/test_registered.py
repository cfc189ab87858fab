"""Operators that ``torch.compile`` sees keep to what they promise it."""

import pytest
import torch
from examples import example
from functorch.compile import make_boxed_func
from op_table import OPS
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode

# bias_relu and reflection_pad2d are compiled as their twins. The gated layers'
# operator is checked in tests/ops, with and without each of its inputs.
REGISTERED = [
    "depthwise_conv1d",
    "layer_norm",
    "conv_block",
    "conv_stem",
    "depthwise_conv2d",
    "transducer_loss",
    "transducer_joint_loss",
]
# The second result of these is room for sums over paths, of which only what
# lengths reach is written: its values can not be compared.
LOSSES = ("transducer_loss", "transducer_joint_loss")
BACKWARD = ("test_schema", "test_faketensor")
FORWARD = (*BACKWARD, "test_autograd_registration")
TRACED = (*FORWARD, "test_aot_dispatch_dynamic")
# Those that are absent in one of the two calls.
OPTIONAL = ("bias", "depthwise_bias", "input_bias", "glu_bias")


class Note(TorchDispatchMode):
    """Keeps the calls of this package's operators.

    It runs them as other such modes do, PyTorch's ``FlopCounterMode`` for one:
    below autograd, where no tensor is known as a view.
    """

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace == "speechbrain_triton":
            self.calls.append((op, args))
        return op(*args, **(kwargs or {}))


def operators_of(name, complete, mode, device):
    """Operators of forward and backward, with what they are called with."""
    case = example(name, mode=mode)
    tensors = {
        name: t.requires_grad_()
        for name, t in case.tensors(device).items()
        if complete or name not in _absent(case.op)
    }
    arguments = {**case.integer_tensors(device), **case.options}
    note = Note()

    def noted(graph, inputs):
        def run(*inputs):
            with note:
                return graph(*inputs)

        return make_boxed_func(run)

    def call(**tensors):
        with case.autocast(device):
            return OPS[name].call(**tensors, **arguments, backend="triton")

    torch.compiler.reset()
    compiled = torch.compile(call, backend=aot_autograd(fw_compiler=noted))
    compiled(**tensors).sum().backward()
    torch.compiler.reset()
    return note.calls


def _absent(name):
    # The layer norm's bias is always there.
    return () if name == "layer_norm" else OPTIONAL


@pytest.mark.parametrize(
    ("mode", "complete"), [("float32", True), ("autocast", False)]
)
@pytest.mark.parametrize("name", REGISTERED)
def test_operator_keeps_to_its_schema(name, mode, complete, device):
    """No input is written to, no result is a view, fakes are as the real."""
    if mode not in OPS[name].modes:
        mode = "float16"
    forward, backward = operators_of(name, complete, mode, device)
    operator, arguments = forward
    assert operator._schema.name == f"speechbrain_triton::{name}"
    torch.library.opcheck(
        operator,
        tuple(map(differentiable, arguments)),
        test_utils=TRACED if complete and name not in LOSSES else FORWARD,
    )
    operator, arguments = backward
    assert operator._schema.name == f"speechbrain_triton::{name}_grad"
    torch.library.opcheck(operator, arguments, test_utils=BACKWARD)


def differentiable(argument):
    """The argument, as a leaf with a gradient if it may have one."""
    if not isinstance(argument, torch.Tensor):
        return argument
    return argument.detach().requires_grad_(argument.is_floating_point())


@pytest.mark.parametrize("name", [*REGISTERED, "geglu_linear"])
def test_double_backward_of_compiled_calls_is_refused(name, device):
    case = example(name)
    tensors, integers = case.tensors(device), case.integer_tensors(device)
    leaves = {n: t.requires_grad_() for n, t in tensors.items()}

    def call(**leaves):
        return OPS[name].call(
            **leaves, **integers, **case.options, backend="triton"
        )

    torch.compiler.reset()
    y = torch.compile(call, backend="aot_eager")(**leaves)
    first, *_ = torch.autograd.grad(
        y.square().sum(), list(leaves.values()), create_graph=True
    )
    with pytest.raises(RuntimeError, match="double backward"):
        first.sum().backward()
    torch.compiler.reset()
