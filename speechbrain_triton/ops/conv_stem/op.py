"""The front end's first two convolutions: the public function."""

import torch

from speechbrain_triton.backend import check_choice, use_triton
from speechbrain_triton.ops.casts import cast
from speechbrain_triton.ops.conv_stem.autograd import run_conv_stem
from speechbrain_triton.ops.conv_stem.reference import conv_stem_reference
from speechbrain_triton.ops.frames import whole_frames
from speechbrain_triton.ops.inputs import (
    PADDINGS,
    check_device,
    product_dtype,
)
from speechbrain_triton.ops.sizes import out_length

KERNELS = (1, 3, 5)
STRIDES = (1, 2)

# Rows of a kernel's tensors are counted in 32 bits.
MAX_ROWS = 2**31 - 1


def conv_stem(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    depthwise_weight: torch.Tensor,
    depthwise_bias: torch.Tensor | None,
    *,
    stride: int = 2,
    padding: str = "same",
    lengths: torch.Tensor | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """A convolution from 1 to C channels, ReLU, a depthwise convolution.

    So begins the depthwise-separable striding of Fast Conformer (Rekesh et
    al., "Fast Conformer with Linearly Scalable Attention for Efficient Speech
    Recognition", ASRU 2023). The layer between the two convolutions has
    stride * stride times as many elements as the result, and is the largest
    tensor of the model. The Triton path never writes it: both passes compute
    it anew from patches of the input, of which 16 numbers a position are kept
    for backward (32 with 5 x 5 kernels), in place of C.

    Under autocast the products are in autocast's dtype, whatever the dtypes of
    x and the parameters. Sums are taken in float32 and in a fixed order, so
    repeated calls return the same bits. Double backward is supported.

    Arguments
    ---------
    x : torch.Tensor
        Features (B, T, F), such as log-mels, in float32, bfloat16 or float16
        (float64 on the torch path). Any strides.
    weight : torch.Tensor
        (C, 1, K, K), as ``torch.nn.Conv2d`` keeps it, with K 1, 3 or 5.
    bias : torch.Tensor or None
        (C,).
    depthwise_weight : torch.Tensor
        (C, 1, K, K).
    depthwise_bias : torch.Tensor or None
        (C,).
    stride : int
        Of both convolutions in time and frequency: 1 or 2.
    padding : str
        ``"same"`` ((K - 1) // 2 zeros on each side), ``"causal"`` (in time all
        K - 1 zeros in front, so that no output sees later frames) or
        ``"valid"`` (no zeros).
    lengths : torch.Tensor, optional
        Frames of each utterance (B,), whole numbers on x's device. x counts
        as zero from there on, and the layer between from what the first
        convolution makes of them: a row of a padded batch is then the same as
        that row alone.
    backend : str
        ``"auto"``, ``"triton"`` or ``"torch"``.

    Returns
    -------
    torch.Tensor
        (B, T', F', C) in x's dtype, or autocast's; for ``stride=2`` and
        ``padding="same"`` T' is T / 4, rounded up.

    Raises
    ------
    ValueError
        For a shape or option that is not allowed.
    TypeError
        If dtypes differ outside autocast.
    RuntimeError
        If ``backend="triton"`` cannot run.

    Example
    -------
    >>> x, weight, bias = torch.rand(4, 100, 80), torch.rand(64, 1, 3, 3), None
    >>> conv_stem(x, weight, bias, weight, bias).shape
    torch.Size([4, 25, 20, 64])
    """
    parameters = {
        "weight": weight,
        "bias": bias,
        "depthwise_weight": depthwise_weight,
        "depthwise_bias": depthwise_bias,
    }
    dtype = product_dtype(x, parameters)
    _check(x, parameters, stride, padding)
    lengths = whole_frames(lengths, x)
    taken = use_triton(backend, "conv_stem", x.device, dtype, _obstacle(x))
    if taken:
        return run_conv_stem(
            x, *parameters.values(), lengths, stride, padding, dtype
        )
    tensors = (x, *parameters.values())
    return conv_stem_reference(
        *(cast(t, dtype) for t in tensors),
        stride=stride,
        padding=padding,
        lengths=lengths,
    )


def _obstacle(x: torch.Tensor) -> str | None:
    B, T, F = x.shape
    if B * T * F > MAX_ROWS:
        return f"x has more than {MAX_ROWS} elements"
    return None


def _check(x, parameters, stride, padding) -> None:
    check_choice("padding", padding, PADDINGS)
    if type(stride) is not int or stride not in STRIDES:
        raise ValueError(f"stride={stride!r} is not one of 1, 2.")
    if x.dim() != 3:
        raise ValueError(
            f"x must be (batch, time, feature), got shape {tuple(x.shape)}."
        )
    weight = parameters["weight"]
    shape = tuple(weight.shape)
    if (
        len(shape) != 4
        or shape[1] != 1
        or shape[2] not in KERNELS
        or shape[2] != shape[3]
    ):
        raise ValueError(
            f"weight must be (C, 1, K, K) with K 1, 3 or 5, got shape {shape}."
        )
    C, _, K, _ = shape
    for name, tensor in parameters.items():
        if tensor is None:
            continue
        expected = shape if name.endswith("weight") else (C,)
        if tensor.shape != expected:
            raise ValueError(
                f"{name} must be {expected} beside a weight {shape}, got shape "
                f"{tuple(tensor.shape)}."
            )
        check_device(name, tensor, x.device)
    for name, size in zip("TF", x.shape[1:], strict=True):
        hidden = out_length(size, K, stride, padding)
        if size < 1 or hidden < 1 or out_length(hidden, K, stride, padding) < 1:
            raise ValueError(
                f"x has {name} = {size}: too few for two convolutions with "
                f"kernel {K}, stride {stride} and padding={padding!r}."
            )
