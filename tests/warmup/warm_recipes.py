"""The recipes that are warmed up, with models so small that a CPU keeps up."""

from pathlib import Path

import tiny_model

from speechbrain_triton.demo import find_recipe

SIZES = {"n_mels": 16, **tiny_model.SIZES}
FLAGS = {
    "conv_backend": "triton",
    "frontend_backend": "triton",
    "loss_backend": "triton",
    "streaming": True,
}
GEGLU = {"ffn": "geglu", "ffn_backend": "triton", "fused_joint": True}


def arguments(recipe: str, name: str, **more) -> list[str]:
    """Those of a recipe's train.py, with kernels on, for a CPU."""
    folder = find_recipe(Path(recipe, "ASR", "transducer"))
    options = {**SIZES, **FLAGS, "device": "cpu", "precision": "fp32", **more}
    if name == "fast_conformer":
        options["frontend_channels"] = 8
    return [
        str(folder / "hparams" / f"{name}_transducer.yaml"),
        *(f"--{key}={value}" for key, value in options.items()),
    ]


CASES = {
    "conformer": ("LibriSpeech", "conformer", {}),
    "fast_conformer": ("LibriSpeech", "fast_conformer", GEGLU),
    "an4": ("AN4", "conformer", GEGLU),
    "an4_full": ("AN4", "fast_conformer", {"streaming": False}),
}
# Large enough for the kernels that take whole tiles.
ON_GPU = {
    "device": "cuda",
    "precision": "bf16",
    "n_mels": 80,
    "d_model": 256,
    "d_ffn": 1024,
    "kernel_size": 15,
    "output_neurons": 500,
}
