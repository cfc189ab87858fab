"""Train a Conformer transducer on CMU AN4.

    python train.py hparams/conformer_transducer.yaml --data_folder=DIR

README.md says where AN4 comes from and what the options do.
"""

import sys

from speechbrain_triton.corpora import prepare_an4
from speechbrain_triton.training import run_recipe


def prepare(hparams: dict) -> None:
    """Write the manifests, with speakers held out for validation."""
    prepare_an4(
        hparams["data_folder"],
        hparams["save_folder"],
        valid_speakers=hparams["valid_speakers"],
    )


if __name__ == "__main__":
    sys.exit(run_recipe(prepare))
