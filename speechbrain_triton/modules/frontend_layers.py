"""The layers of the Fast Conformer's front end."""

import torch
import torch.nn.functional as F
from torch import nn

from speechbrain_triton.ops.frontend.reference import STRIDE


class StridedConv2d(nn.Conv2d):
    """A square convolution of stride 2 that makes ``ceil(n / 2)`` of n.

    Arguments
    ---------
    in_channels, out_channels : int
        As for ``torch.nn.Conv2d``.
    kernel_size : int
        Taps in time and in frequency, odd.
    groups : int
        As for ``torch.nn.Conv2d``.
    causal : bool
        Whether all zeros of the time axis stand before the first frame.

    Example
    -------
    >>> StridedConv2d(1, 8, kernel_size=3)(torch.rand(2, 1, 9, 80)).shape
    torch.Size([2, 8, 5, 40])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        groups: int = 1,
        causal: bool = False,
    ) -> None:
        half = (kernel_size - 1) // 2
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride=STRIDE,
            padding=(0 if causal else half, half),
            groups=groups,
        )
        self.zeros_before = kernel_size - 1 if causal else 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve (B, C, T, F)."""
        if self.zeros_before:
            x = F.pad(x, (0, 0, self.zeros_before, 0))
        return super().forward(x)


class SeparableConv2d(nn.Module):
    """A strided depthwise convolution and a pointwise one.

    Arguments
    ---------
    channels : int
        C, of input and output.
    kernel_size : int
        Taps of the depthwise convolution, odd.
    causal : bool
        As for :class:`StridedConv2d`.
    """

    def __init__(self, channels: int, kernel_size: int, causal: bool) -> None:
        super().__init__()
        self.depthwise = StridedConv2d(
            channels, channels, kernel_size, channels, causal
        )
        self.pointwise = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve (B, C, T, F)."""
        return self.pointwise(self.depthwise(x))
