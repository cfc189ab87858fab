"""Transducer loss with its joint network against the twin and float64."""

import math

import pytest
import torch
from test_transducer_loss import INTERPRETER_WARNS
from tolerance import assert_as_exact_as_stock

from speechbrain_triton.ops import transducer_joint_loss
from speechbrain_triton.ops.transducer_joint_loss import (
    NONLINEARITIES,
    launch,
    slices,
    transducer_joint_loss_reference,
)

pytestmark = INTERPRETER_WARNS

INPUTS = ("encoder", "predictor", "weight", "bias")
INTEGERS = ("targets", "logit_lengths", "target_lengths")
FLOAT = 4  # bytes
# The interpreter cuts float32 down to bfloat16 where a GPU rounds to nearest,
# and over the rows of a sum the cuts add up.
CUT = pytest.param(torch.bfloat16, marks=pytest.mark.gpu)
MANY = (9, 5, 7, 3, 8, 6, 4, 2), (3, 6, 2, 1, 4, 0, 2, 3)


def batch(frames, labels, V=11, J=24, *, dtype=torch.float32, device="cpu"):
    """Random inputs, labels and lengths, as keyword arguments."""
    frames, labels = torch.tensor(frames), torch.tensor(labels)
    B, T, U = len(frames), int(frames.max()), int(labels.max())
    arguments = {
        "encoder": torch.randn(B, T, J).to(dtype),
        "predictor": torch.randn(B, U + 1, J).to(dtype),
        "weight": (2 * torch.randn(V, J) / J**0.5).to(dtype),
        "bias": torch.randn(V).to(dtype),
        "targets": torch.randint(1, V, (B, U)),
        "logit_lengths": frames,
        "target_lengths": labels,
    }
    return {name: t.to(device) for name, t in arguments.items()}


def outcome(function, arguments, *, frozen=(), **options):
    """The loss, and gradients where each cost counts differently."""
    inputs = {
        name: x.detach().requires_grad_(name not in frozen)
        for name, x in arguments.items()
        if name in INPUTS and x is not None
    }
    loss = function(**{**arguments, **inputs}, **options)
    wanted = {n: x for n, x in inputs.items() if x.requires_grad}
    dloss = torch.arange(2.0, loss.numel() + 2, device=loss.device)
    grads = torch.autograd.grad(
        loss, wanted.values(), dloss.to(loss.dtype).view_as(loss)
    )
    names = (f"d{name}" for name in wanted)
    return {"loss": loss.detach(), **dict(zip(names, grads, strict=True))}


def fused(**arguments):
    return transducer_joint_loss(**arguments, backend="triton")


def doubles(arguments):
    return {
        name: x.double() if name in INPUTS and x is not None else x
        for name, x in arguments.items()
    }


def assert_kernel_is_right(arguments, workspace=None, **options):
    chosen = {} if workspace is None else {"workspace": workspace}
    # A loss adds up a hundred logits or fewer, each of which is rounded.
    eps = torch.finfo(arguments["weight"].dtype).eps
    assert_as_exact_as_stock(
        outcome(fused, arguments, **options, **chosen),
        outcome(transducer_joint_loss_reference, arguments, **options),
        outcome(transducer_joint_loss_reference, doubles(arguments), **options),
        slack={"loss": eps / 32},
    )


LENGTHS = [
    ((9, 4, 1, 6), (3, 0, 2, 1)),
    ((2, 5), (4, 0)),  # more labels than frames; none
    ((3, 2), (0, 0)),
    ((1,) * 5, (3,) * 5),
    ((40,), (2,)),  # several tiles of frames
    ((3, 2), (37, 18)),  # and of cells
]


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("frames, labels", LENGTHS)
def test_kernels_are_right_for_all_lengths(reduction, frames, labels, device):
    arguments = batch(frames, labels, device=device)
    assert_kernel_is_right(arguments, reduction=reduction)


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("dtype", [torch.float16, CUT], ids=str)
def test_kernels_are_right_in_half_precision(dtype, reduction, device):
    arguments = batch(*MANY, 40, dtype=dtype, device=device)
    assert_kernel_is_right(arguments, reduction=reduction)


@pytest.mark.parametrize("nonlinearity", list(NONLINEARITIES))
def test_kernels_are_right_for_every_nonlinearity(nonlinearity, device):
    arguments = batch((9, 5), (3, 6), device=device)
    # Where tanh is steep, and where it is flat.
    arguments["encoder"][0] *= 4
    arguments["encoder"][1] /= 20
    arguments["predictor"][1] /= 20
    assert_kernel_is_right(
        arguments, reduction="sum", nonlinearity=nonlinearity
    )


