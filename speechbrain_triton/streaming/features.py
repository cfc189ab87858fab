"""Features of a stream, equal to those of the whole signal."""

import copy
import dataclasses
import math
from dataclasses import dataclass

import torch
from speechbrain.lobes.features import Fbank
from speechbrain.processing.features import InputNormalization
from speechbrain.utils.filter_analysis import stack_filter_properties
from torch import nn


@dataclass
class FeatureStream:
    """What :class:`StreamingFeatures` keeps of a stream; changed in place.

    Arguments
    ---------
    samples : torch.Tensor or None
        (B, n), the last samples, from the first that frames to come need.
    emitted : int
        Frames of these samples that were given out before.
    limit : int or None
        Frames that a call gives out at most.
    ended : bool
        Whether the next call's samples are the stream's last.
    finished : bool
        Whether all frames of an ended stream were given out.
    filled : bool
        Whether a chunk was filled up with zeros.
    peaks : torch.Tensor or None
        (B, n', 1), for each complete filter bank frame of the samples the
        loudest feature, in dB, of the stream when the frame was complete.
    """

    samples: torch.Tensor | None = None
    emitted: int = 0
    limit: int | None = None
    ended: bool = False
    finished: bool = False
    filled: bool = False
    peaks: torch.Tensor | None = None


