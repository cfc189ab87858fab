"""What both gated layers take, refuse, and leave as it was."""

import itertools
import math

import pytest
import torch
from depthwise_cases import assert_backward_repeats, doubles, outcome
from geglu_cases import CASES, DTYPES, HALVES, assert_right
from tolerance import assert_as_exact_as_stock
from torch.utils.checkpoint import checkpoint

F, K = 10, 9


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def run(case, tensors, **options):
    return case.op(**tensors, backend="triton", **options)


def window(tensor):
    """The same values, in the middle of a buffer full of NaN."""
    buffer = tensor.new_full([size + 6 for size in tensor.shape], math.nan)
    for dim, size in enumerate(tensor.shape):
        buffer = buffer.narrow(dim, 3, size)
    return buffer.copy_(tensor)


def transposed(tensor):
    """The same values, as SpeechBrain's feed-forward passes them on."""
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


VIEWS = {
    "x, its time first": ("x", transposed),
    "x, every other frame": ("x", lambda t: t.repeat_interleave(2, 1)[:, ::2]),
    "x, a window": ("x", window),
    "x, one utterance expanded": ("x", lambda t: t[:1].expand_as(t)),
    "x, one channel expanded": ("x", lambda t: t[..., :1].expand_as(t)),
    "x, a slice of a batch": ("x", lambda t: torch.cat((t[:1], t))[1:]),
    "weight, columns first": ("weight", transposed),
    "weight, a window": ("weight", window),
    "weight, every other row": (
        "weight",
        lambda t: t.repeat_interleave(2, 0)[::2],
    ),
    "bias, a window": ("bias", window),
    "bias, one value expanded": ("bias", lambda t: t[:1].expand_as(t)),
    "out_weight, columns first": ("out_weight", transposed),
    "out_bias, one value expanded": ("out_bias", lambda t: t[:1].expand_as(t)),
    "dy, its time first": ("dy", transposed),
    "dy, one value expanded": ("dy", lambda t: t[:1, :1, :1].expand_as(t)),
    "dy, a window": ("dy", window),
}


def each_of(table):
    """(case, key) for what in a table is about one of the case's tensors."""
    return [
        pytest.param(case, key, id=f"{label}, {key}")
        for label, case in CASES.items()
        for key, (name, *_) in table.items()
        if label == "ffn" or not name.startswith("out_")
    ]


@pytest.mark.parametrize(("case", "view"), each_of(VIEWS))
def test_view_gives_what_its_copy_gives(case, view, device):
    name, relay = VIEWS[view]
    tensors = case.inputs(3, 5, K, F=F, device=device)
    tensors["dy"] = torch.randn_like(case.twin(**tensors))
    tensors[name] = relay(tensors[name])
    copies = {n: t.clone().contiguous() for n, t in tensors.items()}
    results = []
    for called in (tensors, copies):
        others = {n: t for n, t in called.items() if n != "dy"}
        results.append(outcome(case.op, others, called["dy"], backend="triton"))
    for n, tensor in tensors.items():
        assert torch.equal(tensor, copies[n]), f"{n} was written to"
    for n, value in results[0].items():
        torch.testing.assert_close(value, results[1][n], msg=n)


@pytest.mark.parametrize("masked", ["masked_fill", "add", "slice"])
@pytest.mark.parametrize("shape", [(3, 5, K), (5, K), (K,)], ids=str)
def test_result_may_be_written_to(shape, masked, case, device):
    """As SpeechBrain's encoder layer masks a module's output in place."""
    padding = torch.ones(*shape[:-1], 1, dtype=torch.bool, device=device)
    if len(shape) > 1:
        padding[..., 2:, :] = False

    def written(function):
        def call(**tensors):
            y = function(**tensors)
            assert y.requires_grad
            if masked == "masked_fill":
                return y.masked_fill_(padding, 0.0)
            if masked == "add":
                return y.add_(1)
            y[..., 1:4] *= 2
            return y

        return call

    def ours(**tensors):
        return run(case, tensors, dropout=0.3, seed=1)

    def exact(**tensors):
        return case.definition(**tensors, dropout=0.3, seed=1)

    tensors = case.inputs(*shape, F=F, device=device)
    dy = torch.randn_like(case.twin(**tensors))
    found = outcome(written(ours), tensors, dy)
    expected = outcome(written(exact), doubles(tensors), dy.double())
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name].double(), value, rtol=1e-4, atol=1e-5
        )
    if masked == "masked_fill":
        assert found["y"][padding.expand_as(dy)].eq(0).all()


