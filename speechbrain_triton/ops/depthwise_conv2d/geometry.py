"""How the outputs of a two-dimensional convolution lie over its inputs."""

from typing import NamedTuple

from speechbrain_triton.ops.sizes import out_length


class Axis(NamedTuple):
    """One axis: output o reads input ``stride * o + k - pad`` through tap k."""

    kernel: int
    stride: int
    pad: int


class Geometry(NamedTuple):
    """Both axes, and the kind of padding that they were made from."""

    time: Axis
    freq: Axis
    padding: str

    @property
    def constants(self) -> tuple[int, ...]:
        """Kernel, stride and padding, each in time and frequency."""
        return tuple(n for pair in zip(*self[:2], strict=True) for n in pair)

    @property
    def taps(self) -> int:
        """Of a channel."""
        return self.time.kernel * self.freq.kernel

    @property
    def window(self) -> int:
        """How many outputs read from a cell of 2 x 2 inputs."""
        time, freq = ((a.kernel + 1) // a.stride for a in self[:2])
        return time * freq

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The output's (B, T', F', C) of an input's (B, T, F, C)."""
        B, T, F, C = shape
        T, F = (
            out_length(length, axis.kernel, axis.stride, self.padding)
            for length, axis in ((T, self.time), (F, self.freq))
        )
        return B, T, F, C


def geometry_of(
    kernel: tuple[int, int], stride: tuple[int, int], padding: str
) -> Geometry:
    """The geometry of a kernel (time, frequency), of odd sizes.

    Example
    -------
    >>> geometry_of((3, 5), (2, 1), "causal").freq
    Axis(kernel=5, stride=1, pad=2)
    """
    pads = [0 if padding == "valid" else (K - 1) // 2 for K in kernel]
    if padding == "causal":
        pads[0] = kernel[0] - 1
    time, freq = map(Axis, kernel, stride, pads)
    return Geometry(time, freq, padding)
