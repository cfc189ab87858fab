"""The joint network and its output layer, as the recipes call them."""

from dataclasses import dataclass

import torch
from speechbrain.nnet.linear import Linear
from speechbrain.nnet.transducer.transducer_joint import Transducer_joint
from torch import nn

from speechbrain_triton.backend import (
    autocast_dtype,
    check_choice,
    log_once,
    use_triton,
)
from speechbrain_triton.modules.coverage import layer_obstacle, weight_and_bias

# Those of the losses that can take a joint network in place of logits.
BACKENDS = ("auto", "triton")

_NAMES = {
    nn.Identity: "none",
    nn.Tanh: "tanh",
    nn.ReLU: "relu",
    nn.LeakyReLU: "leaky_relu",
    nn.GELU: "gelu",
}


@dataclass
class JointLogits:
    """Logits (B, T, U + 1, V) that the loss computes itself.

    Arguments
    ---------
    encoder : torch.Tensor
        (B, T, J).
    predictor : torch.Tensor
        (B, U + 1, J).
    weight : torch.Tensor
        (V, J).
    bias : torch.Tensor or None
        (V,).
    nonlinearity : str
        As for :func:`speechbrain_triton.ops.transducer_joint_loss`.
    """

    encoder: torch.Tensor
    predictor: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    nonlinearity: str

    ndim = 4

    @property
    def shape(self) -> torch.Size:
        """That of the logits."""
        B, T, _ = self.encoder.shape
        return torch.Size((B, T, self.predictor.shape[1], self.weight.shape[0]))

    @property
    def device(self) -> torch.device:
        """That of the inputs."""
        return self.encoder.device


class TransducerJoint(nn.Module):
    """A joint network with the layer that makes logits.

    Both are called as they are, or, ``fused``, left to the transducer loss,
    which then needs no memory for all logits. The latter takes SpeechBrain's
    joint by ``"sum"`` with a nonlinearity that the kernels have, and its
    linear layer, without hooks or adapters.

    Arguments
    ---------
    joint : torch.nn.Module
        Takes (B, T, 1, J) and (B, 1, U + 1, J), as SpeechBrain's
        ``Transducer_joint``.
    linear : torch.nn.Module
        From the joint's channels to the vocabulary.
    fused : bool
        Whether the loss is to compute the logits.
    backend : str
        That of the loss. Where the kernels cannot run, ``"auto"`` goes the
        way of ``fused=False`` and says why, ``"triton"`` raises.

    Raises
    ------
    ValueError
        If ``fused`` is no bool, or true with another backend.
    RuntimeError
        In forward, if ``backend="triton"`` cannot run.

    Example
    -------
    >>> joint = TransducerJoint(
    ...     Transducer_joint(nonlinearity=nn.Tanh), Linear(5, input_size=8)
    ... )
    >>> joint(torch.rand(2, 7, 8), torch.rand(2, 4, 8)).shape
    torch.Size([2, 7, 4, 5])
    """

    def __init__(
        self,
        joint: nn.Module,
        linear: nn.Module,
        fused: bool = False,
        backend: str = "auto",
    ):
        super().__init__()
        if not isinstance(fused, bool):
            raise ValueError(
                f"fused_joint={fused!r} is not one of True, False."
            )
        if fused:
            check_choice("loss_backend with fused_joint", backend, BACKENDS)
        self.joint = joint
        self.linear = linear
        self.fused = fused
        self.backend = backend

    def forward(
        self, encoder: torch.Tensor, predictor: torch.Tensor
    ) -> torch.Tensor | JointLogits:
        """Make logits, or what the loss makes them of.

        Arguments
        ---------
        encoder : torch.Tensor
            (B, T, J).
        predictor : torch.Tensor
            (B, U + 1, J).

        Returns
        -------
        torch.Tensor or JointLogits
            (B, T, U + 1, V).
        """
        if self.fused and self._fuses(encoder):
            # Views: DDP takes a parameter for unused that leaves the module by
            # itself, without a node of the graph.
            weight, bias = (
                None if p is None else p.view_as(p)
                for p in weight_and_bias(self.linear.w)
            )
            nonlinearity = _name_of(self.joint.nonlinearity)
            return JointLogits(encoder, predictor, weight, bias, nonlinearity)
        joint = self.joint(encoder.unsqueeze(2), predictor.unsqueeze(1))
        return self.linear(joint)

    def _fuses(self, encoder: torch.Tensor) -> bool:
        what = "fused_joint"
        dtype = autocast_dtype(encoder) or encoder.dtype
        obstacle = joint_obstacle(self.joint, self.linear)
        if not use_triton(self.backend, what, encoder.device, dtype, obstacle):
            return False
        log_once(f"{what}: Triton path.")
        return True


def joint_obstacle(joint: nn.Module, linear: nn.Module) -> str | None:
    """Say what keeps a joint network and its output layer from being fused.

    Arguments
    ---------
    joint, linear : torch.nn.Module
        As :class:`TransducerJoint` has them.

    Returns
    -------
    str or None
        The reason, or None where there is none.

    Example
    -------
    >>> joint_obstacle(Transducer_joint(joint="concat"), nn.Identity())
    "a joint by 'concat', not 'sum'"
    """
    if obstacle := layer_obstacle("the joint", joint, Transducer_joint):
        return obstacle
    if joint.joint != "sum":
        return f"a joint by {joint.joint!r}, not 'sum'"
    if _name_of(joint.nonlinearity) is None:
        return f"the nonlinearity {joint.nonlinearity}"
    if obstacle := layer_obstacle("the output layer", linear, Linear):
        return obstacle
    if linear.max_norm is not None or linear.combine_dims:
        return "an output layer with max_norm or combine_dims"
    return layer_obstacle("the output layer's w", linear.w, nn.Linear)


def _name_of(nonlinearity: nn.Module) -> str | None:
    """The nonlinearity's name for the op, or None where it has none."""
    kind = type(nonlinearity)
    if layer_obstacle("", nonlinearity, kind):
        return None
    if kind is nn.LeakyReLU and nonlinearity.negative_slope != 0.01:
        return None
    if kind is nn.GELU and nonlinearity.approximate != "none":
        return None
    return _NAMES.get(kind)
