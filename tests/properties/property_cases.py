"""A call of an op in plain values, whose ``repr`` makes it again."""

import math
from dataclasses import dataclass, field

import torch

# What tensors are of; autocast works on float32 ones.
MODES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "autocast": torch.float32,
}
AUTOCAST = torch.float16


@dataclass(frozen=True)
class Case:
    """All that a call depends on.

    Arguments
    ---------
    op : str
        Its name in ``op_table.OPS``.
    mode : str
        One of ``MODES``.
    shapes : dict
        Of the floating tensors, by argument name, the input first.
    integers : dict
        Nested tuples of whole numbers, which become tensors.
    options : dict
        Other arguments.
    layouts : dict
        A name of ``LAYOUTS`` for tensors that are not dense; ``dy`` is the
        output's gradient.
    frozen : tuple of str
        Floating tensors without gradient.
    scale : float
        Of the input's values.
    seed : int
        Of all values.
    """

    op: str
    mode: str
    shapes: dict[str, tuple[int, ...]]
    integers: dict[str, tuple] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    scale: float = 1.0
    seed: int = 0

    @property
    def dtype(self) -> torch.dtype:
        """That results are rounded to."""
        return AUTOCAST if self.mode == "autocast" else MODES[self.mode]

    def autocast(self, device: str) -> torch.autocast:
        """The context that the call runs in."""
        enabled = self.mode == "autocast"
        return torch.autocast(device, AUTOCAST, enabled=enabled)

    def tensors(self, device: str) -> dict[str, torch.Tensor]:
        """The floating tensors, by name."""
        made = {}
        for index, (name, shape) in enumerate(self.shapes.items()):
            values = self._random(shape, index)
            values *= self.scale if index == 0 else _deviation(name, shape)
            made[name] = self._placed(name, values, device)
        return made

    def integer_tensors(self, device: str) -> dict[str, torch.Tensor]:
        """The others; every second seed has 32-bit ones."""
        dtype = torch.int32 if self.seed % 2 else torch.int64
        return {
            name: laid_out(
                torch.tensor(values, dtype=dtype, device=device),
                self.layouts.get(name, "dense"),
            )
            for name, values in self.integers.items()
        }

    def upstream(self, y: torch.Tensor) -> torch.Tensor:
        """A gradient of the output y, in its dtype."""
        dy = self._random(y.shape, len(self.shapes)).to(y.device, y.dtype)
        return laid_out(dy, self.layouts.get("dy", "dense"))

    def _placed(self, name, values, device):
        values = values.to(device, MODES[self.mode])
        return laid_out(values, self.layouts.get(name, "dense"))

    def _random(self, shape, index):
        generator = torch.Generator().manual_seed(1000 * self.seed + index)
        return torch.randn(shape, generator=generator, dtype=torch.float64)


def _deviation(name: str, shape: tuple[int, ...]) -> float:
    """That keeps sums over a weight's columns at the input's size."""
    matrix = "weight" in name and len(shape) > 1
    return math.prod(shape[1:]) ** -0.5 if matrix else 1.0


def laid_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in other strides, in a buffer of NaN.

    Arguments
    ---------
    values : torch.Tensor
        Dense.
    layout : str
        One of ``LAYOUTS``, or ``"dense"``.

    Returns
    -------
    torch.Tensor
        Of the same shape; some layouts repeat values.
    """
    if layout == "dense" or values.dim() == 0 or values.numel() == 0:
        return values
    return LAYOUTS[layout](values)


def _within(values, before, behind, axis):
    """values in a buffer with so much more along an axis."""
    shape = list(values.shape)
    shape[axis] += before + behind
    view = _buffer(values, shape).narrow(axis, before, values.shape[axis])
    return view.copy_(values)


def _stepped(values):
    *others, n = values.shape
    return _buffer(values, (*others, 2 * n))[..., ::2].copy_(values)


def _offset(values):
    return _within(values.flatten(), 1, 0, 0).view(values.shape)


def _turned(values):
    return values.transpose(0, -1).contiguous().transpose(0, -1)


def _swapped(values):
    axis = min(1, values.dim() - 1)
    return values.transpose(0, axis).contiguous().transpose(0, axis)


def _buffer(values, shape):
    # Far outside of what lengths and labels may be.
    outside = math.nan if values.is_floating_point() else 2**20
    return values.new_full(shape, outside)


LAYOUTS = {
    "turned": _turned,
    "swapped": _swapped,
    "stepped": _stepped,
    "wide": lambda x: _within(x, 0, 3, -1),
    "sliced": lambda x: _within(x, 8, 1, 0),
    "repeated": lambda x: x[:1].expand_as(x),
    "spread": lambda x: x[..., :1].expand_as(x),
    "offset": _offset,
}
# A kernel is compiled once more for pointers that are not aligned: those of
# a case either all are, or none.
ALIGNED = tuple(name for name in LAYOUTS if name != "offset")
