"""Training of Conformer transducers: what all recipes share."""

from speechbrain_triton.training.asynchronous import AsynchronousBrain
from speechbrain_triton.training.brain import TransducerBrain
from speechbrain_triton.training.joint import TransducerJoint
from speechbrain_triton.training.losses import transducer_loss
from speechbrain_triton.training.main import run_recipe

__all__ = [
    "AsynchronousBrain",
    "TransducerBrain",
    "TransducerJoint",
    "run_recipe",
    "transducer_loss",
]
