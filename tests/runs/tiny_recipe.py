"""A SpeechBrain recipe in small: trains one number, decodes fixed words.

Its folders are what SpeechBrain itself writes; see ``trained_runs`` in
``conftest.py``.
"""

import sys

import speechbrain as sb
import torch
from hyperpyyaml import load_hyperpyyaml

# id: (reference, hypothesis with conv_backend torch, with triton)
UTTERANCES = {
    "spk1-0001": ("one two three", "one two three", "one two three"),
    "spk1-0002": ("four five", "four nine", "four five"),
    "spk2-0001": ("six", "six six", "six"),
    "spk2-0002": ("seven eight", "eight", ""),
}


class TinyBrain(sb.Brain):
    def compute_forward(self, batch, stage):
        return self.modules.scale(batch["x"])

    def compute_objectives(self, predictions, batch, stage):
        if stage == sb.Stage.TEST:
            (key,) = batch["id"]
            reference, torch_text, triton_text = UTTERANCES[key]
            triton = self.hparams.conv_backend == "triton"
            decoded = triton_text if triton else torch_text
            self.errors.append(
                [key], [decoded.split(" ")], [reference.split(" ")]
            )
        return (predictions - batch["x"]).square().mean()

    def on_stage_start(self, stage, epoch=None):
        self.errors = self.hparams.error_rate_computer()

    def on_stage_end(self, stage, stage_loss, epoch=None):
        stats = {"loss": stage_loss}
        if stage == sb.Stage.TRAIN:
            self.train_stats = stats
        elif stage == sb.Stage.VALID:
            self.hparams.train_logger.log_stats(
                {"epoch": epoch, "seconds": 10.0 * epoch, "peak_mib": 256.0},
                train_stats=self.train_stats,
                valid_stats=stats,
            )
        else:
            stats["WER"] = self.errors.summarize("error_rate")
            self.hparams.train_logger.log_stats(
                {"Epoch loaded": self.hparams.epoch_counter.current},
                test_stats=stats,
            )
            path = f"{self.hparams.output_folder}/wer_test.txt"
            with open(path, "w", encoding="utf-8") as file:
                self.errors.write_stats(file)


def main(arguments):
    hparams_file, run_options, overrides = sb.parse_arguments(arguments)
    with open(hparams_file, encoding="utf-8") as file:
        hparams = load_hyperpyyaml(file, overrides)
    sb.create_experiment_directory(
        hparams["output_folder"], hparams_file, overrides
    )
    brain = TinyBrain(
        hparams["modules"], hparams["opt_class"], hparams, run_options
    )
    batches = [{"id": key, "x": torch.ones(1)} for key in UTTERANCES]
    brain.fit(hparams["epoch_counter"], batches, batches, progressbar=False)
    brain.evaluate(batches, progressbar=False)


if __name__ == "__main__":
    main(sys.argv[1:])
