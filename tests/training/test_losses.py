"""The transducer loss against a sum over all paths of a small lattice."""

import sys
import types

import pytest
import torch
from transducer_paths import path_sum

from speechbrain_triton.training import losses
from speechbrain_triton.training.losses import transducer_loss

BLANK = 0
NUMBA = "speechbrain.integrations.numba.transducer_loss"
BACKENDS = pytest.mark.parametrize("backend", ["torchaudio", "triton", "torch"])

pytestmark = pytest.mark.filterwarnings(
    # Of Triton's interpreter.
    "ignore:divide by zero",
    "ignore:invalid value",
)


def lattice(frames=(4, 3, 1), labels=(3, 1, 2), vocabulary=5, seed=0):
    """A padded batch with relative lengths as SpeechBrain gives them."""
    generator = torch.Generator().manual_seed(seed)
    longest, most = max(frames), max(labels)
    logits = torch.randn(
        len(frames), longest, most + 1, vocabulary, generator=generator
    )
    targets = torch.randint(
        1, vocabulary, (len(frames), most), generator=generator
    )
    input_lens = torch.tensor(frames) / longest
    target_lens = torch.tensor(labels) / max(most, 1)
    return logits, targets, input_lens, target_lens


def oracle(logits, targets, frames, labels):
    """Each utterance's -log p, and the float64 logits to differentiate by."""
    logits = logits.double().requires_grad_()
    costs = torch.stack(
        [
            path_sum(
                logits[b, :t, : u + 1].log_softmax(-1),
                targets[b, :u].tolist(),
                BLANK,
            )
            for b, (t, u) in enumerate(zip(frames, labels, strict=True))
        ]
    )
    return costs, logits


@BACKENDS
@pytest.mark.parametrize("reduction", ["none", "mean", "batchmean", "sum"])
@pytest.mark.parametrize(
    ("frames", "labels"),
    [
        ((4, 3, 1), (3, 1, 2)),
        ((2, 5), (4, 0)),  # more labels than frames; an empty transcript
        ((3, 2), (0, 0)),
        ((1,), (1,)),
    ],
)
def test_value_and_gradient_are_those_of_the_path_sum(
    frames, labels, reduction, backend, device
):
    logits, targets, *lens = lattice(frames, labels)
    costs, exact = oracle(logits, targets, frames, labels)
    logits.requires_grad_()
    loss = transducer_loss(
        *(t.to(device) for t in (logits, targets, *lens)),
        BLANK,
        reduction,
        backend=backend,
    )
    expected = {"none": costs, "sum": costs.sum()}.get(reduction, costs.mean())
    torch.testing.assert_close(
        loss.cpu().double(), expected, rtol=1e-5, atol=1e-5
    )

    weights = torch.arange(1.0, len(frames) + 1) if reduction == "none" else 1.0
    (loss.cpu() * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(
        logits.grad.double(), exact.grad, rtol=1e-4, atol=1e-6
    )


def test_gradient_is_the_derivative_of_the_printed_value():
    """Unlike SpeechBrain's, whose value is divided by the frames."""
    logits, targets, input_lens, target_lens = lattice()
    logits = logits.requires_grad_()

    def value(x):
        return transducer_loss(x, targets, input_lens, target_lens, BLANK)

    direction = torch.randn(logits.shape, generator=torch.Generator())
    value(logits).backward()
    slope = (logits.grad * direction).sum()
    step = 1e-2
    with torch.no_grad():
        rise = value(logits + step * direction) - value(
            logits - step * direction
        )
    torch.testing.assert_close(rise / (2 * step), slope, rtol=1e-2, atol=1e-3)


@BACKENDS
@pytest.mark.parametrize("reduction", ["none", "mean", "batchmean", "sum"])
def test_scale_of_speechbrain(reduction, backend, device):
    """Values of -log p / T; the gradient of -log p, or of its sum."""
    frames, labels = (4, 3, 1), (3, 1, 2)
    logits, targets, *lens = lattice(frames, labels)
    costs, exact = oracle(logits, targets, frames, labels)
    logits.requires_grad_()
    loss = transducer_loss(
        *(t.to(device) for t in (logits, targets, *lens)),
        BLANK,
        reduction,
        backend=backend,
        scale="speechbrain",
    )
    reported = costs / torch.tensor(frames)
    expected = {"none": reported, "sum": reported.sum()}
    expected = expected.get(reduction, reported.mean())
    torch.testing.assert_close(
        loss.cpu().double(), expected, rtol=1e-5, atol=1e-5
    )
    loss.sum().backward()
    costs.sum().backward()
    torch.testing.assert_close(
        logits.grad.double(), exact.grad, rtol=1e-4, atol=1e-6
    )


def test_padding_has_no_influence_and_no_gradient():
    logits, targets, input_lens, target_lens = lattice((4, 2), (2, 1))
    noisy, other = logits.clone(), targets.clone()
    noisy[1, 2:] = 1e4
    noisy[1, :, 2:] = 1e4
    other[1, 1:] = 3
    args = (input_lens, target_lens, BLANK, "none")
    noisy.requires_grad_()
    loss = transducer_loss(noisy, other, *args)
    assert torch.equal(loss, transducer_loss(logits, targets, *args))
    loss.sum().backward()
    assert not noisy.grad[1, 2:].any()
    assert not noisy.grad[1, :, 2:].any()


def test_lengths_round_as_in_speechbrain_but_never_to_nothing():
    frames = 10
    logits = torch.randn(3, frames, 2, 4)
    targets = torch.tensor([[1], [2], [3]])
    # 0.3 and 4.4 frames; and one that rounding error puts above the end.
    relative = torch.tensor([0.03, 0.44, 1.0 + 1e-6])
    loss = transducer_loss(
        logits, targets, relative, torch.ones(3), BLANK, "none"
    )
    for row, length in enumerate((1, 4, frames)):
        log_probs = logits[row, :length].double().log_softmax(-1)
        alone = path_sum(log_probs, targets[row].tolist(), BLANK)
        torch.testing.assert_close(loss[row].double(), alone)


def test_batch_shorter_than_its_padding():
    logits, targets, _, _ = lattice((4, 4), (3, 3))
    loss = transducer_loss(
        logits,
        targets,
        torch.tensor([0.5, 0.75]),
        torch.tensor([1 / 3, 2 / 3]),
        BLANK,
        "none",
    )
    costs, _ = oracle(logits, targets, (2, 3), (1, 2))
    torch.testing.assert_close(loss.double(), costs.detach())


@BACKENDS
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64]
)
def test_logits_of_any_dtype_are_summed_in_float32(dtype, backend, device):
    if dtype is torch.float64 and backend == "triton":
        pytest.skip("the kernels take no float64")
    logits, targets, *lens = (t.to(device) for t in lattice())
    low = logits.to(dtype).requires_grad_()
    args = (targets, *lens, BLANK)
    loss = transducer_loss(low, *args, backend=backend)
    assert loss.dtype == torch.float32
    single = transducer_loss(low.detach().float(), *args, backend=backend)
    torch.testing.assert_close(loss, single)
    loss.backward()
    assert low.grad.dtype == dtype


