"""Transducer loss of a joint network whose logits never exist as a whole."""

from speechbrain_triton.ops.transducer_joint_loss.op import (
    transducer_joint_loss,
)
from speechbrain_triton.ops.transducer_joint_loss.reference import (
    NONLINEARITIES,
    transducer_joint_loss_reference,
)

__all__ = [
    "NONLINEARITIES",
    "transducer_joint_loss",
    "transducer_joint_loss_reference",
]