def test_every_subset_of_what_is_frozen(case, device):
    tensors = case.inputs(4, K, F=F, device=device)
    dy = torch.randn_like(case.twin(**tensors))
    whole = outcome(case.op, tensors, dy, backend="triton")
    for needed in itertools.product((False, True), repeat=len(tensors)):
        if not any(needed):
            continue
        leaves = {
            name: t.detach().requires_grad_(need)
            for (name, t), need in zip(tensors.items(), needed, strict=True)
        }
        run(case, leaves).backward(dy)
        for name, leaf in leaves.items():
            assert (leaf.grad is None) == (not leaf.requires_grad), name
            if leaf.requires_grad:
                assert torch.equal(leaf.grad, whole["d" + name]), name


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_autocast_gives_dtypes_and_values_as_stock(
    dtype, half, case, device, launches
):
    """Parameters in float32, x in any dtype."""
    tensors = case.inputs(
        3, 5, K, F=F, dtype=dtype, weight_dtype=torch.float32, device=device
    )
    options = dict(dropout=0.2, seed=4)
    with torch.autocast(device, half):
        dy = torch.randn_like(case.twin(**tensors))
        ours = outcome(case.op, tensors, dy, backend="triton", **options)
        stock = outcome(case.twin, tensors, dy, **options)
    assert launches["geglu_grad_kernel"] == 1
    assert ours["y"].dtype is half and ours["dweight"].dtype is torch.float32
    exact = outcome(case.definition, doubles(tensors), dy.double(), **options)
    assert_as_exact_as_stock(ours, stock, exact)


def test_autocast_that_is_off_inside_casts_nothing(case, device, launches):
    tensors = case.inputs(3, 5, K, F=F, device=device)
    dy = torch.randn_like(case.twin(**tensors))
    plain = outcome(case.op, tensors, dy, backend="triton")
    with torch.autocast(device, torch.bfloat16):
        with torch.autocast(device, enabled=False):
            ours = outcome(case.op, tensors, dy, backend="triton")
    for name, value in plain.items():
        assert torch.equal(ours[name], value), name


@pytest.mark.parametrize("forward", [None, torch.float16, torch.bfloat16])
def test_backward_does_not_look_at_autocast(forward, case, device):
    tensors = case.inputs(3, 5, K, F=F, device=device)
    leaves = [t.requires_grad_() for t in tensors.values()]
    with torch.autocast(device, forward or torch.half, enabled=bool(forward)):
        y = run(case, tensors)
        dy = torch.randn_like(y)
    results = []
    for dtype in (None, *HALVES):
        with torch.autocast(device, dtype or torch.half, enabled=bool(dtype)):
            results.append(
                torch.autograd.grad(y, leaves, dy, retain_graph=True)
            )
    for others in results[1:]:
        for a, b in zip(results[0], others, strict=True):
            assert a.dtype is torch.float32 and torch.equal(a, b)


def test_inputs_are_left_as_they_were_and_backward_repeats(case, device):
    assert_backward_repeats(case.op, case.inputs(3, 5, K, F=F, device=device))


def test_what_the_input_came_from_keeps_its_gradient(case, device):
    """exp saves its result, which is x."""
    tensors = case.inputs(3, 5, K, F=F, device=device)

    def chain(function, **options):
        def call(x, **others):
            return function(x.exp(), **others, **options)

        return call

    dy = torch.randn_like(case.twin(**tensors))
    assert_as_exact_as_stock(
        outcome(chain(case.op, backend="triton"), tensors, dy),
        outcome(chain(case.twin), tensors, dy),
        outcome(chain(case.definition), doubles(tensors), dy.double()),
    )


