"""The feed-forward block whose hidden layer is gated by GELU."""

from speechbrain_triton.ops.geglu_ffn.op import geglu_ffn
from speechbrain_triton.ops.geglu_ffn.reference import geglu_ffn_reference

__all__ = ["geglu_ffn", "geglu_ffn_reference"]
