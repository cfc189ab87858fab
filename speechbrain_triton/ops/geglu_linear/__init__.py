"""A linear layer with a gated linear unit behind it, gated by GELU."""

from speechbrain_triton.ops.geglu_linear.op import geglu_linear
from speechbrain_triton.ops.geglu_linear.reference import (
    geglu_linear_reference,
)

__all__ = ["geglu_linear", "geglu_linear_reference"]