@pytest.mark.parametrize("V, J", [(2, 1), (500, 20), (1000, 130), (4100, 7)])
def test_kernels_are_right_for_every_width(V, J, device):
    arguments = batch((3, 2), (1, 2), V, J, device=device)
    assert_kernel_is_right(arguments, reduction="sum")


@pytest.mark.parametrize("blank", [0, -1])
def test_options_change_the_gradient_as_in_the_twin(blank, device):
    arguments = batch((4, 3), (2, 1), device=device)
    arguments["targets"] -= blank % 11 // 10
    options = {"blank": blank, "clamp": 0.1, "fastemit_lambda": 0.3}
    for reduction in ("none", "mean"):
        assert_kernel_is_right(arguments, reduction=reduction, **options)


# A row of the batch below has 35 floats; utterances have 15, 3, 3 and 8 rows.
WORKSPACES = [1, 7 * 35 * FLOAT, 12 * 35 * FLOAT, 22 * 35 * FLOAT]


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("workspace", WORKSPACES)
def test_slices_of_every_size_give_the_same(workspace, reduction, device):
    arguments = batch((5, 3, 1, 4), (2, 0, 2, 1), device=device)
    options = {"reduction": reduction, "workspace": workspace}
    assert_kernel_is_right(arguments, **options)
    first, second = (outcome(fused, arguments, **options) for _ in range(2))
    for name in first:
        assert torch.equal(first[name], second[name])


def test_slices_share_out_all_rows():
    frames, labels = [9, 0, 4, 1, 7, 0], [3, 2, 0, 2, 1, 0]
    for most_rows in range(1, 60):
        rows = []
        for group in slices.split(frames, labels, most_rows):
            for part in group:
                assert sum(s.rows for s in part) <= max(
                    most_rows, part[0].cells
                )
                rows += [
                    (s.utterance, s.first_frame + t)
                    for s in part
                    for t in range(s.frames)
                ]
            assert (
                len(group) == 1
                or len({b for part in group for b, *_ in part}) == 1
            )
        assert rows == [(b, t) for b in range(6) for t in range(frames[b])]


def test_programs_share_out_the_bias(device, monkeypatch):
    monkeypatch.setattr(launch, "BIAS_SUMS", 33)
    arguments = batch((5, 4), (2, 0), device=device)
    for workspace in (1, 7 * 35 * FLOAT, 2**20):
        assert_kernel_is_right(arguments, workspace, reduction="sum")


def test_logits_are_made_once_where_their_sum_is_wanted(device, launches):
    arguments = batch((9, 4, 1, 7), (3, 0, 2, 1), device=device)
    outcome(fused, arguments, reduction="mean", workspace=45 * 35 * FLOAT)
    assert launches == dict.fromkeys(launches, 2) and len(launches) == 6
    launches.clear()
    # Of the first utterance three slices make them, twice.
    outcome(fused, arguments, reduction="mean", workspace=21 * 35 * FLOAT)
    assert launches["packed_logits_grad_kernel"] == 3
    assert launches["joint_kernel"] == 5
    launches.clear()
    outcome(fused, arguments)
    assert launches.pop("joint_kernel") == 2
    assert launches == dict.fromkeys(launches, 1) and len(launches) == 5
    launches.clear()
    with torch.no_grad():
        fused(**arguments, reduction="mean")
    assert launches == {
        "joint_kernel": 1,
        "packed_log_probs_kernel": 1,
        "paths_kernel": 1,
    }


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize(
    "frozen",
    [("encoder", "predictor"), ("weight", "bias"), ("predictor",), ("bias",)],
)
def test_frozen_inputs_get_no_gradient(frozen, reduction, device, launches):
    arguments = batch((4, 3), (2, 1), device=device)
    options = {"reduction": reduction}
    expected = outcome(fused, arguments, **options)
    launches.clear()
    found = outcome(fused, arguments, frozen=frozen, **options)
    assert expected.keys() - found.keys() == {f"d{name}" for name in frozen}
    for name in found:
        assert torch.equal(found[name], expected[name])
    assert ("joint_grad_kernel" in launches) == ("encoder" not in frozen)


