"""What operators of ``torch.compile`` have to keep to."""

from collections.abc import Sequence

import torch


def separate(tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    """Give each result a storage of its own, as an operator must.

    Arguments
    ---------
    tensors : sequence of torch.Tensor or None
        The first is there; views of one buffer are copied, and an absent
        result becomes an empty tensor.

    Returns
    -------
    list of torch.Tensor
        Contiguous.

    Example
    -------
    >>> [t.shape for t in separate([torch.zeros(4)[2:], None])]
    [torch.Size([2]), torch.Size([0])]
    """
    first = tensors[0]
    return [
        first.new_empty(0) if t is None else _own_storage(t) for t in tensors
    ]


def _own_storage(x: torch.Tensor) -> torch.Tensor:
    # _is_view() is false below autograd, as under a dispatch mode.
    if x.untyped_storage().nbytes() == x.nbytes:
        return x.contiguous()
    return x.clone(memory_format=torch.contiguous_format)


def fake_gradients(inputs: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    """Gradients of inputs as :func:`separate` returns them, without values."""
    first = inputs[0]
    return [
        first.new_empty(0)
        if t is None
        else torch.empty(t.shape, dtype=t.dtype, device=t.device)
        for t in inputs
    ]


def present(
    gradients: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor | None, ...]:
    """Gradients as autograd wants them: None where there is no input."""
    return tuple(
        None if x is None else grad
        for grad, x in zip(gradients, inputs, strict=True)
    )
