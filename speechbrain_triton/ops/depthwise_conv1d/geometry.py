"""How the output frames of a convolution lie over its input frames."""

from typing import NamedTuple


class Geometry(NamedTuple):
    """Lengths and offsets, in frames.

    Output t reads input ``t + k - pad`` through tap k. ``shift`` input frames
    of left context precede the first chunk; ``chunk`` is 0 for full context.
    """

    T_in: int
    T_out: int
    pad: int
    shift: int
    chunk: int

    def after(self, context: int) -> "Geometry":
        """The same, with frames of left context put before the input."""
        return self._replace(
            T_in=self.T_in + context,
            pad=self.pad - context,
            shift=self.shift + context,
        )
