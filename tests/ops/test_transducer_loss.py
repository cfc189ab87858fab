"""Transducer loss against a sum over paths, torchaudio and float64."""

import pytest
import torch
import torchaudio
from tolerance import assert_as_exact_as_stock
from transducer_paths import path_sum

from speechbrain_triton.ops.transducer_loss import (
    launch,
    transducer_loss,
    transducer_loss_reference,
)
from speechbrain_triton.ops.transducer_loss.autograd import run_transducer_loss

# About infinities of rows that are masked, where a GPU says nothing.
INTERPRETER_WARNS = pytest.mark.filterwarnings(
    "ignore:divide by zero", "ignore:invalid value"
)
pytestmark = INTERPRETER_WARNS

HALVES = (torch.bfloat16, torch.float16)
FORWARD = {"log_probs_kernel": 1, "paths_kernel": 1}
BOTH = FORWARD | {"logits_grad_kernel": 1}


def batch(frames, labels, V, *, blank=0, dtype=torch.float32, device="cpu"):
    """Random logits, labels and lengths, as keyword arguments."""
    frames, labels = torch.tensor(frames), torch.tensor(labels)
    B, T, U = len(frames), int(frames.max()), int(labels.max())
    others = torch.tensor([v for v in range(V) if v != blank])
    arguments = {
        "logits": (2 * torch.randn(B, T, U + 1, V)).to(dtype),
        "targets": others[torch.randint(V - 1, (B, U))],
        "logit_lengths": frames,
        "target_lengths": labels,
    }
    return {name: t.to(device) for name, t in arguments.items()}


def outcome(function, arguments, **options):
    """Costs, and the logits' gradient where each cost counts differently."""
    logits = arguments["logits"].detach().requires_grad_()
    cost = function(**{**arguments, "logits": logits}, **options)
    dcost = torch.arange(1.0, len(logits) + 1, device=cost.device)
    (grad,) = torch.autograd.grad(cost, logits, dcost.to(cost.dtype))
    return {"cost": cost.detach(), "dlogits": grad}


def doubles(arguments):
    return {**arguments, "logits": arguments["logits"].double()}


def definition(
    logits, targets, logit_lengths, target_lengths, blank=0, label_weight=1
):
    """path_sum of each utterance; FastEmit weighs gradients of labels."""
    log_probs = logits.log_softmax(3)
    costs = []
    for b in range(len(logits)):
        T, U = int(logit_lengths[b]), int(target_lengths[b])
        labels = targets[b, :U].tolist()
        x = log_probs[b, :T, : U + 1]
        if label_weight != 1:
            weight = torch.ones_like(x)
            for u, label in enumerate(labels):
                weight[:, u, label] = label_weight
            # The same values, with weighted gradients.
            x = x * weight + (x - x * weight).detach()
        costs.append(path_sum(x, labels, blank))
    return torch.stack(costs)


def assert_kernel_is_right(
    arguments, launches, exact=transducer_loss_reference, **options
):
    launches.clear()
    ours = outcome(transducer_loss, arguments, backend="triton", **options)
    assert launches == BOTH
    assert_as_exact_as_stock(
        ours,
        outcome(transducer_loss_reference, arguments, **options),
        outcome(exact, doubles(arguments), **options),
    )


LENGTHS = [
    ((4, 3, 1), (3, 1, 2)),
    ((2, 5), (4, 0)),  # more labels than frames; none
    ((3, 2), (0, 0)),
    ((1,) * 9, (3,) * 9),
    ((1,) * 9, (0,) * 9),
    ((6, 6), (1, 2)),
]


@pytest.mark.parametrize("frames, labels", LENGTHS)
@pytest.mark.parametrize("blank", [0, 2, 4])
def test_kernel_and_twin_are_the_sum_over_all_paths(
    blank, frames, labels, device, launches
):
    arguments = batch(frames, labels, 5, blank=blank, device=device)
    assert_kernel_is_right(arguments, launches, definition, blank=blank)
    exact = outcome(definition, doubles(arguments), blank=blank)
    twin = outcome(transducer_loss_reference, doubles(arguments), blank=blank)
    for name in exact:
        torch.testing.assert_close(twin[name], exact[name])


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_kernel_is_right_in_every_dtype(dtype, device, launches):
    arguments = batch((9, 5), (3, 6), 40, dtype=dtype, device=device)
    assert_kernel_is_right(arguments, launches)