def test_more_than_a_thousand_labels():
    loss = transducer_loss(
        torch.zeros(1, 3, 1101, 2),
        torch.ones(1, 1100, dtype=torch.int64),
        torch.ones(1),
        torch.ones(1),
        BLANK,
    )
    # (1102 choose 2) paths of 1103 steps with probability 1/2 each.
    paths = torch.tensor(1102 * 1101 / 2, dtype=torch.float64)
    expected = 1103 * torch.tensor(2.0).double().log() - paths.log()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=0)


def test_strided_inputs():
    logits, targets, input_lens, target_lens = lattice()
    strided = logits.transpose(1, 2).contiguous().transpose(1, 2)
    wide = torch.stack([targets, targets], -1)[..., 0]
    args = (input_lens, target_lens, BLANK)
    assert not strided.is_contiguous() and not wide.is_contiguous()
    assert torch.equal(
        transducer_loss(strided, wide, *args),
        transducer_loss(logits, targets, *args),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reduction": "average"}, "reduction='average' is not one of"),
        ({"backend": "cuda"}, "backend='cuda' is not one of 'auto', 'triton'"),
        ({"backend": None}, "backend=None is not one of"),
        ({"scale": "frames"}, "scale='frames' is not one of 'torchaudio'"),
        ({"logits": torch.zeros(3, 4, 5)}, "logits must be"),
        ({"logits": torch.zeros(3, 0, 4, 5)}, "at least one utterance"),
        ({"targets": torch.ones(3, 2, dtype=torch.int64)}, "targets must be"),
        ({"input_lens": torch.ones(2)}, r"input_lens must be \(3,\)"),
        ({"input_lens": torch.tensor([4.0, 3, 1])}, "relative lengths"),
        ({"input_lens": torch.tensor([1.0, 0, 1])}, "relative lengths"),
        ({"target_lens": torch.tensor([1.0, float("nan"), 1])}, "relative"),
        ({"blank_index": 5}, "blank_index=5 is outside"),
        ({"targets": torch.ones(3, 3, device="meta")}, "on one device"),
    ],
)
def test_bad_input_gets_a_sentence(change, message):
    names = ("logits", "targets", "input_lens", "target_lens")
    arguments = dict(zip(names, lattice(), strict=True), blank_index=BLANK)
    with pytest.raises(ValueError, match=message):
        transducer_loss(**{**arguments, **change})


def test_the_old_argument_explains_itself():
    with pytest.raises(TypeError, match="Remove the argument from the YAML"):
        transducer_loss(*lattice(), BLANK, use_torchaudio=True)


