"""What the limits of all ops share."""

import torch


def copy_pair(nbytes: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Source and target of a copy.

    Arguments
    ---------
    nbytes : int
        How many bytes the copy reads and writes together.
    device : str
        Where.

    Returns
    -------
    tuple of torch.Tensor
        Random bytes, and as many that are not yet written.

    Example
    -------
    >>> source, target = copy_pair(10, "cpu")
    >>> source.nbytes, target.nbytes
    (5, 5)
    """
    source = torch.randint(
        256, (nbytes // 2,), device=device, dtype=torch.uint8
    )
    return source, torch.empty_like(source)