@pytest.mark.parametrize("V", [1, 2, 17, 500, 1000, 4100])
def test_kernel_is_right_for_every_vocabulary(V, device, launches):
    """Several rows a tile, one, and several tiles a row."""
    if V == 1:  # nothing but blanks: probability 1, and nothing to learn
        arguments = {
            "logits": torch.randn(2, 3, 1, 1, device=device),
            "targets": torch.zeros(2, 0, dtype=torch.long, device=device),
            "logit_lengths": torch.tensor([3, 2], device=device),
            "target_lengths": torch.tensor([0, 0], device=device),
        }
        result = outcome(transducer_loss, arguments, backend="triton")
        assert not result["cost"].any() and not result["dlogits"].any()
        return
    arguments = batch((3, 2), (1, 2), V, device=device)
    assert_kernel_is_right(arguments, launches)


@pytest.mark.parametrize("frames, labels", [((3, 2), (70, 33)), ((16,), (70,))])
def test_kernel_is_right_with_more_labels_than_lanes(
    frames, labels, device, launches, monkeypatch
):
    monkeypatch.setattr(launch, "MAX_LANES", 32)
    arguments = batch(frames, labels, 4, device=device)
    assert_kernel_is_right(arguments, launches)


@pytest.mark.parametrize("size", [31, 32, 33])
def test_kernel_is_right_at_the_edge_of_its_lanes(size, device, launches):
    arguments = batch((2, 2), (size - 1, size - 2), 4, device=device)
    assert_kernel_is_right(arguments, launches)


def test_programs_share_out_all_rows(device, launches, monkeypatch):
    monkeypatch.setattr(launch, "MIN_PROGRAMS", 2)
    launch.row_split.cache_clear()
    arguments = batch((9, 7, 8), (4, 6, 1), 600, device=device)
    assert_kernel_is_right(arguments, launches)
    launch.row_split.cache_clear()


@pytest.mark.parametrize("clamp", [-1.0, 0.05])
@pytest.mark.parametrize("blank", [0, -1])
def test_values_and_gradients_are_torchaudios(blank, clamp, device):
    arguments = batch((7, 4, 5), (3, 4, 0), 6, blank=blank % 6, device=device)
    on_cpu = {name: t.cpu() for name, t in arguments.items()}
    for name in ("targets", "logit_lengths", "target_lengths"):
        on_cpu[name] = on_cpu[name].int()

    def stock(logits, targets, logit_lengths, target_lengths, **options):
        return torchaudio.functional.rnnt_loss(
            logits, targets, logit_lengths, target_lengths, **options
        )

    options = {"blank": blank, "reduction": "none", "clamp": clamp}
    expected = outcome(stock, on_cpu, **options)
    if clamp > 0:
        assert (expected["dlogits"][0].abs() == clamp).any()
    for backend in ("triton", "torch"):
        found = outcome(transducer_loss, arguments, backend=backend, **options)
        for name, value in expected.items():
            torch.testing.assert_close(found[name].cpu(), value)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_reductions(reduction, device):
    arguments = batch((4, 3), (2, 1), 5, device=device)
    each = transducer_loss(**arguments, backend="triton")
    loss = transducer_loss(**arguments, reduction=reduction, backend="triton")
    expected = {"none": each, "mean": each.mean(), "sum": each.sum()}
    assert torch.equal(loss, expected[reduction])
    assert loss.dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_fastemit_weighs_gradients_through_labels(dtype, device, launches):
    arguments = batch((4, 3, 2), (2, 1, 0), 5, dtype=dtype, device=device)

    def exact(fastemit_lambda, **arguments):
        return definition(**arguments, label_weight=1 + fastemit_lambda)

    assert_kernel_is_right(arguments, launches, exact, fastemit_lambda=0.3)


