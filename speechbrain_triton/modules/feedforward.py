"""A feed-forward block gated by GELU, in torch and on Triton."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from speechbrain_triton.backend import BACKENDS, check_choice
from speechbrain_triton.modules.coverage import (
    dtype_on_triton,
    layer_obstacle,
    weight_and_bias,
)
from speechbrain_triton.modules.feedforward_state import checkpoint_obstacle
from speechbrain_triton.ops import geglu_ffn
from speechbrain_triton.ops.dropout import check_dropout
from speechbrain_triton.ops.geglu_linear.reference import APPROXIMATIONS

_LAYERS = (
    ("linear_in", nn.Linear),
    ("dropout", nn.Dropout),
    ("linear_out", nn.Linear),
)


class GEGLUFeedForward(nn.Module):
    """The feed-forward block of a Transformer with GEGLU in the middle.

    ``linear_out(dropout(first * gelu(second)))``, where first and second are
    the halves of ``linear_in(x)`` (Shazeer, "GLU Variants Improve
    Transformer", 2020, https://arxiv.org/abs/2002.05202). It stands where
    SpeechBrain's ``PositionalwiseFeedForward`` does, and is another
    architecture: with the same ``d_ffn`` it has half as many parameters more.
    The backends share parameters, and so checkpoints.

    Arguments
    ---------
    d_ffn : int
        F, size of the hidden layer behind the gate.
    input_shape : sequence of int, optional
        Of which the last number is ``input_size``.
    input_size : int, optional
        D, size of input and output. One of the two must be given.
    dropout : float
        Probability of dropping an element of the hidden layer, in training.
    approximate : str
        ``"none"`` for GELU by the error function, or ``"tanh"``. A checkpoint
        says which it was trained with, and the other refuses it.
    backend : str
        ``"auto"`` takes Triton where it can and logs the reason where it
        does not, ``"triton"`` raises where it cannot run, ``"torch"`` is
        plain PyTorch.

    Raises
    ------
    ValueError
        For an argument out of its range.

    Example
    -------
    >>> net = GEGLUFeedForward(256, input_size=64, dropout=0.1)
    >>> net(torch.rand(8, 60, 64)).shape
    torch.Size([8, 60, 64])
    >>> net.linear_in.weight.shape, net.linear_out.weight.shape
    (torch.Size([512, 64]), torch.Size([64, 256]))
    """

    def __init__(
        self,
        d_ffn: int,
        input_shape: Sequence[int] | None = None,
        input_size: int | None = None,
        dropout: float = 0.0,
        approximate: str = "none",
        backend: str = "auto",
    ) -> None:
        if input_size is None:
            if input_shape is None:
                raise ValueError("input_shape or input_size must be given.")
            input_size = input_shape[-1]
        for name, size in (("d_ffn", d_ffn), ("input_size", input_size)):
            if type(size) is not int or size < 1:
                raise ValueError(f"{name}={size!r} is not a positive integer.")
        check_choice("approximate", approximate, APPROXIMATIONS)
        check_choice("backend", backend, BACKENDS)
        super().__init__()
        self.d_ffn = d_ffn
        self.input_size = input_size
        self.approximate = approximate
        self.backend = backend
        self.linear_in = nn.Linear(input_size, 2 * d_ffn)
        self.dropout = nn.Dropout(check_dropout(dropout))
        self.linear_out = nn.Linear(d_ffn, input_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights that give the output the variance it had without gate.

        The gate's half and the second layer are drawn as ``TransformerASR``
        draws them in the block that this one replaces: by ``xavier_normal_``,
        with the biases of ``torch.nn.Linear``. The other half, by which GELU's
        result is multiplied, gets variance 1 for an input of variance 1, as
        behind a layer norm. Drawn as one matrix by ``xavier_normal_`` the two
        halves would make an output of a ninth of the variance.
        """
        first, second = self.linear_in.weight.detach().chunk(2)
        nn.init.normal_(first, std=self.input_size**-0.5)
        nn.init.xavier_normal_(second)
        nn.init.xavier_normal_(self.linear_out.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block to each frame.

        Arguments
        ---------
        x : torch.Tensor
            (..., D), such as (B, T, D).

        Returns
        -------
        torch.Tensor
            Of x's shape; under autocast in autocast's dtype.

        Raises
        ------
        TypeError
            If x is no tensor.
        ValueError
            If x does not fit the block.
        RuntimeError
            If ``backend`` is ``"triton"`` and the kernels cannot run.
        """
        self._check_input(x)
        if not self.takes_triton(x):
            return self._run_torch(x)
        layers = self._modules
        dropout = layers["dropout"]
        return geglu_ffn(
            x,
            *weight_and_bias(layers["linear_in"]),
            *weight_and_bias(layers["linear_out"]),
            approximate=self.approximate,
            dropout=dropout.p if dropout.training else 0.0,
            backend="triton",
        )

    def _run_torch(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.linear_in(x).chunk(2, -1)
        h = first * F.gelu(second, approximate=self.approximate)
        return self.linear_out(self.dropout(h))

    def _check_input(self, x: torch.Tensor) -> None:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"x must be a tensor; got a {type(x).__name__}.")
        if x.dim() == 0 or x.shape[-1] != self.input_size:
            raise ValueError(
                f"x must be (..., {self.input_size}); got the shape "
                f"{tuple(x.shape)}."
            )
        if not x.is_floating_point():
            raise ValueError(f"x must be of a floating dtype; got {x.dtype}.")

    def takes_triton(self, x: torch.Tensor) -> bool:
        """Whether a call would take the Triton path.

        Arguments
        ---------
        x : torch.Tensor
            The call's input.

        Returns
        -------
        bool

        Raises
        ------
        RuntimeError
            If ``backend`` is ``"triton"`` and the kernels cannot run.
        """
        dtype = dtype_on_triton(
            self,
            "GEGLUFeedForward",
            x,
            feedforward_obstacle(self),
            layer="linear_in",
        )
        return dtype is not None

    def get_extra_state(self) -> torch.Tensor:
        """What a checkpoint keeps besides the parameters.

        A tensor, as SpeechBrain averages all that its checkpoints hold.
        """
        return torch.tensor(APPROXIMATIONS.index(self.approximate))

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Take what was compared before anything was loaded."""

    def _load_from_state_dict(self, state_dict, prefix, *args):
        # Also where loading is not strict: nothing of the block would fit.
        if message := checkpoint_obstacle(self, state_dict, prefix):
            raise RuntimeError(f"{type(self).__name__}: {message}.")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}, backend={self.backend!r}"


def feedforward_obstacle(module: GEGLUFeedForward) -> str | None:
    """Say what keeps a block from the Triton path, if anything.

    The inner layers, which the Triton path does not call, must be those that
    the block built, without hooks.

    Arguments
    ---------
    module : GEGLUFeedForward
        The block.

    Returns
    -------
    str or None
        The reason, or None where the Triton path covers the module.

    Example
    -------
    >>> module = GEGLUFeedForward(8, input_size=4)
    >>> module.linear_out = nn.Identity()
    >>> feedforward_obstacle(module)
    'a Identity in place of linear_out'
    """
    layers = module._modules
    for name, expected in _LAYERS:
        if obstacle := layer_obstacle(name, layers.get(name), expected):
            return obstacle
    D, d_ffn = module.input_size, module.d_ffn
    for name, shape in (
        ("linear_in", (2 * d_ffn, D)),
        ("linear_out", (D, d_ffn)),
    ):
        weight, _ = weight_and_bias(layers[name])
        if weight.shape != shape:
            return f"a {name} other than the feed-forward built"
    return None
