"""Transducer loss: padding, impossible utterances, strides, bad arguments."""

import math

import pytest
import torch
from test_transducer_loss import INTERPRETER_WARNS, batch, outcome

from speechbrain_triton.ops import transducer_loss
from speechbrain_triton.ops.transducer_loss import op

pytestmark = INTERPRETER_WARNS
BACKENDS = pytest.mark.parametrize("backend", ["triton", "torch"])


@BACKENDS
def test_padding_is_not_read_and_gets_zeros(backend, device):
    arguments = batch((6, 3, 1), (2, 4, 0), 7, device=device)
    noisy = {name: t.clone() for name, t in arguments.items()}
    outside = torch.ones(noisy["logits"].shape[:3], dtype=torch.bool)
    for b, (t, u) in enumerate(zip((6, 3, 1), (2, 4, 0), strict=True)):
        outside[b, :t, : u + 1] = False
        noisy["targets"][b, u:] = -100
    noisy["logits"][outside] = math.nan
    found = outcome(transducer_loss, noisy, backend=backend)
    expected = outcome(transducer_loss, arguments, backend=backend)
    for name in expected:
        assert torch.equal(found[name], expected[name])
    assert found["dlogits"][outside.to(device)].eq(0).all()


@BACKENDS
@pytest.mark.parametrize("low", [-math.inf, -1e38])
def test_masked_symbols_are_legal(low, backend, device):
    """The utterance is as one of a smaller vocabulary."""
    arguments = batch((5, 4), (2, 3), 7, device=device)
    arguments["targets"].clamp_(max=4)
    narrow = {**arguments, "logits": arguments["logits"][..., :5]}
    arguments["logits"][..., 5:] = low
    found = outcome(transducer_loss, arguments, backend=backend)
    expected = outcome(transducer_loss, narrow, backend=backend)
    torch.testing.assert_close(found["cost"], expected["cost"])
    torch.testing.assert_close(found["dlogits"][..., :5], expected["dlogits"])
    assert not found["dlogits"][..., 5:].any()


def spoil(logits, targets, how):
    """Make the second utterance impossible, or its logits no numbers."""
    if how == "label":
        logits[1, ..., targets[1, 0]] = -math.inf
    elif how == "last blank":
        logits[1, -1, -1, 0] = -math.inf
    elif how == "lowest":
        logits[1, ..., targets[1, 0]] = torch.finfo(logits.dtype).min
    elif how == "nan":
        logits[1, 2, 1, 3] = math.nan
    elif how == "inf":
        logits[1, 2, 1, 3] = math.inf
    else:
        logits[1, 2, 1] = -math.inf


@BACKENDS
@pytest.mark.parametrize(
    "options", [{}, {"clamp": 0.1, "fastemit_lambda": 0.1}], ids=str
)
@pytest.mark.parametrize(
    "how", ["label", "last blank", "lowest", "nan", "inf", "all -inf"]
)
def test_a_bad_utterance_leaves_the_others_alone(how, options, backend, device):
    arguments = batch((5, 5, 4), (2, 2, 1), 7, device=device)
    options["backend"] = backend
    expected = outcome(transducer_loss, arguments, **options)
    spoil(arguments["logits"], arguments["targets"], how)
    found = outcome(transducer_loss, arguments, **options)
    for name in expected:
        assert torch.equal(found[name][::2], expected[name][::2])
    if how in ("label", "last blank", "lowest"):
        assert found["cost"][1] == math.inf
        assert found["dlogits"][1].eq(0).all()
    else:
        assert found["cost"][1].isnan()


@BACKENDS
def test_an_impossible_arc_is_not_taken(backend, device):
    """The only path left has both labels at the last frame."""
    arguments = batch((3,), (2,), 5, device=device)
    targets = arguments["targets"][0]
    arguments["logits"][0, :2, 0, targets[0]] = -math.inf
    log_probs = arguments["logits"][0].log_softmax(2)
    path = ((0, 0, 0), (1, 0, 0), (2, 0, targets[0]), (2, 1, targets[1]))
    expected = -sum(log_probs[cell] for cell in (*path, (2, 2, 0)))
    found = outcome(transducer_loss, arguments, backend=backend)
    torch.testing.assert_close(found["cost"][0], expected)
    assert found["dlogits"].isfinite().all()
    assert not found["dlogits"][0, :2, 1:].any()


def test_strided_inputs_give_what_their_copies_give(device):
    arguments = batch((6, 5), (4, 3), 7, device=device)
    strided = {
        "logits": arguments["logits"].transpose(1, 2).contiguous(),
        "targets": arguments["targets"].repeat_interleave(2, 1)[:, ::2],
        "logit_lengths": torch.tensor([6, 0, 5], device=device)[::2],
        "target_lengths": torch.tensor([4, 0, 3], device=device)[::2],
    }
    strided["logits"] = strided["logits"].transpose(1, 2)
    found = outcome(transducer_loss, strided, backend="triton")
    expected = outcome(transducer_loss, arguments, backend="triton")
    for name in expected:
        assert torch.equal(found[name], expected[name])


def test_lengths_may_be_shorter_than_the_tensors(device):
    arguments = batch((6, 5), (4, 3), 7, device=device)
    arguments["logit_lengths"] -= 2
    arguments["target_lengths"] -= 2
    found = outcome(transducer_loss, arguments, backend="triton")
    arguments["logits"] = arguments["logits"][:, :4, :3]
    arguments["targets"] = arguments["targets"][:, :2]
    expected = outcome(transducer_loss, arguments, backend="triton")
    torch.testing.assert_close(found["cost"], expected["cost"])
    torch.testing.assert_close(found["dlogits"][:, :4, :3], expected["dlogits"])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_any_integer_dtype(dtype, device):
    arguments = batch((6, 5), (4, 3), 7, device=device)
    expected = transducer_loss(**arguments, backend="triton")
    for name in ("targets", "logit_lengths", "target_lengths"):
        arguments[name] = arguments[name].to(dtype)
    for backend in ("triton", "torch"):
        found = transducer_loss(**arguments, backend=backend)
        torch.testing.assert_close(found, expected)


