"""Triton kernels for Conformer transducer training in SpeechBrain.

Importing the package touches no GPU, imports no Triton and patches nothing;
:func:`apply_kernels` changes one model, :func:`restore` undoes it.
"""

from speechbrain_triton.swap import SwapReport, apply_kernels, restore

__version__ = "0.1.0"

__all__ = ["SwapReport", "apply_kernels", "restore"]
