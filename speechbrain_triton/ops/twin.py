"""Second derivatives: differentiate the plain torch twin instead."""

from collections.abc import Callable, Sequence

import torch


def gradients_by_twin(
    twin: Callable[..., torch.Tensor],
    inputs: Sequence[torch.Tensor | None],
    needed: Sequence[bool],
    dy: torch.Tensor,
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of a twin that can themselves be differentiated.

    A kernel's backward calls it when it runs under ``create_graph=True``.

    Arguments
    ---------
    twin : callable
        Takes ``inputs`` and returns one tensor.
    inputs : sequence of torch.Tensor or None
        The saved inputs, with their history.
    needed : sequence of bool
        For which of them a gradient is wanted.
    dy : torch.Tensor
        Gradient of the output.

    Returns
    -------
    tuple of torch.Tensor or None
        One for each input.
    """
    # Aliases: one tensor may be several of the inputs, with a gradient each.
    inputs = [None if x is None else x.view_as(x) for x in inputs]
    wanted = [x for x, need in zip(inputs, needed, strict=True) if need]
    # Backward may be called under an autocast that forward did not run under;
    # twins cast to forward's dtypes themselves.
    with torch.autocast(dy.device.type, enabled=False):
        y = twin(*inputs)
        found = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
    return tuple(next(found) if need else None for need in needed)
