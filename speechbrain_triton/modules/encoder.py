"""The Conformer's encoder layer, streaming without recomputation."""

import torch
from speechbrain.lobes.models.transformer.Conformer import (
    ConformerEncoderLayer,
    ConformerEncoderLayerStreamingContext,
)

from speechbrain_triton.modules.convolution import TritonConvolutionModule
from speechbrain_triton.modules.streaming import last_frames, streaming


class TritonConformerEncoderLayer(ConformerEncoderLayer):
    """SpeechBrain's ``ConformerEncoderLayer`` around a switched module.

    Only streaming differs: where SpeechBrain puts the last frames of the
    previous chunk in front of the convolution module's input and computes them
    again, the depthwise convolution here reads them where they are, after the
    gate. ``context.gated_left_context`` holds them, beside SpeechBrain's own
    ``dcconv_left_context``, which stays what it is in SpeechBrain: a stream
    may go on when the kernels are switched off.
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
        gated = getattr(context, "gated_left_context", None)
        continued = (before is None) == (gated is None)
        if not (
            continued
            and isinstance(module, TritonConvolutionModule)
            and module.streams(x)
        ):
            context.gated_left_context = None
            return super().forward_streaming(x, context, pos_embs)

        context.dcconv_left_context = None
        with streaming(gated) as stream:
            result = super().forward_streaming(x, context, pos_embs)
        context.gated_left_context = stream.left_context
        context.dcconv_left_context = last_frames(
            before, context.dcconv_left_context, module.padding
        )
        return result
