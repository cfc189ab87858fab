"""The Conformer's encoder layer, streaming without recomputation."""

from typing import NamedTuple

import torch
from speechbrain.lobes.models.transformer.Conformer import (
    ConformerEncoderLayer,
    ConformerEncoderLayerStreamingContext,
)

from speechbrain_triton.modules.convolution import TritonConvolutionModule
from speechbrain_triton.modules.streaming import last_frames, streaming


class GatedContext(NamedTuple):
    """What a convolution module keeps of a stream.

    Arguments
    ---------
    frames : torch.Tensor or None
        The depthwise convolution's last input frames, (B, up to P, C).
    beside : torch.Tensor or None
        SpeechBrain's own context of the same frames. Another one in its
        place means that the stream went on without the kernels, or that its
        caller changed it.
    """

    frames: torch.Tensor | None
    beside: torch.Tensor | None


class TritonConformerEncoderLayer(ConformerEncoderLayer):
    """SpeechBrain's ``ConformerEncoderLayer`` around a switched module.

    Only streaming differs: where SpeechBrain puts the last frames of the
    previous chunk in front of the convolution module's input and computes them
    again, the depthwise convolution here reads them where they are, after the
    gate. ``context.gated_left_context`` holds them, beside SpeechBrain's own
    ``dcconv_left_context``, which stays what it is in SpeechBrain: a stream
    may go on when the kernels are switched off, or its context was changed.
    """

    def forward_streaming(
        self,
        x: torch.Tensor,
        context: ConformerEncoderLayerStreamingContext,
        pos_embs: torch.Tensor | None = None,
    ):
        """Encode the next chunk of a stream.

        Arguments
        ---------
        x : torch.Tensor
            The chunk, (B, T, C).
        context : ConformerEncoderLayerStreamingContext
            The stream's state; changed in place.
        pos_embs : torch.Tensor, optional
            Positional embeddings, where the attention uses them.

        Returns
        -------
        x : torch.Tensor
            The encoded chunk, (B, T, C).
        self_attn : torch.Tensor
            Attention weights, as in SpeechBrain.
        """
        module = self.convolution_module
        before = context.dcconv_left_context
        gated = getattr(context, "gated_left_context", GatedContext(None, None))
        if not (
            gated.beside is before
            and isinstance(module, TritonConvolutionModule)
            and module.streams(x)
        ):
            return super().forward_streaming(x, context, pos_embs)

        context.dcconv_left_context = None
        try:
            with streaming(gated.frames) as stream:
                result = super().forward_streaming(x, context, pos_embs)
        except BaseException:
            context.dcconv_left_context = before
            raise
        after = last_frames(before, context.dcconv_left_context, module.padding)
        context.dcconv_left_context = after
        context.gated_left_context = GatedContext(stream.left_context, after)
        return result
