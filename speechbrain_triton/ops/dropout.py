"""Dropout whose mask follows from a seed and each element's place.

Nothing is stored for backward but the seed: the mask is the same wherever and
whenever it is computed, in kernels and here.
"""

import torch
import torch.nn.functional as F

_WORD = 2**32 - 1
_LONG = 2**64 - 1


def check_dropout(dropout: float) -> float:
    """Refuse what is no probability.

    Arguments
    ---------
    dropout : float
        Should be in [0, 1].

    Returns
    -------
    float
        It.

    Raises
    ------
    ValueError
        If it is outside, or no number.
    """
    number = isinstance(dropout, int | float) and not isinstance(dropout, bool)
    if not (number and 0 <= dropout <= 1):
        raise ValueError(
            f"dropout must be a probability in [0, 1], got {dropout!r}."
        )
    return float(dropout)


def check_seed(seed: int | None) -> None:
    """Refuse what is no seed.

    Raises
    ------
    TypeError
        If it is neither None nor a whole number.
    """
    if seed is not None and (
        not isinstance(seed, int) or isinstance(seed, bool)
    ):
        raise TypeError(f"seed must be a whole number or None, got {seed!r}.")


def draw_seed() -> int:
    """Draw a seed below 2**63 from PyTorch's generator on the CPU.

    ``torch.manual_seed`` makes it repeat, and activation checkpointing, which
    keeps that generator's state, draws the same one again.

    Example
    -------
    >>> generator = torch.manual_seed(0)
    >>> first = draw_seed()
    >>> generator = torch.manual_seed(0)
    >>> draw_seed() == first
    True
    """
    return int(torch.randint(2**63 - 1, ()))


def seed_tensor(seed: int | None, dropout: float) -> torch.Tensor:
    """A seed as an operator of ``torch.compile`` takes it.

    Drawn if it is None and needed. As a number a drawn seed would be the same
    in each call of a compiled function.
    """
    if seed is None and dropout:
        return torch.randint(2**63 - 1, ())
    return torch.tensor(_signed_64(seed or 0))


def _signed_64(seed: int) -> int:
    seed &= _LONG
    return seed - 2**64 if seed >= 2**63 else seed


def keep_mask(
    rows: int,
    columns: int,
    dropout: float,
    seed: int,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Say which elements of a matrix dropout keeps.

    A hash of the seed, the row and the pair of columns gives 16 bits for each
    of the two; an element is kept where they are not below the probability,
    rounded to 16 bits. The hash is a 32-bit integer mixer, two rounds of
    multiplication and shifted exclusive or; counters in place of a state make
    the order of evaluation irrelevant (Salmon et al., "Parallel Random
    Numbers: As Easy as 1, 2, 3", SC 2011).

    Arguments
    ---------
    rows, columns : int
        Size of the matrix.
    dropout : float
        Probability of dropping an element, in [0, 1].
    seed : int
        Below 2**64.
    device : torch.device or str
        Where the mask is wanted.

    Returns
    -------
    torch.Tensor
        (rows, columns), bool.

    Example
    -------
    >>> keep_mask(1000, 1000, 0.1, seed=1).float().mean().round(decimals=2)
    tensor(0.9000)
    """
    low, high = (word & _WORD for word in seed_words(seed))
    row = torch.arange(rows, device=device)
    column = torch.arange(columns, device=device)
    key = _hash(_hash(row ^ low) ^ high)[:, None]
    word = _hash(key ^ (column // 2 * 0x9E3779B9 & _WORD))
    return (word >> column % 2 * 16 & 0xFFFF) >= _sixteen_bits(dropout)


def _hash(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ (x >> 16)) * 0x7FEB352D & _WORD
    x = (x ^ (x >> 15)) * 0x846CA68B & _WORD
    return x ^ (x >> 16)


def _sixteen_bits(dropout: float) -> int:
    return round(dropout * 2**16)


def seed_words(seed: int) -> tuple[int, int]:
    """The seed as two signed 32-bit numbers, as kernels take it.

    Mixed, so that seeds which follow each other share neither of the two
    (the finaliser of SplitMix64: Steele et al., "Fast Splittable Pseudorandom
    Number Generators", OOPSLA 2014).
    """
    word = seed + 0x9E3779B97F4A7C15 & _LONG
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _LONG
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _LONG
    word ^= word >> 31
    return _signed(word), _signed(word >> 32)


def threshold(dropout: float) -> int:
    """What is to be kept reaches it in its upper 16 bits; signed 32 bits.

    A probability of 1 has none: there :func:`keep_scale` is 0.
    """
    return _signed(min(_sixteen_bits(dropout), 0xFFFF) << 16)


def _signed(word: int) -> int:
    word &= _WORD
    return word - 2**32 if word >= 2**31 else word


def keep_scale(dropout: float) -> float:
    """By what kept elements are multiplied, so that the mean stays."""
    kept = 2**16 - _sixteen_bits(dropout)
    return 2**16 / kept if kept else 0.0


def seeded_dropout(
    x: torch.Tensor, dropout: float, seed: int | None
) -> torch.Tensor:
    """Apply dropout to x (..., C), by rows, in plain PyTorch.

    Arguments
    ---------
    x : torch.Tensor
        (..., C).
    dropout : float
        Probability of dropping an element; with 0 x is returned.
    seed : int or None
        None for PyTorch's own dropout, from its generator for the device.

    Returns
    -------
    torch.Tensor
        Of x's shape and dtype.

    Example
    -------
    >>> seeded_dropout(torch.ones(2, 4), 0.0, None).sum()
    tensor(8.)
    """
    if dropout == 0:
        return x
    if seed is None:
        return F.dropout(x, dropout)
    C = x.shape[-1]
    kept = keep_mask(x.numel() // max(C, 1), C, dropout, seed, x.device)
    return x * keep_scale(dropout) * kept.view_as(x)
