"""Triton kernels for Conformer transducer training in SpeechBrain.

Importing the package touches no GPU, imports no Triton and patches nothing;
:func:`apply_kernels` changes one model, :func:`restore` undoes it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speechbrain_triton.swap import SwapReport, apply_kernels, restore

__version__ = "0.1.0"

__all__ = ["SwapReport", "apply_kernels", "restore"]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str):
    # SpeechBrain and torch take seconds to import: only when they are used.
    if name in __all__:
        from speechbrain_triton import swap

        return getattr(swap, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
