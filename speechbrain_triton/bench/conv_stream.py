"""The convolution module on the next chunk of a stream, in inference."""

from copy import deepcopy

import torch
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule

from speechbrain_triton.bench.shapes import Case
from speechbrain_triton.bench.timing import Inputs
from speechbrain_triton.bench.variant import ForwardVariant
from speechbrain_triton.modules import TritonConvolutionModule
from speechbrain_triton.modules.streaming import streaming


def variants(case: Case, device: str) -> dict[str, ForwardVariant]:
    """Build stock, ours and float64, in the middle of the same stream.

    Arguments
    ---------
    case : Case
        Shape; float32.
    device : str
        Where the parameters are.

    Returns
    -------
    dict of ForwardVariant
        ``"stock"``, which puts the last frames in front of the chunk and
        computes them again, as SpeechBrain's encoder layer does;
        ``"triton"``; and ``"exact"``.
    """
    stock = ConvolutionModule(case.C, case.K).to(device).eval()
    ours = TritonConvolutionModule(case.C, case.K, backend="triton").to(device)
    ours.load_state_dict(stock.state_dict())
    ours.eval()
    before = torch.randn(case.B, stock.padding, case.C, device=device)
    with torch.no_grad(), streaming(None) as stream:
        ours(before)

    def recompute(module, before):
        def forward(x):
            y = module(torch.cat((before, x), dim=1))
            return y[:, -x.shape[1] :]

        return ForwardVariant(forward, before.dtype)

    def go_on(x):
        with streaming(stream.left_context):
            return ours(x)

    return {
        "stock": recompute(stock, before),
        "triton": ForwardVariant(go_on, torch.float32),
        "exact": recompute(deepcopy(stock).double(), before.double()),
    }


def draw(case: Case, device: str) -> Inputs:
    """Draw a chunk (B, T, C) in float32."""
    return (torch.randn(case.B, case.T, case.C, device=device),)