def test_fastemit_is_clamped_as_a_whole(device, launches):
    arguments = batch((4, 3), (2, 1), 5, device=device)
    options = {"fastemit_lambda": 0.3, "clamp": 0.1}
    assert_kernel_is_right(arguments, launches, **options)
    free = outcome(transducer_loss_reference, arguments, fastemit_lambda=0.3)
    found = outcome(transducer_loss, arguments, backend="triton", **options)
    weights = torch.tensor([1.0, 2], device=device).view(2, 1, 1, 1)
    expected = (free["dlogits"] / weights).clamp(-0.1, 0.1) * weights
    torch.testing.assert_close(found["dlogits"], expected)


def test_nothing_but_the_costs_is_computed_without_a_gradient(device, launches):
    arguments = batch((4, 3), (2, 1), 5, device=device)
    expected = outcome(transducer_loss, arguments, backend="triton")["cost"]
    launches.clear()
    with torch.no_grad():
        arguments["logits"].requires_grad_()
        cost = transducer_loss(**arguments, backend="triton")
    assert launches == FORWARD and torch.equal(cost, expected)


def test_repeated_calls_give_the_same_bits_and_leave_the_inputs(device):
    arguments = batch((9, 5), (3, 6), 40, device=device)
    before = {name: t.clone() for name, t in arguments.items()}
    first, second = (
        outcome(transducer_loss, arguments, backend="triton") for _ in range(2)
    )
    for name in first:
        assert torch.equal(first[name], second[name])
    for name, t in arguments.items():
        assert torch.equal(t, before[name])


@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_double_backward(backend, device):
    def second(dtype, **options):
        torch.manual_seed(1)
        arguments = batch((3, 2), (2, 1), 4, device=device)
        logits = arguments.pop("logits").to(dtype).requires_grad_()
        cost = transducer_loss(logits, **arguments, **options)
        (grad,) = torch.autograd.grad(
            cost.pow(2).sum(), logits, create_graph=True
        )
        return torch.autograd.grad(grad.pow(2).sum(), logits)[0]

    exact = second(torch.float64, backend="torch")
    found = second(torch.float32, backend=backend)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


def test_gradcheck_of_the_twin():
    arguments = doubles(batch((3, 2), (2, 1), 3))
    logits = arguments.pop("logits").requires_grad_()

    def loss(logits):
        return transducer_loss_reference(logits, **arguments)

    assert torch.autograd.gradcheck(loss, logits)
    assert torch.autograd.gradgradcheck(loss, logits)


@pytest.mark.parametrize("options", [{"clamp": 0.1}, {"fastemit_lambda": 0.1}])
def test_it_compiles_without_a_break(options, device):
    torch.compiler.reset()
    compiled = torch.compile(
        transducer_loss, backend="aot_eager", fullgraph=True
    )
    arguments = batch((4, 3), (2, 1), 5, device=device)
    found = outcome(compiled, arguments, backend="triton", **options)
    expected = outcome(transducer_loss, arguments, backend="triton", **options)
    for name, value in expected.items():
        assert torch.equal(found[name], value)


@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_double_precision_takes_the_torch_path(backend, device):
    arguments = doubles(batch((4, 3), (2, 1), 5, device=device))
    if backend == "triton":
        with pytest.raises(RuntimeError, match="tensors are float64"):
            transducer_loss(**arguments, backend=backend)
    else:
        loss = transducer_loss(**arguments, backend=backend)
        assert loss.dtype is torch.float64


def test_kernel_and_twin_take_lengths_out_of_range_as_impossible(device):
    """What a GPU does not wait for, the CPU refuses before."""
    arguments = batch((4, 4, 4, 4, 4), (2,) * 5, 5, device=device)
    logits = arguments["logits"]
    arguments["logit_lengths"][:] = torch.tensor([4, 0, 5, 4, 4])
    arguments["target_lengths"][:] = torch.tensor([2, 1, 2, -1, 2])
    arguments["targets"][4] = torch.tensor([1, 5])
    for cost in (
        run_transducer_loss(*arguments.values(), 0, -1.0, 0.0, False),
        transducer_loss_reference(**arguments),
    ):
        assert cost.isinf().tolist() == [False, True, True, True, True]
    logits.requires_grad_()
    cost = run_transducer_loss(*arguments.values(), 0, -1.0, 0.0, False)
    (grad,) = torch.autograd.grad(cost.sum(), logits)
    assert grad[0].any() and not grad[1:].any()