def test_without_a_bias(device):
    arguments = {**batch((4, 3), (2, 1), device=device), "bias": None}
    for reduction in ("none", "sum"):
        assert_kernel_is_right(arguments, reduction=reduction)


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_padding_is_not_read_and_gets_zeros(reduction, device):
    arguments = batch((6, 3, 1), (2, 4, 0), device=device)
    noisy = {name: t.clone() for name, t in arguments.items()}
    for b, (t, u) in enumerate(zip((6, 3, 1), (2, 4, 0), strict=True)):
        noisy["encoder"][b, t:] = math.nan
        noisy["predictor"][b, u + 1 :] = math.nan
        noisy["targets"][b, u:] = -100
    found = outcome(fused, noisy, reduction=reduction)
    expected = outcome(fused, arguments, reduction=reduction)
    for name in expected:
        assert torch.equal(found[name], expected[name])
    assert not found["dencoder"][1, 3:].any()
    assert not found["dpredictor"][0, 3:].any()


@pytest.mark.parametrize("how", ["impossible", "no frames", "nan"])
@pytest.mark.parametrize("workspace", [1, 2**20])
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_a_bad_utterance_leaves_the_others_alone(
    how, workspace, reduction, device
):
    arguments = batch((5, 5, 4), (2, 2, 1), device=device)
    arguments["targets"][0] = arguments["targets"][2] = 1
    arguments["targets"][1] = 2
    good = {
        name: x[::2] if name not in ("weight", "bias") else x
        for name, x in arguments.items()
    }
    if how == "impossible":
        arguments["bias"][2] = -math.inf
    elif how == "no frames":
        arguments["logit_lengths"][1] = 0
    else:
        arguments["encoder"][1, 2] = math.nan
    options = {"workspace": workspace, "reduction": reduction}
    found = outcome(fused, arguments, **options)
    if how == "impossible":
        good["bias"] = arguments["bias"]
    with torch.no_grad():
        alone = fused(**good, **options)
    costs = found["loss"] if reduction == "none" else found["loss"].view(1)
    bad = costs[1 if reduction == "none" else 0]
    assert bad.isnan() if how == "nan" else bad == math.inf
    if reduction == "none":
        torch.testing.assert_close(costs[::2], alone)
    else:
        expected = outcome(fused, good, **options)
        for name in ("dencoder", "dpredictor"):
            torch.testing.assert_close(
                found[name][::2], expected[name][:, : found[name].shape[1]]
            )
        if how != "nan":
            assert not found["dencoder"][1].any()
            torch.testing.assert_close(found["dweight"], expected["dweight"])


def test_labels_out_of_range_are_impossible_where_a_gpu_would_wait(device):
    from speechbrain_triton.ops.transducer_joint_loss.autograd import (
        run_transducer_joint_loss,
    )
    from speechbrain_triton.ops.transducer_joint_loss.options import Options

    arguments = batch((4, 4, 4), (2, 2, 1), device=device)
    arguments["targets"][1, 1] = 11
    options = Options("tanh", 0, -1.0, 0.0, torch.float32, 2**20)
    costs = run_transducer_joint_loss([*arguments.values()], options, False)
    assert costs.isinf().tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.float16, CUT], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_autocast_multiplies_in_its_dtype(dtype, reduction, device):
    """float32 parameters and gradients; the twin's products are as coarse."""
    arguments = batch(*MANY, 40, device=device)

    def cast(function):
        def call(**arguments):
            with torch.autocast(device, dtype):
                return function(**arguments)

        return call

    ours = outcome(cast(fused), arguments, reduction=reduction)
    assert {t.dtype for t in ours.values()} == {torch.float32}
    assert_as_exact_as_stock(
        ours,
        outcome(
            cast(transducer_joint_loss_reference),
            arguments,
            reduction=reduction,
        ),
        outcome(
            transducer_joint_loss_reference,
            doubles(arguments),
            reduction=reduction,
        ),
    )


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_scaler_of_gradients_overflows_nothing_in_half_precision(
    reduction, device
):
    arguments = batch((9, 5), (3, 6), dtype=torch.float16, device=device)
    for name in INPUTS[:2]:
        arguments[name] = arguments[name].float()

    def scaled(scale):
        inputs = {n: arguments[n].detach().requires_grad_() for n in INPUTS}
        with torch.autocast(device, torch.float16):
            loss = fused(**{**arguments, **inputs}, reduction=reduction)
        loss = loss.sum() * scale
        return torch.autograd.grad(loss, [inputs[n] for n in INPUTS[:2]])

    for big, small in zip(scaled(2.0**30), scaled(1.0), strict=True):
        assert torch.equal(big, small * 2.0**30)


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_double_backward(backend, reduction, device):
    def second(dtype, backend):
        torch.manual_seed(1)
        arguments = batch((3, 2), (2, 1), 4, 6, device=device)
        inputs = [arguments.pop(n).to(dtype).requires_grad_() for n in INPUTS]
        loss = transducer_joint_loss(
            *inputs, **arguments, reduction=reduction, backend=backend
        )
        grads = torch.autograd.grad(
            loss.pow(2).sum(), inputs, create_graph=True
        )
        return torch.autograd.grad(sum(g.pow(2).sum() for g in grads), inputs)

    exact = second(torch.float64, "torch")
    for ours, right in zip(second(torch.float32, backend), exact, strict=True):
        torch.testing.assert_close(ours.double(), right, rtol=1e-4, atol=1e-4)


