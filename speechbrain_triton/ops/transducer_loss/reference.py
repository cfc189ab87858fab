"""Plain PyTorch twin of the transducer loss."""

import math

import torch
import torch.nn.functional as F

# A log-probability from here on counts as that of zero. Finite: no difference
# of two infinities comes up, in the value or in any derivative.
IMPOSSIBLE = -1e30

REDUCTIONS = ("none", "mean", "sum")


def transducer_loss_reference(
    logits: torch.Tensor,
    targets: torch.Tensor,
    logit_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    *,
    blank: int = 0,
    reduction: str = "none",
    clamp: float = -1.0,
    fastemit_lambda: float = 0.0,
    inplace: bool = False,
) -> torch.Tensor:
    """Transducer loss by a loop over the lattice's anti-diagonals.

    Specification, fallback and test oracle of
    :func:`~speechbrain_triton.ops.transducer_loss`, with the same arguments
    but ``backend``; ``inplace`` changes nothing here. It runs on any device
    and, for float64 logits, in float64.

    Example
    -------
    >>> logits, targets = torch.zeros(1, 3, 2, 4), torch.tensor([[1]])
    >>> lengths = torch.tensor([3]), torch.tensor([1])
    >>> transducer_loss_reference(logits, targets, *lengths)
    tensor([4.4466])
    """
    blank = blank % logits.shape[3]
    arguments = logits, targets, logit_lengths, target_lengths, blank
    if clamp > 0 or fastemit_lambda:
        cost = _ChangedGradient.apply(*arguments, clamp, fastemit_lambda)
    else:
        cost = utterance_costs(*arguments)
    return reduce(cost, reduction)


def reduce(cost: torch.Tensor, reduction: str) -> torch.Tensor:
    """Costs as they are, or their mean or sum."""
    return cost if reduction == "none" else getattr(cost, reduction)()


def no_second_backward(
    clamp: float, fastemit_lambda: float, inplace: bool
) -> None:
    """Refuse to differentiate what is the derivative of nothing.

    Raises
    ------
    RuntimeError
        If the options change the gradient, or the logits are lost.
    """
    options = {
        "clamp": clamp > 0,
        "fastemit_lambda": fastemit_lambda != 0,
        "inplace": inplace,
    }
    given = [name for name, is_given in options.items() if is_given]
    if given:
        raise RuntimeError(
            "transducer_loss: a backward that can itself be differentiated "
            f"(create_graph=True) is not possible with {' and '.join(given)}."
        )


def utterance_costs(
    logits: torch.Tensor,
    targets: torch.Tensor,
    frames: torch.Tensor,
    labels: torch.Tensor,
    blank: int,
    label_weight: float = 1.0,
) -> torch.Tensor:
    """-log p of each utterance: (B,), float32, or float64 for such logits.

    Arguments
    ---------
    logits, targets, frames, labels, blank
        As for the op; ``blank`` is not negative.
    label_weight : float
        By which gradients through emitted labels are multiplied.
    """
    B, T, U1, _ = logits.shape
    if B == 0:
        return logits.sum((1, 2, 3)).to(_compute_dtype(logits))
    frames, labels = frames.long(), labels.long()
    fits = (frames > 0) & (frames <= T) & (labels >= 0) & (labels < U1)
    frames, labels = frames.where(fits, 1), labels.where(fits, 0)

    frame = torch.arange(T, device=logits.device)[:, None]
    cell = torch.arange(U1, device=logits.device)
    inside = (frame < frames[:, None, None]) & (cell <= labels[:, None, None])
    # Whatever the padding holds: times a gradient of zero it must be zero.
    logits = logits.masked_fill(~inside[..., None], 0)
    by_blank, by_label = _log_probs(logits, targets, labels, blank)
    if label_weight != 1 and by_label.requires_grad:
        by_label.register_hook(lambda grad: grad * label_weight)
    ends = _path_sums(by_blank, by_label, frames, labels)
    each = torch.arange(B, device=logits.device)
    total = ends + by_blank[each, frames - 1, labels]
    possible = fits & ~(total < IMPOSSIBLE / 2)  # NaN is shown
    return torch.where(possible, -total, math.inf)


