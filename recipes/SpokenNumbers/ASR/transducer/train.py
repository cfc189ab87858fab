"""Train a small Conformer transducer on SpokenNumbers.

    python train.py hparams/conformer_transducer.yaml --data_folder=DIR

The corpus is made in DIR. README.md says what the options do.
"""

import sys

from speechbrain_triton.corpora import prepare_spoken_numbers
from speechbrain_triton.training import run_recipe


def prepare(hparams: dict) -> None:
    """Make the corpus."""
    prepare_spoken_numbers(
        hparams["data_folder"],
        seed=hparams["data_seed"],
        train_utterances=hparams["train_utterances"],
        valid_utterances=hparams["valid_utterances"],
        test_utterances=hparams["test_utterances"],
    )


if __name__ == "__main__":
    sys.exit(run_recipe(prepare))
