"""Training steps of a model so small that kernels can be interpreted."""

from dataclasses import replace

import tiny_model

from speechbrain_triton.bench.shapes import TrainingCase

SIZES = {"n_mels": 8, **tiny_model.SIZES}
FULL = TrainingCase(
    "train_step",
    "float32",
    B=3,
    seconds=0.3,
    labels=3,
    V=7,
    sizes=tuple(SIZES.items()),
)
CHUNKED = replace(FULL, chunk=2)
FAST = replace(
    CHUNKED, fast=True, sizes=(*FULL.sizes, ("frontend_channels", 8))
)
