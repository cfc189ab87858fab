"""SpeechBrain's convolutional front end: its variants and inputs."""

from copy import deepcopy
from dataclasses import dataclass, field

import torch
from speechbrain.lobes.models.convolution import ConvolutionFrontEnd
from torch import nn

from speechbrain_triton.bench.shapes import Case
from speechbrain_triton.bench.variant import Variant, under_autocast
from speechbrain_triton.modules import TritonConvolutionFrontEnd

STRIDES = (2, 2)
DROPOUT = 0.1


@dataclass(frozen=True)
class DroppingVariant(Variant):
    """Timed with dropout, and compared without: each draws its own masks.

    Arguments
    ---------
    module : torch.nn.Module
        What the forward calls, in training mode.
    """

    module: nn.Module = field(kw_only=True)

    def outcome(
        self, x: torch.Tensor, dy: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        self.module.eval()
        try:
            return super().outcome(x, dy)
        finally:
            self.module.train()


def variants(case: Case, device: str) -> dict[str, DroppingVariant]:
    """Build the implementations with the same parameters.

    Stock is SpeechBrain's module with the sizes of its LibriSpeech recipes;
    ``channels_last`` is the same with its weights in that memory format, which
    PyTorch's convolutions then take for their inputs and outputs, too.

    Arguments
    ---------
    case : Case
        Shape, and autocast's dtype.
    device : str
        Where the parameters are.

    Returns
    -------
    dict of DroppingVariant
        ``"stock"``, ``"channels_last"``, ``"triton"`` and ``"exact"``.
    """
    stock = _build(ConvolutionFrontEnd, case, device)
    _spread_norms(stock)
    channels_last = deepcopy(stock).to(memory_format=torch.channels_last)
    ours = _build(TritonConvolutionFrontEnd, case, device, backend="triton")
    ours.load_state_dict(stock.state_dict())
    exact = deepcopy(stock).double()

    def variant(module, forward):
        # In training x is features, of which nobody wants the gradient.
        params = dict(module.named_parameters())
        return DroppingVariant(forward, params, input_grad=False, module=module)

    modules = {
        "stock": stock,
        "channels_last": channels_last,
        "triton": ours,
    }
    return {
        **{
            impl: variant(
                module, under_autocast(module, device, case.torch_dtype)
            )
            for impl, module in modules.items()
        },
        "exact": variant(exact, lambda x, *_: exact(x)),
    }


def _build(kind, case, device, **options):
    return kind(
        input_shape=(8, 10, case.F),
        num_blocks=2,
        num_layers_per_block=1,
        out_channels=[case.C, case.C // 2],
        kernel_sizes=[case.K] * 2,
        strides=list(STRIDES),
        residuals=[False, False],
        dropout=DROPOUT,
        **options,
    ).to(device)


def _spread_norms(module: nn.Module) -> None:
    """Give norms parameters that the check can tell from none.

    Biases far from 0 also keep activations off their kink, at which rounding
    would decide whether a gradient is 100 times as large.
    """
    with torch.no_grad():
        for norm in module.modules():
            if isinstance(norm, nn.LayerNorm):
                norm.weight.normal_(std=0.3)
                norm.bias.normal_().sign_().mul_(5)


def draw(case: Case, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw x (B, T, F) and dy (B, T', F', C / 2), both in float32.

    That is what the last norm gives under autocast on a GPU.
    """
    x = torch.randn(case.B, case.T, case.F, device=device)
    frames, bins = case.T, case.F
    for stride in STRIDES:
        frames, bins = -(-frames // stride), -(-bins // stride)
    dy = torch.randn(case.B, frames, bins, case.C // 2, device=device)
    return x, dy
