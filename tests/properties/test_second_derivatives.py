"""Double backward, which is right, and transforms, which are refused."""

import pytest
import torch
from examples import example
from op_table import OPS
from tolerance import assert_as_exact_as_stock
from torch.autograd import forward_ad


def second(case, tensors, integers, backend):
    """Gradients of a function of all first gradients, also by upstream's."""
    leaves = {n: t.detach().requires_grad_() for n, t in tensors.items()}
    y = OPS[case.op].call(**leaves, **integers, **case.options, backend=backend)
    leaves["dy"] = case.upstream(y.detach()).requires_grad_()
    inputs = list(leaves.values())
    first = torch.autograd.grad(y, inputs[:-1], inputs[-1], create_graph=True)
    total = sum(grad.square().mean() for grad in first)
    grads = torch.autograd.grad(total, inputs, materialize_grads=True)
    names = (f"d{name}" for name in leaves)
    return dict(zip(names, grads, strict=True))


@pytest.mark.parametrize("name", list(OPS))
def test_double_backward_is_as_exact_as_stocks(name, device, launches):
    case = example(name)
    tensors, integers = case.tensors(device), case.integer_tensors(device)
    ours = second(case, tensors, integers, "triton")
    assert launches
    doubles = {n: t.double() for n, t in tensors.items()}
    assert_as_exact_as_stock(
        ours,
        second(case, tensors, integers, "torch"),
        second(case, doubles, integers, "torch"),
    )
    assert ours["ddy"].any()


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize(
    "options", [{"clamp": 0.1}, {"fastemit_lambda": 0.3}], ids=str
)
def test_changed_gradient_of_the_joint_has_no_derivative(
    options, reduction, device
):
    case = example("transducer_joint_loss")
    tensors, integers = case.tensors(device), case.integer_tensors(device)
    leaves = {n: t.requires_grad_() for n, t in tensors.items()}
    loss = OPS[case.op].call(
        **leaves, **integers, **options, reduction=reduction, backend="triton"
    )
    (name,) = options
    with pytest.raises(RuntimeError, match=f"create_graph=True.* with {name}"):
        torch.autograd.grad(
            loss.sum(), list(leaves.values()), create_graph=True
        )


def transforms(call, x):
    """Each way in which ``torch.func`` and forward mode would run a call."""
    ones = torch.ones_like(x)

    def dual():
        with forward_ad.dual_level():
            return call(forward_ad.make_dual(x, ones))

    yield lambda: torch.func.vmap(call)(torch.stack((x, ones)))
    yield lambda: torch.func.grad(lambda x: call(x).sum())(x)
    yield lambda: torch.func.jvp(call, (x,), (ones,))
    yield lambda: torch.func.jacrev(call)(x)
    yield lambda: torch.func.jacfwd(call)(x)
    yield dual


@pytest.mark.parametrize("name", list(OPS))
def test_transforms_are_refused_by_name(name, device):
    """Kernels would drop a tangent without a word."""
    case = example(name)
    tensors, integers = case.tensors(device), case.integer_tensors(device)
    first = next(iter(tensors))
    x = tensors.pop(first)

    def call(x):
        named = {first: x, **tensors, **integers, **case.options}
        return OPS[name].call(**named, backend="triton")

    reason = f"{name}: .*(torch.func|forward-mode).*use 'auto' or 'torch'"
    for grad in (True, False):
        for transform in transforms(call, x):
            with torch.set_grad_enabled(grad):
                with pytest.raises(RuntimeError, match=reason):
                    transform()


@pytest.mark.parametrize("name", list(OPS))
def test_batched_gradients_are_refused_rather_than_wrong(name, device):
    case = example(name)
    tensors, integers = case.tensors(device), case.integer_tensors(device)
    leaves = {n: t.requires_grad_() for n, t in tensors.items()}
    y = OPS[name].call(**leaves, **integers, **case.options, backend="triton")
    batch = torch.ones(2, *y.shape, device=device)
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.autograd.grad(
            y, list(leaves.values()), batch, is_grads_batched=True
        )