@pytest.mark.parametrize(
    ("obstacle", "expected"),
    [(None, "torchaudio"), ("torchaudio is not there", "torch")],
)
def test_auto_takes_what_can_run(obstacle, expected, monkeypatch):
    monkeypatch.setattr(losses, "torchaudio_obstacle", lambda: obstacle)
    taken, messages = [], []
    monkeypatch.setattr(losses, "log_once", messages.append)
    for name, function in losses._COSTS.items():

        def noted(*args, name=name, function=function):
            taken.append(name)
            return function(*args)

        monkeypatch.setitem(losses._COSTS, name, noted)
    transducer_loss(*lattice(), BLANK)
    assert taken == [expected]
    (message,) = messages
    assert message.startswith(f"transducer_loss: {expected}, because ")
    assert obstacle is None or message.endswith(f", and {obstacle}.")


@pytest.mark.gpu
def test_auto_takes_triton_on_a_gpu(device, launches):
    arguments = (t.to(device) for t in lattice())
    transducer_loss(*arguments, BLANK)
    assert launches == {"log_probs_kernel": 1, "paths_kernel": 1}


def test_missing_parts_of_torchaudio_are_named(monkeypatch):
    losses.torchaudio_obstacle.cache_clear()
    monkeypatch.setitem(sys.modules, "torchaudio", None)
    try:
        with pytest.raises(RuntimeError, match="torchaudio does not import"):
            transducer_loss(*lattice(), BLANK, backend="torchaudio")
    finally:
        losses.torchaudio_obstacle.cache_clear()


@pytest.fixture
def numba_gpu(monkeypatch):
    """A machine on which only SpeechBrain's class itself may fail."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    ones, zeros = torch.ones, torch.zeros
    on_cpu = {"ones": ones, "zeros": zeros}
    for name, function in on_cpu.items():
        monkeypatch.setattr(
            torch,
            name,
            lambda *size, function=function, device=None, **options: function(
                *size, **options
            ),
        )
    losses.numba_obstacle.cache_clear()
    yield
    losses.numba_obstacle.cache_clear()


def test_numba_says_why_it_cannot_run():
    with pytest.raises(RuntimeError, match="'numba' cannot run .* cpu device"):
        transducer_loss(*lattice(), BLANK, backend="numba")
    cuda = torch.device("cuda")
    obstacle = losses._numba_obstacle(cuda, 1024)
    assert obstacle == "it takes at most 1023 labels, not 1024"


def test_numba_that_does_not_import_is_named(monkeypatch, numba_gpu):
    monkeypatch.setitem(sys.modules, NUMBA, None)
    obstacle = losses._numba_obstacle(torch.device("cuda"), 1023)
    assert obstacle.startswith("SpeechBrain's loss does not run with this num")
    assert NUMBA in obstacle


def test_numba_that_fails_with_its_first_kernel_is_named(
    monkeypatch, numba_gpu
):
    def apply(*_):
        raise AttributeError("module 'numpy' has no attribute 'row_stack'")

    module = types.ModuleType(NUMBA)
    module.Transducer = types.SimpleNamespace(apply=apply)
    monkeypatch.setitem(sys.modules, NUMBA, module)
    obstacle = losses._numba_obstacle(torch.device("cuda"), 1)
    assert "(module 'numpy' has no attribute 'row_stack')" in obstacle


def test_numba_that_runs_is_not_refused(monkeypatch, numba_gpu):
    module = types.ModuleType(NUMBA)
    module.Transducer = NumbaLike
    monkeypatch.setitem(sys.modules, NUMBA, module)
    assert losses._numba_obstacle(torch.device("cuda"), 1023) is None


class NumbaLike(torch.autograd.Function):
    """Costs by frames and their own gradient, as SpeechBrain's class gives."""

    @staticmethod
    def forward(ctx, log_probs, targets, frames, labels, blank, reduction):
        assert reduction == "none" and log_probs.dtype is torch.float32
        sizes = zip(frames.tolist(), labels.tolist(), strict=True)
        with torch.enable_grad():
            x = log_probs.detach().requires_grad_()
            costs = [
                path_sum(x[b, :t, : u + 1], targets[b, :u].tolist(), blank)
                for b, (t, u) in enumerate(sizes)
            ]
            (ctx.grads,) = torch.autograd.grad(sum(costs), x)
        return torch.stack(costs).detach() / frames

    @staticmethod
    def backward(ctx, gradient):
        grads = ctx.grads.mul_(gradient.view(-1, 1, 1, 1))
        return grads, None, None, None, None, None


@pytest.mark.parametrize("scale", ["torchaudio", "speechbrain"])
def test_numba_gives_the_loss_of_the_others(scale, monkeypatch):
    module = types.ModuleType(NUMBA)
    module.Transducer = NumbaLike
    monkeypatch.setitem(sys.modules, NUMBA, module)
    monkeypatch.setattr(losses, "_numba_obstacle", lambda *_: None)
    logits, *rest = lattice()
    results = []
    for backend in ("numba", "torch"):
        x = logits.detach().requires_grad_()
        loss = transducer_loss(x, *rest, BLANK, backend=backend, scale=scale)
        loss.backward()
        results.append((loss.detach(), x.grad))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected)
