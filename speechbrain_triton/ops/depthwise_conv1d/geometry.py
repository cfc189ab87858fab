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


def geometry_of(
    T: int, K: int, padding: str, chunk_size: int | None
) -> Geometry:
    """How T output frames, fewer for "valid", lie over the input's.

    A single chunk is full context.
    """
    return Geometry(
        T_in=T,
        T_out=T - K + 1 if padding == "valid" else T,
        pad={"same": (K - 1) // 2, "causal": K - 1, "valid": 0}[padding],
        shift=0,
        chunk=0 if chunk_size is None or chunk_size >= T else int(chunk_size),
    )
