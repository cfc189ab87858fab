"""Reflection padding with channels last in memory."""

from speechbrain_triton.ops.reflection_pad2d.op import reflection_pad2d
from speechbrain_triton.ops.reflection_pad2d.reference import (
    reflection_pad2d_reference,
)

__all__ = ["reflection_pad2d", "reflection_pad2d_reference"]
