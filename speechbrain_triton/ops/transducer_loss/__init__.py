"""Transducer (RNN-T) loss without a materialised log-softmax."""

from speechbrain_triton.ops.transducer_loss.op import transducer_loss
from speechbrain_triton.ops.transducer_loss.reference import (
    transducer_loss_reference,
)

__all__ = ["transducer_loss", "transducer_loss_reference"]