def _compute_dtype(logits: torch.Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


def _log_probs(logits, targets, labels, blank):
    """Log-probabilities (B, T, U1) of each cell's blank and of its label."""
    B, T, U1, V = logits.shape
    targets = F.pad(targets.long(), (0, 1), value=-1)
    position = torch.arange(U1, device=logits.device)
    known = (targets >= 0) & (targets < V) & (position < labels[:, None])
    picked = torch.stack(
        (torch.full_like(targets, blank), targets.where(known, blank)), -1
    )  # [B, U1, 2]
    log_probs = logits.to(_compute_dtype(logits)).log_softmax(3)
    log_probs = log_probs.gather(3, picked[:, None].expand(B, T, U1, 2))
    log_probs = log_probs.masked_fill(log_probs < IMPOSSIBLE, IMPOSSIBLE)
    by_blank, by_label = log_probs.unbind(3)
    return by_blank, by_label.masked_fill(~known[:, None], IMPOSSIBLE)


def _path_sums(by_blank, by_label, frames, labels):
    """Log-probability of reaching each utterance's last cell: (B,)."""
    B, T, U1 = by_blank.shape
    into_blank = F.pad(by_blank, (0, 0, 1, 0), value=IMPOSSIBLE)[:, :-1]
    into_label = F.pad(by_label, (1, 0), value=IMPOSSIBLE)[:, :, :-1]
    diagonals = zip(_diagonals(into_blank), _diagonals(into_label), strict=True)
    next(diagonals)  # that of the first cell alone
    own = by_blank.new_full((B, U1), IMPOSSIBLE)
    own[:, 0] = 0
    sums = [own]
    for blank, label in diagonals:
        left = F.pad(own[:, :-1], (1, 0), value=IMPOSSIBLE)
        # Unlike logaddexp, it has second derivatives at such differences.
        own = torch.stack((own + blank, left + label)).logsumexp(0)
        sums.append(own)
    each = torch.arange(B, device=by_blank.device)
    return torch.stack(sums)[frames - 1 + labels, each, labels]


def _diagonals(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Cells (B, T, U1) by t + u: T + U1 - 1 tensors (B, U1)."""
    B, T, U1 = x.shape
    # Row u, moved to the right by u: a row longer by one does it.
    rows = F.pad(x.transpose(1, 2), (0, U1), value=IMPOSSIBLE)
    flat = rows.reshape(B, U1 * (T + U1))[:, : U1 * (T + U1 - 1)]
    return flat.view(B, U1, T + U1 - 1).unbind(2)


class _ChangedGradient(torch.autograd.Function):
    """Costs with a gradient that is weighted and clamped: no derivative."""

    @staticmethod
    def forward(
        ctx, logits, targets, frames, labels, blank, clamp, fastemit_lambda
    ):
        ctx.options = clamp, fastemit_lambda
        ctx.dtype = logits.dtype
        leaf = logits.detach().to(_compute_dtype(logits))
        leaf.requires_grad_(ctx.needs_input_grad[0])
        with torch.set_grad_enabled(leaf.requires_grad):
            cost = utterance_costs(
                leaf, targets, frames, labels, blank, 1 + fastemit_lambda
            )
            total = cost.sum()
        if leaf.requires_grad:
            (grad,) = torch.autograd.grad(total, leaf)
            if clamp > 0:
                grad = grad.clamp(-clamp, clamp)
            ctx.save_for_backward(grad, cost.detach())
        return cost.detach()

    @staticmethod
    def backward(ctx, dcost):
        if torch.is_grad_enabled():
            no_second_backward(*ctx.options, inplace=False)
        grad, cost = ctx.saved_tensors
        dcost = dcost.where(cost != math.inf, 0)
        return (dcost.view(-1, 1, 1, 1) * grad).to(ctx.dtype), *(None,) * 6
