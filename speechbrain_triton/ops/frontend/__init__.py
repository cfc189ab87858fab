"""The Fast Conformer's front end as one differentiable function.

Its public face is :class:`~speechbrain_triton.modules.FastConformerFrontEnd`.
"""

from speechbrain_triton.ops.frontend.autograd import run_frontend
from speechbrain_triton.ops.frontend.reference import (
    FrontEndParameters,
    SeparableConv,
    frontend_reference,
)

__all__ = [
    "FrontEndParameters",
    "SeparableConv",
    "frontend_reference",
    "run_frontend",
]
