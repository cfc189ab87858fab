"""Forward and backward over a batch, slice by slice."""

from collections.abc import Sequence

import torch

from speechbrain_triton.ops.casts import cast, matmul
from speechbrain_triton.ops.transducer_joint_loss import launch
from speechbrain_triton.ops.transducer_joint_loss.options import (
    Gradients,
    Options,
)
from speechbrain_triton.ops.transducer_joint_loss.slices import (
    Group,
    Slice,
    make_groups,
)
from speechbrain_triton.ops.transducer_loss.launch import (
    PLANES,
    launch_paths,
    layout_of,
)

# A gradient of -log p is at most 2, and often tiny: in float16, whose numbers
# end at 65504 and get few digits below 6e-5, it is scaled up on its way.
HALF_SCALE = 256.0


class Passes:
    """The passes over one batch, of which a slice at a time is in memory.

    Arguments
    ---------
    inputs : sequence of torch.Tensor or None
        encoder (B, T, J), predictor (B, U1, J), weight (V, J), bias (V,) or
        None, targets (B, U1 - 1); B is at least 1.
    frames, labels : sequence of int
        Lengths of each utterance.
    options : Options
    together : bool
        Whether the lattices of all utterances are kept, or only those of a
        slice.
    """

    def __init__(
        self,
        inputs: Sequence[torch.Tensor | None],
        frames: Sequence[int],
        labels: Sequence[int],
        options: Options,
        together: bool,
    ):
        encoder, predictor, weight, bias, targets = inputs
        dtype = options.dtype
        self.options = options
        self.encoder = encoder.contiguous()
        self.predictor = predictor.contiguous()
        self.weight = cast(weight, dtype).contiguous()
        self.bias = cast(bias, dtype)
        self.targets = targets.contiguous()
        self.V, self.J = weight.shape
        self.shape = encoder.shape[1], predictor.shape[1]
        row_bytes = (self.V + self.J) * dtype.itemsize
        self.groups = make_groups(
            frames,
            labels,
            max(1, options.workspace // row_bytes),
            together,
            encoder.device,
        )
        rows = max((part.rows for part in self._parts()), default=0)
        self.joint = self.weight.new_empty(rows * self.J)
        self.logits = self.weight.new_empty(rows * self.V)

    def _parts(self):
        return (part for group in self.groups for part in group.slices)

    def costs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Costs (B,) and the lattice for :meth:`gradients`, of one group."""
        (group,) = self.groups
        return self._score(group, back=True)

    def costs_without_backward(self) -> torch.Tensor:
        """Costs (B,), float32."""
        return torch.cat([self._score(g, back=False)[0] for g in self.groups])

    def costs_and_gradients(
        self, needs: Sequence[bool]
    ) -> tuple[torch.Tensor, Gradients]:
        """Costs (B,) and the gradients of their sum.

        Where a slice holds whole utterances, its logits are at hand for the
        gradient as soon as their lattices are summed over.

        Arguments
        ---------
        needs : sequence of bool
            Whether gradients of encoder, predictor, weight and bias are.
        """
        sums = self._new_sums(needs)
        weights = self.encoder.new_full(
            (len(self.encoder),), _scale(self.options), dtype=torch.float32
        )
        costs = []
        for group in self.groups:
            cost, lattice = self._score(group, back=True)
            costs.append(cost)
            at_hand = len(group.slices) == 1
            self._differentiate(group, lattice, cost, weights, sums, at_hand)
        return torch.cat(costs), self._total(sums)

    def gradients(
        self,
        lattice: torch.Tensor,
        cost: torch.Tensor,
        weights: torch.Tensor,
        needs: Sequence[bool],
    ) -> Gradients:
        """Gradients of the sum of weights (B,) times costs (B,)."""
        (group,) = self.groups
        sums = self._new_sums(needs)
        weights = weights * _scale(self.options)
        self._differentiate(group, lattice, cost, weights, sums, False)
        return self._total(sums)

    def _score(self, group: Group, back: bool):
        lattice = new_lattice(
            group.last - group.first, *self.shape, self.encoder
        )
        for part in group.slices:
            launch.launch_log_probs(
                self._compute_logits(part)[1],
                self.targets,
                part,
                self.options.blank,
                self.shape,
                lattice,
            )
        cost = launch_paths(
            group.frames, group.labels, *self.shape, lattice, back
        )
        return cost, lattice

    def _rows(self, part: Slice):
        joint = self.joint[: part.rows * self.J].view(part.rows, self.J)
        logits = self.logits[: part.rows * self.V].view(part.rows, self.V)
        return joint, logits

    def _compute_logits(self, part: Slice):
        joint, logits = self._rows(part)
        launch.launch_joint(
            self.encoder,
            self.predictor,
            part,
            self.options.nonlinearity,
            joint,
        )
        if self.bias is None:
            torch.mm(joint, self.weight.t(), out=logits)
        else:
            torch.addmm(self.bias, joint, self.weight.t(), out=logits)
        return joint, logits

    def _new_sums(self, needs: Sequence[bool]) -> Gradients:
        """Where gradients add up; that of the bias has a line a program."""

        def zeros(*shape):
            return self.encoder.new_zeros(shape, dtype=torch.float32)

        inputs = needs[0] or needs[1]
        programs = max(
            (launch.bias_programs(part, self.V) for part in self._parts()),
            default=1,
        )
        return Gradients(
            _scale(self.options),
            zeros(*self.encoder.shape) if inputs else None,
            zeros(*self.predictor.shape) if inputs else None,
            zeros(*self.weight.shape) if needs[2] else None,
            zeros(programs, self.V) if needs[3] else None,
        )

    def _total(self, sums: Gradients) -> Gradients:
        if sums.bias is None:
            return sums
        return sums._replace(bias=sums.bias.sum(0))

    def _differentiate(
        self, group: Group, lattice, cost, weights, sums: Gradients, at_hand
    ):
        for part in group.slices:
            joint, logits = (
                self._rows(part) if at_hand else self._compute_logits(part)
            )
            launch.launch_logits_grad(
                logits,
                self.targets,
                part,
                self.options.blank,
                self.shape,
                lattice,
                cost,
                weights,
                self.options.clamp,
                self.options.fastemit_lambda,
                sums.bias,
            )
            if sums.weight is not None:
                sums.weight.add_(matmul(logits.t(), joint, torch.float32))
            if sums.encoder is not None:
                torch.mm(logits, self.weight, out=joint)
                launch.launch_joint_grad(
                    joint,
                    self.encoder,
                    self.predictor,
                    part,
                    self.options.nonlinearity,
                    sums.encoder,
                    sums.predictor,
                )


def new_lattice(n: int, T: int, U1: int, like: torch.Tensor) -> torch.Tensor:
    """Memory for the lattices of n utterances: (4, n, size), float32."""
    return like.new_empty(
        (PLANES, n, layout_of(T, U1).size), dtype=torch.float32
    )


def _scale(options: Options) -> float:
    return HALF_SCALE if options.dtype is torch.float16 else 1.0
