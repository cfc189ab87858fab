"""Which shapes are timed, the most important first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Case:
    """What a group of rows is about: an op at a shape, in a dtype.

    Arguments
    ---------
    op : str
        ``"depthwise_conv1d"``, ``"conv_module"`` or ``"frontend"``.
    B, T, C, K : int
        Batch, frames, channels, taps.
    dtype : str
        ``"float32"``, ``"bfloat16"`` or ``"float16"``; for a module that of
        autocast, with float32 parameters.
    chunk : int
        Frames in a chunk; 0 for full context.
    stream : bool
        Whether the T frames are the next chunk of a stream, in inference.
    F : int
        Features a frame, for a front end.
    """

    op: str
    B: int
    T: int
    C: int
    K: int
    dtype: str
    chunk: int = 0
    stream: bool = False
    F: int = 0

    @property
    def kind(self) -> str:
        """By what the case is measured: the op, or ``"conv_stream"``."""
        return "conv_stream" if self.stream else self.op

    @property
    def shape(self) -> str:
        """As the tables write it, such as ``B64_T400_C512_K31_chunk16``."""
        if self.F:
            return f"B{self.B}_T{self.T}_F{self.F}_C{self.C}"
        name = f"B{self.B}_T{self.T}_C{self.C}_K{self.K}"
        if self.stream:
            return f"{name}_stream"
        return f"{name}_chunk{self.chunk}" if self.chunk else name

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def elements(self) -> int:
        """Of a (B, T, C) tensor."""
        return self.B * self.T * self.C


DEPTHWISE = Case("depthwise_conv1d", 64, 400, 512, 31, "bfloat16")
MODULE = replace(DEPTHWISE, op="conv_module")
FRONTEND = Case("frontend", 64, 3200, 256, 3, "bfloat16", F=80)
STREAM = replace(MODULE, T=16, dtype="float32", stream=True)

CASES: tuple[Case, ...] = (
    DEPTHWISE,
    *(
        replace(MODULE, dtype=dtype, chunk=chunk)
        for dtype in ("bfloat16", "float16")
        for chunk in (0, 16, 8)
    ),
    *(replace(MODULE, B=16, chunk=chunk) for chunk in (0, 16, 8)),
    *(replace(STREAM, B=B) for B in (1, 8, 64)),
    replace(STREAM, B=1, T=4),
    replace(STREAM, B=8, T=32),
    FRONTEND,
    replace(FRONTEND, dtype="float16"),
    replace(FRONTEND, B=8, T=1600),
    replace(FRONTEND, B=16, dtype="float32"),
    replace(DEPTHWISE, dtype="float16"),
    replace(DEPTHWISE, chunk=16),
    replace(DEPTHWISE, chunk=8),
    replace(DEPTHWISE, K=9),
    replace(DEPTHWISE, K=9, dtype="float16"),
    replace(MODULE, K=9),
    replace(DEPTHWISE, dtype="float32"),
    replace(DEPTHWISE, dtype="float32", chunk=16),
    *(replace(DEPTHWISE, C=C) for C in (144, 256, 1024)),
    replace(DEPTHWISE, B=16),
    replace(DEPTHWISE, B=8, T=4000),
    replace(DEPTHWISE, T=20),
    replace(DEPTHWISE, B=1, T=20),
)


def select(
    ops: Sequence[str], shape: str | None = None, quick: bool = False
) -> list[Case]:
    """Choose cases, in their order.

    Arguments
    ---------
    ops : sequence of str
        Names of ops.
    shape : str, optional
        A text that the shape must contain.
    quick : bool
        Of each op only the first case.

    Returns
    -------
    list of Case

    Raises
    ------
    ValueError
        If nothing is left.

    Example
    -------
    >>> [case.dtype for case in select(["conv_module"], "T400_C512_K9")]
    ['bfloat16']
    """
    chosen = [
        case
        for case in CASES
        if case.op in ops and (shape is None or shape in case.shape)
    ]
    if not chosen:
        raise ValueError(
            f"No case of {', '.join(ops)} has {shape!r} in its shape; shapes "
            f"are written like {CASES[0].shape}_chunk16."
        )
    if quick:
        first = {case.op: case for case in reversed(chosen)}
        chosen = [case for case in chosen if case is first[case.op]]
    return chosen
