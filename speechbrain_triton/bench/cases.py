"""Which shapes are timed, the most important first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

# So many utterances of a front end or a loss are checked, and so many elements
# of a linear layer's output, where float64 of all would not fit beside.
CHECKED_UTTERANCES = 2
CHECKED_ELEMENTS = 2**27


class Measured:
    """What the cases of all ops have, beside the shape's own sizes."""

    op: str
    dtype: str

    @property
    def kind(self) -> str:
        """By what the case is measured."""
        return self.op

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def checked(self) -> Self:
        """The case at the size at which it is compared with float64."""
        return self

    @property
    def rounding(self) -> float:
        """Relative error that float32 may cost where PyTorch's is less."""
        return 0.0


@dataclass(frozen=True)
class Case(Measured):
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
    def checked(self) -> Self:
        if self.op == "frontend":
            return replace(self, B=min(self.B, CHECKED_UTTERANCES))
        return self

    @property
    def elements(self) -> int:
        """Of a (B, T, C) tensor."""
        return self.B * self.T * self.C


@dataclass(frozen=True)
class LinearCase(Measured):
    """A linear layer of two halves and the gate behind it.

    Arguments
    ---------
    op : str
        ``"geglu_linear"`` or ``"geglu_ladder"``.
    M, K, N : int
        Rows, channels, and channels of each half.
    dtype : str
        Of all tensors.
    step : str
        For ``"geglu_ladder"``, what of the whole is computed.
    """

    op: str
    M: int
    K: int
    N: int
    dtype: str
    step: str = ""

    @property
    def shape(self) -> str:
        """As the tables write it, such as ``M25600_K512_N2048_matmul``."""
        name = f"M{self.M}_K{self.K}_N{self.N}"
        return f"{name}_{self.step}" if self.step else name

    @property
    def checked(self) -> Self:
        return replace(self, M=min(self.M, CHECKED_ELEMENTS // (2 * self.N)))


@dataclass(frozen=True)
class FeedForwardCase(Measured):
    """A feed-forward block.

    Arguments
    ---------
    op : str
        ``"geglu_ffn"``.
    B, T, C, F : int
        Batch, frames, channels, channels behind the gate.
    dtype : str
        Of autocast, with float32 parameters.
    dropout : float
        Probability of dropping an element behind the gate.
    """

    op: str
    B: int
    T: int
    C: int
    F: int
    dtype: str
    dropout: float = 0.0

    @property
    def kind(self) -> str:
        """The op, or ``"geglu_ffn_dropout"``."""
        return f"{self.op}_dropout" if self.dropout else self.op

    @property
    def shape(self) -> str:
        """As the tables write it, such as ``B64_T400_C512_F2048_dropout``."""
        name = f"B{self.B}_T{self.T}_C{self.C}_F{self.F}"
        return f"{name}_dropout" if self.dropout else name


@dataclass(frozen=True)
class TransducerCase(Measured):
    """A transducer loss of utterances that all have the full lengths.

    Arguments
    ---------
    op : str
        ``"transducer_loss"``.
    B, T, U, V : int
        Batch, frames, labels, vocabulary.
    dtype : str
        Of the logits (B, T, U + 1, V).
    """

    op: str
    B: int
    T: int
    U: int
    V: int
    dtype: str

    @property
    def shape(self) -> str:
        """As the tables write it, such as ``B40_T375_U55_V1000``."""
        return f"B{self.B}_T{self.T}_U{self.U}_V{self.V}"

    @property
    def checked(self) -> Self:
        return replace(self, B=min(self.B, CHECKED_UTTERANCES))

    @property
    def rounding(self) -> float:
        """What a float32 sum along a path of T + U steps is off by.

        Each implementation rounds in another order, and the errors of a few
        utterances' values may be far smaller in one of them by chance.
        """
        return 2.0**-24 * math.sqrt(self.T + self.U)

    @property
    def logits_bytes(self) -> int:
        elements = self.B * self.T * (self.U + 1) * self.V
        return elements * self.torch_dtype.itemsize


@dataclass(frozen=True)
class TrainingCase(Measured):
    """A training step of the LibriSpeech recipe.

    Arguments
    ---------
    op : str
        ``"train_step"``.
    dtype : str
        Of autocast, with float32 parameters.
    chunk : int
        Encoder frames in a chunk; 0 for full context.
    fast : bool
        Whether the model is the recipe's Fast Conformer.
    B, seconds, labels, V : int
        Utterances, the length of each, their labels on average, vocabulary.
    sizes : tuple of tuple
        Names and values of the recipe's settings that make another model.
    """

    op: str
    dtype: str
    chunk: int = 0
    fast: bool = False
    B: int = 40
    seconds: float = 15
    labels: int = 55
    V: int = 1000
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def shape(self) -> str:
        """As the tables write it, such as ``libri_fast_40x15s_chunk16``."""
        model = "libri_fast" if self.fast else "libri"
        context = f"chunk{self.chunk}" if self.chunk else "full"
        return f"{model}_{self.B}x{self.seconds}s_{context}"

    @property
    def checked(self) -> Self:
        return replace(self, B=min(self.B, CHECKED_UTTERANCES))

    @property
    def rounding(self) -> float:
        """One rounding of autocast's dtype, or 2^16 of a float32 sum's."""
        return max(torch.finfo(self.torch_dtype).eps / 2, 2.0**-16)


DEPTHWISE = Case("depthwise_conv1d", 64, 400, 512, 31, "bfloat16")
MODULE = replace(DEPTHWISE, op="conv_module")
FRONTEND = Case("frontend", 64, 3200, 256, 3, "bfloat16", F=80)
STREAM = replace(MODULE, T=16, dtype="float32", stream=True)
GEGLU = LinearCase("geglu_linear", 25600, 512, 2048, "bfloat16")
LADDER = replace(GEGLU, op="geglu_ladder", step="matmul")
FEED_FORWARD = FeedForwardCase("geglu_ffn", 64, 400, 512, 2048, "bfloat16")
TRANSDUCER = TransducerCase("transducer_loss", 40, 375, 55, 1000, "bfloat16")
TRAINING = TrainingCase("train_step", "bfloat16")

CASES: tuple[Measured, ...] = (
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
    GEGLU,
    replace(GEGLU, M=6400),
    replace(GEGLU, N=1408),
    replace(GEGLU, K=256, N=1024),
    replace(GEGLU, M=8192, K=1024, N=4096),
    replace(GEGLU, M=16384, K=2048, N=8192),
    replace(GEGLU, dtype="float16"),
    replace(GEGLU, dtype="float32"),
    FEED_FORWARD,
    replace(FEED_FORWARD, F=1408),
    replace(FEED_FORWARD, B=16),
    replace(FEED_FORWARD, dropout=0.1),
    *(
        replace(LADDER, step=step)
        for step in (
            "matmul",
            "matmul_gelu",
            "matmul_gelu_mul",
            "second_half",
            "first_half",
            "both_halves",
            "gelu_mul",
        )
    ),
    TRANSDUCER,
    replace(TRANSDUCER, B=16, T=400, U=60),
    replace(TRANSDUCER, B=16, T=200, U=30, V=4096),
    replace(TRANSDUCER, B=64, T=200, U=60, V=500),
    *(
        replace(TRAINING, dtype=dtype, chunk=chunk, fast=fast)
        for fast, chunks in ((False, (0, 16, 8)), (True, (0, 16)))
        for dtype in ("bfloat16", "float16")
        for chunk in chunks
    ),
)


def select(
    ops: Sequence[str],
    shape: str | None = None,
    quick: bool = False,
    dtype: str | None = None,
) -> list[Measured]:
    """Choose cases, in their order.

    Arguments
    ---------
    ops : sequence of str
        Names of ops.
    shape : str, optional
        A text that the shape must contain.
    quick : bool
        Of each op only the first case.
    dtype : str, optional
        ``"float32"``, ``"bfloat16"`` or ``"float16"``: only cases of it.

    Returns
    -------
    list of Measured

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
        if case.op in ops
        and (shape is None or shape in case.shape)
        and (dtype is None or dtype == case.dtype)
    ]
    if not chosen:
        wanted = dtype or ""
        if shape is not None:
            wanted = f"{wanted} with {shape!r} in its shape".strip()
        raise ValueError(
            f"No case of {', '.join(ops)} is {wanted}; shapes are written like "
            f"{CASES[0].shape}_chunk16."
        )
    if quick:
        first = {case.op: case for case in reversed(chosen)}
        chosen = [case for case in chosen if case is first[case.op]]
    return chosen
