"""What a case says: sizes and dtype, and the size at which it is checked."""

import math
import re
from dataclasses import dataclass, replace
from typing import Self

import torch

# So many utterances of a front end or a loss are checked, and so many elements
# of a linear layer's output, where float64 of all would not fit beside.
CHECKED_UTTERANCES = 2
# Of a loss with a joint network: each utterance has but one value, and few
# values in half precision may be right by chance.
CHECKED_WITH_JOINT = 8
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
        ``"depthwise_conv1d"``, ``"conv_module"``, ``"frontend"`` or
        ``"convolution_frontend"``.
    B, T, C, K : int
        Batch, frames, channels, taps; for ``"convolution_frontend"`` the
        channels of its first block.
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
        if self.F:
            return replace(self, B=min(self.B, CHECKED_UTTERANCES))
        return self

    @property
    def rounding(self) -> float:
        """What float32 sums of gradients are off by.

        Those of the last norm of a ``"convolution_frontend"`` have no other
        error, and whose is smaller is chance.
        """
        return 2.0**-22 if self.op == "convolution_frontend" else 0.0

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
class JointCase(TransducerCase):
    """A transducer loss with the joint network in front of it.

    Arguments
    ---------
    op : str
        ``"transducer_joint_loss"``.
    B, T, U, V : int
        As for the loss alone.
    dtype : str
        Of autocast, encoder and predictor, with float32 parameters.
    J : int
        Channels of encoder (B, T, J) and predictor (B, U + 1, J).
    """

    J: int = 640

    @property
    def shape(self) -> str:
        """As the tables write it, such as ``B40_T375_U55_V1000_J640``."""
        return f"{super().shape}_J{self.J}"

    @property
    def checked(self) -> Self:
        return replace(self, B=min(self.B, CHECKED_WITH_JOINT))

    @property
    def rounding(self) -> float:
        """One rounding of each logit along a path, whose errors average out.

        Most of the error that the values have is that of the weight, cast to
        autocast's dtype, which all have in common. Where this is small by
        chance, the rest decides.
        """
        eps = torch.finfo(self.torch_dtype).eps
        return super().rounding + eps / 2 / math.sqrt(self.T + self.U)

    @property
    def rows(self) -> int:
        """Of the joint network's output, a matrix of J columns."""
        return self.B * self.T * (self.U + 1)


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
    gpus : int
        That train together, each on as many utterances.
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
    gpus: int = 1

    @property
    def shape(self) -> str:
        """As the tables write it, such as ``libri_fast_40x15s_chunk16``."""
        model = "libri_fast" if self.fast else "libri"
        context = f"chunk{self.chunk}" if self.chunk else "full"
        gpus = f"_{self.gpus}gpus" if self.gpus > 1 else ""
        return f"{model}_{self.B}x{self.seconds}s_{context}{gpus}"

    @property
    def checked(self) -> Self:
        return replace(self, B=min(self.B, CHECKED_UTTERANCES))

    @property
    def rounding(self) -> float:
        """One rounding of autocast's dtype, or 2^16 of a float32 sum's."""
        return max(torch.finfo(self.torch_dtype).eps / 2, 2.0**-16)


_CLASSES = {
    "depthwise_conv1d": Case,
    "conv_module": Case,
    "frontend": Case,
    "geglu_linear": LinearCase,
    "geglu_ffn": FeedForwardCase,
    "transducer_loss": TransducerCase,
    "transducer_joint_loss": JointCase,
}


def case_of(op: str, dtype: str, shape: str) -> Measured | None:
    """Find what a row is about.

    Arguments
    ---------
    op, dtype, shape : str
        As the tables write them.

    Returns
    -------
    Measured or None
        None for a shape that no case writes so, and for rows whose op does
        not have a floor: those of ``convolution_frontend``, ``geglu_ladder``
        and ``train_step``.

    Example
    -------
    >>> case_of("geglu_linear", "float16", "M25600_K512_N2048").N
    2048
    """
    sizes = {
        letter: int(digits)
        for letter, digits in re.findall(r"([A-Z])(\d+)(?=_|$)", shape)
    }
    if op == "frontend":
        # Its kernels are 3 x 3, which its shapes do not say.
        sizes["K"] = 3
    elif shape.endswith("_dropout"):
        sizes["dropout"] = 0.1
    elif shape.endswith("_stream"):
        sizes["stream"] = True
    elif chunk := re.search(r"_chunk(\d+)$", shape):
        sizes["chunk"] = int(chunk[1])
    try:
        case = _CLASSES[op](op, dtype=dtype, **sizes)
    except (KeyError, TypeError):
        return None
    return case if case.shape == shape else None
