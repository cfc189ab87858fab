"""What ops ask of their inputs: dtypes, shapes, devices, and gradients.

Whatever does not fit is refused in one sentence.
"""

from collections.abc import Iterable

import torch

from speechbrain_triton.backend import autocast_dtype

PADDINGS = ("same", "causal", "valid")


def needs_backward(tensors: Iterable[torch.Tensor | None]) -> bool:
    """Whether a call on these tensors is to be differentiated."""
    return torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in tensors
    )


def as_autocast(
    inputs: dict[str, torch.Tensor | None],
    parameters: dict[str, torch.Tensor | None],
) -> tuple[torch.Tensor | None, ...]:
    """Cast inputs as autocast would; outside it, refuse a mix of dtypes.

    Arguments
    ---------
    inputs : dict
        By name; the first one decides.
    parameters : dict
        By name; they keep their dtype.

    Returns
    -------
    tuple of torch.Tensor or None
        The inputs.

    Raises
    ------
    TypeError
        If a parameter differs in dtype from the first input outside
        autocast.
    """
    name, x = next(iter(inputs.items()))
    cast = autocast_dtype(x)
    if cast is not None:
        return tuple(t if t is None else t.to(cast) for t in inputs.values())
    _check_dtypes(name, x, parameters)
    return tuple(inputs.values())


def product_dtype(
    x: torch.Tensor, parameters: dict[str, torch.Tensor | None]
) -> torch.dtype:
    """The dtype of an op's products: autocast's, or outside it x's.

    Arguments
    ---------
    x : torch.Tensor
        The input.
    parameters : dict
        By name.

    Returns
    -------
    torch.dtype

    Raises
    ------
    TypeError
        If a parameter differs in dtype from x outside autocast.
    """
    dtype = autocast_dtype(x)
    if dtype is not None:
        return dtype
    _check_dtypes("x", x, parameters)
    return x.dtype


def _check_dtypes(name, x, parameters) -> None:
    for other, tensor in parameters.items():
        if tensor is not None and tensor.dtype != x.dtype:
            raise TypeError(
                f"{name} is {x.dtype} and {other} is {tensor.dtype}: outside "
                "autocast they must have the same dtype."
            )


def is_integer(tensor: torch.Tensor) -> bool:
    """Whether the tensor is of whole numbers; booleans are none.

    Example
    -------
    >>> is_integer(torch.tensor([1, 2])), is_integer(torch.tensor([True]))
    (True, False)
    """
    return not (
        tensor.is_floating_point()
        or tensor.is_complex()
        or tensor.dtype is torch.bool
    )


def check_device(
    name: str,
    tensor: torch.Tensor | None,
    device: torch.device,
    other: str = "x",
) -> None:
    """Refuse a tensor, where there is one, that is not beside the other.

    Raises
    ------
    ValueError
        If it is on another device.
    """
    if tensor is not None and tensor.device != device:
        raise ValueError(
            f"{name} is on {tensor.device} and {other} on {device}: they must "
            "be on the same device."
        )


def check_vector(
    name: str, tensor: torch.Tensor, size: int, x: torch.Tensor
) -> None:
    """Refuse a parameter that does not fit an input.

    Raises
    ------
    ValueError
        If ``tensor`` is not (size,) or is on another device than x.
    """
    if tensor.shape != (size,):
        raise ValueError(
            f"{name} must be ({size},) for an input with {x.shape[-1]} "
            f"channels, got shape {tuple(tensor.shape)}."
        )
    check_device(name, tensor, x.device, "the input")