def test_one_tensor_may_be_in_two_places(case, device):
    """A square weight as x, and under create_graph too."""
    tied = torch.randn(8, 8, device=device, requires_grad=True)
    tensors = case.inputs(8, 8, F=4, device=device)
    tensors |= {"x": tied, "weight": tied}
    loss = run(case, tensors).pow(2).sum()
    (plain,) = torch.autograd.grad(loss, tied, retain_graph=True)
    (with_graph,) = torch.autograd.grad(loss, tied, create_graph=True)
    torch.testing.assert_close(with_graph, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_double_backward_is_the_definitions(approximate, case, device):
    options = dict(approximate=approximate, dropout=0.3, seed=6)
    tensors = case.inputs(3, 5, K, F=F, device=device)
    probe = torch.randn(3, 5, K, device=device)

    def second(function, tensors, **more):
        leaves = {n: t.detach().requires_grad_() for n, t in tensors.items()}
        y = function(**leaves, **options, **more)
        grads = torch.autograd.grad(
            y.pow(2).sum(), list(leaves.values()), create_graph=True
        )
        loss = (grads[0] * probe.to(grads[0])).sum()
        loss = loss + sum(g.pow(2).sum() for g in grads)
        return grads, torch.autograd.grad(loss, list(leaves.values()))

    ours = second(case.op, tensors, backend="triton")
    exact = second(case.definition, doubles(tensors))
    for found, expected in zip(ours, exact, strict=True):
        for a, b in zip(found, expected, strict=True):
            assert (a.double() - b).norm() <= 2e-5 * b.norm()


@pytest.mark.parametrize("half", [None, torch.bfloat16], ids=str)
def test_checkpointing_draws_the_same_mask_again(half, case, device):
    tensors = case.inputs(3, 5, K, F=F, device=device)
    dy = torch.randn_like(case.twin(**tensors)).to(half or torch.float32)

    def call(**tensors):
        # A second layer's seed is drawn after the first one's.
        y = run(case, tensors, dropout=0.5)
        return y * run(case, tensors, dropout=0.5)

    def checkpointed(**tensors):
        return checkpoint(call, use_reentrant=False, **tensors)

    results = []
    for function in (call, checkpointed):
        torch.manual_seed(8)
        with torch.autocast(device, half or torch.half, enabled=bool(half)):
            results.append(outcome(function, tensors, dy))
    for name, value in results[0].items():
        assert torch.equal(results[1][name], value), name


def test_drawn_masks_follow_manual_seed(case, device):
    tensors = case.inputs(3, 5, K, F=F, device=device)
    torch.manual_seed(2)
    first, second = (run(case, tensors, dropout=0.5) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(2)
    assert torch.equal(run(case, tensors, dropout=0.5), first)


@pytest.mark.parametrize("options", [{}, {"dropout": 0.5, "seed": 3}])
def test_no_seed_is_drawn_that_is_not_used(options, case, device):
    tensors = case.inputs(3, 5, K, F=F, device=device)
    before = torch.get_rng_state()
    run(case, tensors, **options)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("shape", [(0, K), (0, 5, K), (3, 0, K)], ids=str)
def test_empty_batch_gives_zero_gradients(shape, case, device):
    tensors = case.inputs(*shape, F=F, device=device)
    dy = torch.empty_like(case.twin(**tensors))
    result = outcome(case.op, tensors, dy, dropout=0.1, backend="triton")
    assert result["y"].shape == dy.shape
    for name, value in result.items():
        if name != "y":
            assert value.shape == tensors[name[1:]].shape and not value.any()


def test_each_bias_may_be_absent(case, device, launches):
    tensors = case.inputs(3, 5, K, F=F, device=device)
    for name in ("bias", "out_bias"):
        if name in tensors:
            without = {n: t for n, t in tensors.items() if n != name}
            assert_right(case, without, launches, dropout=0.2, seed=1)


def test_torch_path_is_the_twin(case):
    tensors = case.inputs(3, 5, K, F=F, dtype=torch.float64)
    options = dict(approximate="tanh", dropout=0.3, seed=5)
    for backend in ("torch", "auto"):
        ours = case.op(**tensors, backend=backend, **options)
        assert torch.equal(ours, case.twin(**tensors, **options))
    with pytest.raises(RuntimeError, match="weight is float64"):
        run(case, tensors)


WRONG = {
    "no dimension": ("x", (), r"x must be \(\.\.\., channel\), got shape \(\)"),
    "no channel": (
        "x",
        (3, 0),
        r"x must be \(\.\.\., channel\), got .* \(3, 0",
    ),
    "channels": ("weight", (20, 8), r"weight must be \(2 F, 9\) .* \(20, 8\)"),
    "a vector": ("weight", (20,), r"weight must be \(2 F, 9\) .* \(20,\)"),
    "odd rows": ("weight", (21, 9), r"weight must have two halves .* \(21, 9"),
    "no rows": ("weight", (0, 9), r"weight must have two halves .* \(0, 9\)"),
    "half a bias": ("bias", (10,), r"bias must be \(20,\) .* \(10,\)"),
    "ungated": ("out_weight", (6, 20), r"out_weight must be \(D', 10\) .*20"),
    "out, a vector": ("out_weight", (10,), r"out_weight must be .* \(10,\)"),
    "out, a bias": ("out_bias", (10,), r"out_bias must be \(6,\), got .*10"),
}


@pytest.mark.parametrize("backend", ["triton", "torch", "auto"])
@pytest.mark.parametrize(("case", "wrong"), each_of(WRONG))
def test_wrong_shapes_are_named(case, wrong, backend, device):
    name, shape, message = WRONG[wrong]
    tensors = case.inputs(3, K, F=F, device=device)
    tensors[name] = torch.zeros(shape, device=device)
    with pytest.raises(ValueError, match=message):
        case.op(**tensors, backend=backend)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"approximate": "erf"}, "approximate='erf' is not one of 'none', '"),
        ({"approximate": None}, "approximate=None is not one of"),
        ({"backend": "cuda"}, "backend='cuda' is not one of"),
        ({"dropout": 1.5}, r"dropout must be a probability in \[0, 1\], got"),
        ({"dropout": None}, "dropout must be a probability"),
    ],
)
def test_wrong_options_are_named(options, message, case, device):
    tensors = case.inputs(3, K, F=F, device=device)
    with pytest.raises(ValueError, match=message):
        case.op(**tensors, **options)


def test_devices_may_not_differ(case, device):
    tensors = case.inputs(3, K, F=F, device=device)
    for name in tensors:
        if name != "x":
            moved = {**tensors, name: tensors[name].to("meta")}
            with pytest.raises(ValueError, match="must be on the same device"):
                case.op(**moved)


def test_dtypes_may_not_differ_outside_autocast(case, device):
    tensors = case.inputs(3, K, F=F, device=device)
    for name in tensors:
        mixed = {**tensors, name: tensors[name].half()}
        x, other = ("x", "weight") if name == "x" else ("x", name)
        message = (
            f"{x} is {mixed[x].dtype} and {other} is {mixed[other].dtype}: "
            "outside autocast they must have the same dtype"
        )
        with pytest.raises(TypeError, match=message):
            case.op(**mixed)