def test_gradcheck_of_the_twin():
    arguments = doubles(batch((3, 2), (2, 1), 3, 2))
    inputs = [arguments.pop(n).requires_grad_() for n in INPUTS]

    def loss(*inputs):
        return transducer_joint_loss_reference(*inputs, **arguments)

    assert torch.autograd.gradcheck(loss, inputs)
    assert torch.autograd.gradgradcheck(loss, inputs)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_it_compiles_without_a_break(reduction, bias, device):
    torch.compiler.reset()
    compiled = torch.compile(fused, backend="aot_eager", fullgraph=True)
    arguments = batch((4, 3), (2, 1), device=device)
    if not bias:
        arguments["bias"] = None
    found = outcome(compiled, arguments, reduction=reduction)
    expected = outcome(fused, arguments, reduction=reduction)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_backward_twice(device):
    arguments = batch((4, 3), (2, 1), device=device)
    encoder = arguments["encoder"].requires_grad_()
    loss = fused(**arguments, reduction="mean")
    first, second = (
        torch.autograd.grad(loss, encoder, retain_graph=True)[0]
        for _ in range(2)
    )
    assert torch.equal(first, second) and first.any()


def test_an_empty_batch(device):
    arguments = {
        name: x if name in ("weight", "bias") else x[:0]
        for name, x in batch((4, 3), (2, 1), device=device).items()
    }
    for reduction in ("none", "sum"):
        found = outcome(fused, arguments, reduction=reduction)
        assert not any(value.any() for value in found.values())


def test_strided_inputs_and_any_integer_dtype(device):
    arguments = batch((6, 5), (4, 3), device=device)
    expected = outcome(fused, arguments)
    strided = dict(arguments)
    for name in ("encoder", "predictor"):
        strided[name] = arguments[name].transpose(0, 1).contiguous()
        strided[name] = strided[name].transpose(0, 1)
    strided["weight"] = arguments["weight"].t().contiguous().t()
    strided["targets"] = arguments["targets"].repeat_interleave(2, 1)[:, ::2]
    strided["logit_lengths"] = arguments["logit_lengths"].to(torch.uint8)
    found = outcome(fused, strided)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"encoder": torch.zeros(2, 6)}, ValueError, "encoder must be (batch"),
        (
            {"predictor": torch.zeros(2, 5, 3)},
            ValueError,
            "predictor must be (2, labels + 1, 24) for an encoder of",
        ),
        (
            {"weight": torch.zeros(24, 11)},
            ValueError,
            "weight must be (vocabulary, 24)",
        ),
        ({"bias": torch.zeros(24)}, ValueError, "bias must be (11)"),
        ({"bias": torch.zeros(11).half()}, TypeError, "bias is torch.float16"),
        ({"weight": torch.zeros(11, 24).int()}, TypeError, "must be floating"),
        ({"bias": torch.zeros(11, device="meta")}, ValueError, "same device"),
        (
            {"targets": torch.ones(2, 3).long()},
            ValueError,
            "targets must be (2, 4) for logits of (2, 6, 5, 11)",
        ),
        (
            {"logit_lengths": torch.tensor([6, 7])},
            ValueError,
            "logit_lengths must be from 0 to 6",
        ),
        ({"nonlinearity": "swish"}, ValueError, "nonlinearity='swish' is not"),
        ({"reduction": "batch"}, ValueError, "reduction='batch' is not one"),
        ({"blank": 11}, ValueError, "blank=11 is outside"),
        ({"workspace": 0}, ValueError, "workspace=0 must be at least 1 byte"),
        ({"backend": "cuda"}, ValueError, "backend='cuda' is not one of"),
    ],
)
def test_bad_input_gets_a_sentence(change, error, message):
    with pytest.raises(error) as raised:
        transducer_joint_loss(**{**batch((6, 5), (4, 3)), **change})
    assert message in str(raised.value)


def test_double_precision_takes_the_torch_path(device):
    arguments = doubles(batch((4, 3), (2, 1), device=device))
    with pytest.raises(RuntimeError, match="tensors are float64"):
        fused(**arguments)
    assert transducer_joint_loss(**arguments).dtype is torch.float64
