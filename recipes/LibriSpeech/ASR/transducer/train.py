"""Train a Conformer transducer on LibriSpeech or mini-LibriSpeech.

    python train.py hparams/conformer_transducer.yaml --data_folder=DIR

README.md says where the corpus comes from and what the options do.
"""

import sys

from speechbrain_triton.corpora.librispeech import prepare_librispeech
from speechbrain_triton.training import run_recipe


def prepare(hparams: dict) -> None:
    """Write the manifests of the splits."""
    prepare_librispeech(
        hparams["data_folder"],
        hparams["save_folder"],
        train_splits=hparams["train_splits"],
        valid_splits=hparams["valid_splits"],
        test_splits=hparams["test_splits"],
        splits_folder=hparams["splits_folder"],
        sort_by_duration=hparams["sort_by_duration"],
    )


if __name__ == "__main__":
    sys.exit(run_recipe(prepare))