class StreamingFeatures(nn.Module):
    """Filter banks, normalization and front end, chunk by chunk.

    It stands where SpeechBrain's ``StreamingFeatureWrapper`` does, as the
    ``fea_streaming_extractor`` of ``StreamingASR``, but gives the frames that
    the same modules give for the whole signal: a frame is given out once all
    samples that it sees are there, the frames lie on one grid of ``stride``
    samples from the first to the last, and the modules' own padding acts at
    the signal's ends, and only there.

    One thing cannot be the same. ``Fbank`` raises what is quieter than the
    loudest feature of the signal by more than 80 dB to that level, and a
    stream cannot know what is still to come: here the loudest so far counts.
    :meth:`whole` does either.

    There are two ways to begin a stream. :meth:`start` takes the first
    ``lookahead`` samples; then each chunk of ``k * stride`` samples gives k
    frames, and the frames are those of the signal. ``StreamingASR`` passes
    nothing but chunks of one size: for it, :meth:`make_streaming_context`
    puts as many zeros before the signal, a few milliseconds.

    Arguments
    ---------
    features : speechbrain.lobes.features.Fbank
        Without deltas and context.
    normalize : speechbrain.processing.features.InputNormalization
        With global statistics.
    frontend : torch.nn.Module
        Subsamples (B, T, F) in time, and has ``get_filter_properties()``.

    Attributes
    ----------
    stride : int
        Samples from one output frame to the next.
    reach : int
        Samples that an output frame sees at each side of its centre.
    lookahead : int
        Samples that a chunk's last frame sees past the chunk.
    properties : FilterProperties
        Of the three together, but with ``stride + 1``: ``StreamingASR`` asks
        for chunks of ``(properties.stride - 1) * chunk_size`` samples.

    Raises
    ------
    ValueError
        If the modules cannot be streamed.

    Example
    -------
    >>> from speechbrain_triton.modules import FastConformerFrontEnd
    >>> normalize = InputNormalization()
    >>> normalize.glob_mean = torch.zeros(40)
    >>> normalize.glob_std = torch.ones(40)
    >>> features = StreamingFeatures(
    ...     Fbank(), normalize, FastConformerFrontEnd(40, channels=8)
    ... ).eval()
    >>> features.stride, features.lookahead
    (1280, 41)
    >>> stream = features.make_streaming_context()
    >>> features(torch.rand(1, 4 * 1280), stream).shape
    torch.Size([1, 4, 5, 8])
    """

    def __init__(
        self,
        features: Fbank,
        normalize: InputNormalization,
        frontend: nn.Module,
    ) -> None:
        super().__init__()
        window = stack_filter_properties([features, frontend])
        if features.deltas or features.context:
            raise ValueError(
                "features with deltas or context see further than Fbank says, "
                "and cannot be streamed."
            )
        if normalize.norm_type != "global":
            raise ValueError(
                f"norm_type={normalize.norm_type!r} needs the whole signal; "
                "only 'global' can be streamed."
            )
        if window.dilation != 1:
            raise ValueError("A dilated front end cannot be streamed.")
        self.features = features
        # The same without a floor: what is loudest is for us to say.
        self.unlimited = copy.deepcopy(features)
        self.unlimited.compute_fbanks.top_db = math.inf
        stft = features.compute_STFT
        self.hop, self.half = stft.hop_length, (stft.win_length + 1) // 2
        self.normalize = normalize
        self.frontend = frontend
        self.stride = window.stride
        self.reach = (window.window_size - 1) // 2
        self.lookahead = max(0, self.reach + 1 - self.stride)
        self.properties = dataclasses.replace(window, stride=self.stride + 1)

    def make_streaming_context(self) -> FeatureStream:
        """Begin a stream with ``lookahead`` zeros."""
        return FeatureStream()

    def start(
        self, samples: torch.Tensor, limit: int | None = None
    ) -> FeatureStream:
        """Begin a stream without delay.

        Arguments
        ---------
        samples : torch.Tensor
            (B, n), the signal's first ``lookahead`` samples; fewer if it has
            no more.
        limit : int, optional
            Frames that a call gives out at most: an ended stream may have
            one more than the last chunk has room for.

        Returns
        -------
        FeatureStream
            Set its ``ended`` before the call with the last samples; go on,
            with no samples, until it is ``finished``.
        """
        return FeatureStream(samples=samples, limit=limit)

    def get_recommended_final_chunk_count(self, frames_per_chunk: int) -> int:
        """Chunks of zeros that make the last frames come out.

        Arguments
        ---------
        frames_per_chunk : int
            Samples in a chunk, as SpeechBrain's method has it.

        Returns
        -------
        int
        """
        return -(-(self.reach + 1) // frames_per_chunk)

    def forward(
        self,
        chunk: torch.Tensor,
        context: FeatureStream,
        lengths: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Give out the frames that a chunk completes.

        Arguments
        ---------
        chunk : torch.Tensor
            (B, n), samples: a whole number of strides, unless the stream has
            ended. A shorter chunk is filled up with zeros, as the last one.
        context : FeatureStream
            Changed in place.
        lengths : torch.Tensor, optional
            Not used: rows that end earlier go on with what is in the batch.

        Returns
        -------
        torch.Tensor
            (B, T, ...), the front end's output frames.

        Raises
        ------
        ValueError
            If more samples follow a chunk that was filled up.
        """
        if not context.ended:
            chunk = self._fill(chunk, context)
        if context.samples is None:
            context.samples = chunk.new_zeros(chunk.shape[0], self.lookahead)
        samples = torch.cat((context.samples, chunk), dim=1)
        frames = self._frames(self._banks(samples, context))

        complete = frames.shape[1]
        if not context.ended:
            complete = (samples.shape[1] - 1 - self.reach) // self.stride + 1
        end = complete
        if context.limit is not None:
            end = min(end, context.emitted + context.limit)
        output = frames[:, context.emitted : end]
        context.finished = context.ended and end == complete

        # Frames of the rest must not see where it was cut off.
        left = -(-self.reach // self.stride)
        gone = max(0, end - left)
        context.samples = samples[:, gone * self.stride :]
        context.peaks = context.peaks[:, gone * self.stride // self.hop :]
        context.emitted = end - gone
        return output

    def whole(
        self, samples: torch.Tensor, chunk_size: int | None = None
    ) -> torch.Tensor:
        """Give the frames of a whole signal.

        Arguments
        ---------
        samples : torch.Tensor
            (B, n).
        chunk_size : int, optional
            Frames in a chunk: what is loudest is taken from the chunks so
            far, as in a stream that began with :meth:`start`. By default it
            is taken from the whole signal, as in a recipe.

        Returns
        -------
        torch.Tensor
            (B, T, ...), the front end's output.
        """
        if chunk_size is None:
            return self._frames(self.features(samples))
        x = self.unlimited(samples)
        peaks, count = None, 0
        end = self.lookahead
        while count < x.shape[1]:
            end += chunk_size * self.stride
            count = x.shape[1]
            if end < samples.shape[1]:
                count = self._complete(end)
            peaks = _extend(peaks, x[:, :count])
        return self._frames(self._limit(x, peaks))

    def _banks(self, samples, context):
        """Filter banks of the samples kept, each frame with its own floor."""
        x = self.unlimited(samples)
        count = x.shape[1]
        if not context.ended:
            count = self._complete(samples.shape[1])
        context.peaks = _extend(context.peaks, x[:, :count])
        # What is not complete is seen by no frame that is given out.
        missing = x.shape[1] - context.peaks.shape[1]
        peaks = nn.functional.pad(context.peaks, (0, 0, 0, missing))
        return self._limit(x, peaks)

    def _limit(self, x, peaks):
        return torch.maximum(x, peaks - self.features.compute_fbanks.top_db)

    def _frames(self, banks):
        return self.frontend(self.normalize(banks))

    def _complete(self, n_samples):
        """Filter bank frames that see none but these samples."""
        return max(0, (n_samples - self.half) // self.hop + 1)

    def _fill(self, chunk, context):
        if context.filled and chunk.any():
            raise ValueError(
                "a chunk that is no whole number of frames, of "
                f"{self.stride} samples each, can only be a stream's last."
            )
        missing = -chunk.shape[1] % self.stride
        context.filled = context.filled or missing > 0
        return nn.functional.pad(chunk, (0, missing))


def _extend(peaks: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """Give new frames the loudest feature that there was up to now."""
    known = 0 if peaks is None else peaks.shape[1]
    new = x[:, known:]
    if not new.shape[1]:
        return x[:, :, :1] if peaks is None else peaks
    peak = new.amax((1, 2), keepdim=True)
    if known:
        peak = torch.maximum(peak, peaks[:, -1:])
    peak = peak.expand(-1, new.shape[1], -1)
    return torch.cat((peaks, peak), dim=1) if known else peak
