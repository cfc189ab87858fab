"""What a convolution module keeps of a stream, from chunk to chunk."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch


@dataclass
class Stream:
    """What a convolution module keeps from one chunk to the next.

    Arguments
    ---------
    left_context : torch.Tensor or None
        The depthwise convolution's last input frames, (B, up to P, C).
    """

    left_context: torch.Tensor | None


# SpeechBrain's layer passes its module nothing but the chunk.
_stream: ContextVar[Stream | None] = ContextVar("stream", default=None)


def current_stream() -> Stream | None:
    """The stream that a call goes on with, if it is a chunk of one."""
    # torch.compile cannot trace a context variable; see also the encoder layer.
    return None if torch.compiler.is_compiling() else _stream.get()


@contextmanager
def streaming(left_context: torch.Tensor | None) -> Iterator[Stream]:
    """Let the module that is called inside go on after ``left_context``.

    Arguments
    ---------
    left_context : torch.Tensor, optional
        As the last chunk left it; None at the start of a stream.

    Returns
    -------
    iterator of Stream
        It holds the new left context once the module was called.
    """
    stream = Stream(left_context)
    token = _stream.set(stream)
    try:
        yield stream
    finally:
        _stream.reset(token)


def last_frames(
    before: torch.Tensor | None, chunk: torch.Tensor, count: int
) -> torch.Tensor:
    """The last frames of a stream, or all while there are fewer.

    Arguments
    ---------
    before : torch.Tensor, optional
        (B, up to count, C), the last frames before the chunk.
    chunk : torch.Tensor
        (B, T, C).
    count : int
        How many frames are wanted, at least 1.

    Returns
    -------
    torch.Tensor

    Example
    -------
    >>> last_frames(torch.zeros(1, 3, 8), torch.zeros(1, 2, 8), 4).shape
    torch.Size([1, 4, 8])
    """
    if before is not None and chunk.shape[1] < count:
        chunk = torch.cat((before, chunk), dim=1)
    return chunk[:, -count:]
