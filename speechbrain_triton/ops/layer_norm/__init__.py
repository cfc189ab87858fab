"""Layer normalisation over channels, with an activation behind it."""

from speechbrain_triton.ops.layer_norm.op import layer_norm
from speechbrain_triton.ops.layer_norm.reference import (
    ACTIVATIONS,
    layer_norm_reference,
)

__all__ = ["ACTIVATIONS", "layer_norm", "layer_norm_reference"]