@BACKENDS
def test_empty_batch(backend, device):
    logits = torch.zeros(0, 3, 2, 4, device=device, requires_grad=True)
    integers = torch.zeros(0, dtype=torch.long, device=device)
    arguments = logits, integers.view(0, 1), integers, integers
    loss = transducer_loss(*arguments, reduction="sum", backend=backend)
    loss.backward()
    assert loss == 0 and logits.grad.shape == logits.shape


def inplace_backward(logits, **options):
    """Costs of logits that are a result, and the results' gradient."""
    torch.manual_seed(2)
    arguments = batch((4, 3), (2, 1), 5, device=logits.device)
    arguments["logits"] = logits
    return transducer_loss(**arguments, backend="triton", **options)


@pytest.fixture
def leaf(device):
    return torch.randn(2, 4, 3, 5, device=device, requires_grad=True)


def test_inplace_writes_the_gradient_over_the_logits(leaf):
    (expected,) = torch.autograd.grad(inplace_backward(leaf * 1).sum(), leaf)
    logits = leaf * 1
    addresses = []
    logits.register_hook(lambda grad: addresses.append(grad.data_ptr()))
    inplace_backward(logits, inplace=True).sum().backward()
    assert torch.equal(leaf.grad, expected)
    assert torch.equal(logits, expected)
    assert addresses == [logits.data_ptr()]


def test_inplace_leaves_logits_that_had_to_be_copied(leaf):
    (expected,) = torch.autograd.grad(inplace_backward(leaf * 1).sum(), leaf)
    logits = (leaf * 1).transpose(1, 2).contiguous().transpose(1, 2)
    assert not logits.is_contiguous()
    inplace_backward(logits, inplace=True).sum().backward()
    assert torch.equal(leaf.grad, expected) and torch.equal(logits, leaf)


def test_inplace_is_refused_where_it_would_be_wrong(leaf):
    with pytest.raises(ValueError, match="inplace=True .* a leaf"):
        inplace_backward(leaf, inplace=True)
    loss = inplace_backward(leaf * 1, inplace=True).sum()
    with pytest.raises(RuntimeError, match="create_graph.* with inplace"):
        torch.autograd.grad(loss, leaf, create_graph=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="first backward wrote"):
        loss.backward()
    logits = leaf * 1
    other = logits.exp().sum() + logits.pow(2).sum()  # keeps the logits
    loss = inplace_backward(logits, inplace=True).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        other.backward()


@BACKENDS
@pytest.mark.parametrize("option", ["clamp", "fastemit_lambda"])
def test_a_changed_gradient_has_no_second_backward(option, backend, device):
    arguments = batch((4, 3), (2, 1), 5, device=device)
    logits = arguments["logits"].requires_grad_()
    loss = transducer_loss(**arguments, backend=backend, **{option: 0.5}).sum()
    with pytest.raises(RuntimeError, match=f"create_graph.* with {option}"):
        torch.autograd.grad(loss, logits, create_graph=True)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"logits": torch.zeros(2, 4, 5)}, "logits must be"),
        ({"logits": torch.zeros(2, 0, 3, 5)}, "none of the last three 0"),
        ({"targets": torch.ones(2, 3).long()}, r"targets must be \(2, 2\)"),
        ({"logit_lengths": torch.ones(3).long()}, "logit_lengths must be"),
        ({"logit_lengths": torch.tensor([5, 1])}, "from 0 to 4 .* got 5"),
        ({"target_lengths": torch.tensor([2, -1])}, "from 0 to 2 .* got -1"),
        ({"targets": torch.tensor([[1, 5], [9, 9]])}, "from 0 to 4 .* got 5"),
        ({"targets": torch.ones(2, 2, device="meta").long()}, "same device"),
        ({"blank": 5}, "blank=5 is outside"),
        ({"blank": -6}, "blank=-6 is outside"),
        ({"reduction": "average"}, "reduction='average' is not one of"),
        ({"fastemit_lambda": -0.1}, "fastemit_lambda=-0.1 must be"),
        ({"backend": "numba"}, "backend='numba' is not one of"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    arguments = batch((4, 3), (2, 0), 5)
    with pytest.raises(ValueError, match=message):
        transducer_loss(**{**arguments, **change})


@pytest.mark.parametrize(
    "name, value",
    [
        ("logit_lengths", torch.ones(2)),
        ("target_lengths", torch.ones(2, dtype=torch.bool)),
        ("targets", torch.ones(2, 2)),
        ("logits", torch.ones(2, 4, 3, 5, dtype=torch.int64)),
    ],
)
def test_wrong_dtypes_are_named(name, value):
    arguments = batch((4, 3), (2, 0), 5)
    with pytest.raises(TypeError, match=f"{name} must be"):
        transducer_loss(**{**arguments, name: value})


def test_sizes_that_the_kernels_do_not_take_are_named(monkeypatch):
    arguments = batch((4, 3), (2, 0), 5)
    monkeypatch.setattr(op, "MAX_BATCH", 1)
    with pytest.raises(RuntimeError, match="at most 1 utterances, not 2"):
        transducer_loss(**arguments, backend="triton")
    monkeypatch.setattr(op, "MAX_BATCH", 2)
    monkeypatch.setattr(op, "MAX_CELLS", 11)
    with pytest.raises(RuntimeError, match=r"at most 11 pairs .* not 4 \* 3"):
        transducer_loss(**arguments, backend="triton")
