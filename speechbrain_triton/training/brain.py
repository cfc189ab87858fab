"""The one Brain of all transducer recipes."""

import time
from pathlib import Path

import speechbrain as sb
import torch
from speechbrain.dataio.dataset import DynamicItemDataset
from speechbrain.utils.checkpoints import average_checkpoints
from speechbrain.utils.distributed import if_main_process
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig
from speechbrain.utils.logger import get_logger
from speechbrain.utils.metric_stats import ErrorRateStats

from speechbrain_triton.training.asynchronous import AsynchronousBrain
from speechbrain_triton.training.tokens import Tokenizer

logger = get_logger(__name__)

Stage = sb.Stage


class TransducerBrain(AsynchronousBrain):
    """Trains and tests a Conformer transducer with an auxiliary CTC loss.

    What it reads from ``hparams`` is listed in the YAML files of the recipes.

    Arguments
    ---------
    tokenizer : Tokenizer
        Turns labels into text.
    **kwargs : dict
        Those of ``speechbrain.Brain``.
    """

    def __init__(self, tokenizer: Tokenizer, **kwargs) -> None:
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.too_many_labels = torch.zeros((), device=self.device)
        self.train_stats: dict = {}
        self.train_meta: dict = {}
        self.test_name = "test"
        self.test_config: DynChunkTrainConfig | None = None

    def compute_forward(self, batch, stage):
        """Run the model, and the searches outside of training.

        Returns
        -------
        dict
            ``logits`` (B, T, U + 1, V), a tensor or what the loss makes it
            of, ``ctc_log_probs`` (B, T, V) or None, ``wav_lens`` (B,)
            relative to T, and, outside of training, ``greedy`` and (in tests,
            if switched on) ``beam``: the labels of each utterance.
        """
        batch = batch.to(self.device)
        training = stage == Stage.TRAIN
        feats, wav_lens = self._features(batch, training)
        feats, wav_lens = self._front_end(feats, wav_lens)
        chunks = self._chunk_config(stage)
        encoded = self.modules.enc(feats, wav_lens, dynchunktrain_config=chunks)
        projected = self.modules.proj_enc(encoded)

        predicted = self.modules.emb(batch.tokens_bos.data)
        predicted, _ = self.modules.dec(predicted)
        predicted = self.modules.proj_dec(predicted)
        outputs = {
            "logits": self.modules.joint(projected, predicted),
            "ctc_log_probs": None,
            "wav_lens": wav_lens,
        }
        if self.hparams.ctc_weight > 0:
            logits = self.modules.proj_ctc(encoded)
            outputs["ctc_log_probs"] = logits.float().log_softmax(-1)
        if not training:
            frames = _valid_frames(wav_lens, projected.shape[1])
            outputs["greedy"] = self.hparams.greedy_searcher(projected, frames)
            if stage == Stage.TEST and self.hparams.test_beam_search:
                outputs["beam"] = self.hparams.beam_searcher(projected, frames)
        return outputs

    def _features(self, batch, training: bool):
        wavs, wav_lens = batch.sig
        if training and self.hparams.wav_augment is not None:
            # Resampling is a convolution: autocast would round the samples.
            with torch.autocast(self.device_type, enabled=False):
                wavs, wav_lens = self.hparams.wav_augment(wavs, wav_lens)
        feats = self.hparams.compute_features(wavs)
        feats = self.modules.normalize(
            feats, wav_lens, epoch=self.hparams.epoch_counter.current
        )
        if training and self.hparams.fea_augment is not None:
            feats, wav_lens = self.hparams.fea_augment(feats, wav_lens)
        return feats, wav_lens

    def _front_end(self, feats, wav_lens):
        """Subsample, with the front end's own lengths if it has a rule."""
        # The one in modules may be wrapped, by DDP for instance.
        out_lengths = getattr(self.hparams.CNN, "out_lengths", None)
        if out_lengths is None:
            return self.modules.CNN(feats), wav_lens
        subsampled = self.modules.CNN(feats, wav_lens)
        return subsampled, out_lengths(wav_lens, feats.shape[1])

    def _chunk_config(self, stage) -> DynChunkTrainConfig | None:
        if not self.hparams.streaming:
            return None
        if stage == Stage.TEST:
            return self.test_config
        return self.hparams.dynchunktrain_config_sampler(stage)

    def compute_objectives(self, outputs, batch, stage):
        """Give the transducer loss plus the weighted CTC loss.

        In training both are means over utterances. An utterance with more
        labels than encoder frames has no CTC path: its CTC loss counts as 0,
        while the transducer may emit several labels at one frame.
        """
        tokens, token_lens = batch.tokens
        wav_lens = outputs["wav_lens"]
        loss = self.hparams.transducer_cost(
            outputs["logits"],
            tokens,
            wav_lens,
            token_lens,
            blank_index=self.hparams.blank_index,
        )
        if outputs["ctc_log_probs"] is not None:
            loss = loss + self.hparams.ctc_weight * self.hparams.ctc_cost(
                outputs["ctc_log_probs"],
                tokens,
                wav_lens,
                token_lens,
                blank_index=self.hparams.blank_index,
            )
        if stage == Stage.TRAIN:
            frames = _valid_frames(wav_lens, outputs["logits"].shape[1])
            labels = (token_lens * tokens.shape[1]).round()
            self.too_many_labels += (labels > frames).sum()
        else:
            self._score(batch, outputs)
        return loss

    def _score(self, batch, outputs) -> None:
        references = [text.split() for text in batch.wrd]
        for search, metrics in self.metrics.items():
            hypotheses = [
                self.tokenizer.decode(labels).split()
                for labels in outputs[search]
            ]
            for metric in metrics.values():
                metric.append(batch.id, hypotheses, references)

    def on_fit_start(self):
        """Recover; a finished training gets no further epoch."""
        super().on_fit_start()
        # Mid-epoch (step > 0) at the limit, the last validation is missing.
        if self._optimizer_step_limit_exceeded and self.step == 0:
            self.hparams.epoch_counter.current = (
                self.hparams.epoch_counter.limit
            )

    def on_fit_batch_start(self, batch, should_step):
        """Set the learning rate of the coming optimizer step."""
        if should_step:
            self.hparams.lr_scheduler(self.optimizer, self.optimizer_step + 1)

    def on_fit_batch_end(self, batch, outputs, loss, should_step):
        """Write the loss to ``steps.csv`` where ``log_steps`` asks for it."""
        every = self.hparams.log_steps
        if not (should_step and every and if_main_process()):
            return
        if self.optimizer_step % every == 0:
            path = Path(self.hparams.output_folder) / "steps.csv"
            with path.open("a", encoding="utf-8") as file:
                file.write(
                    f"{self.optimizer_step},{float(loss.detach()):.6f}\n"
                )

    def on_stage_start(self, stage, epoch=None):
        """Reset the clock, the counters and the error rates."""
        self.metrics = {}
        if stage == Stage.TRAIN:
            self.started = time.perf_counter()
            # Part of a resumed epoch ran in another process: no time then.
            self.resumed = self.step > 0
            self.skipped_steps = 0
            self.too_many_labels.zero_()
            if self.device_type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.device)
            return
        self.metrics["greedy"] = _error_rates()
        if stage == Stage.TEST and self.hparams.test_beam_search:
            self.metrics["beam"] = _error_rates()

    def on_stage_end(self, stage, stage_loss, epoch=None):
        """Log, and save a checkpoint after validation."""
        if stage == Stage.TRAIN:
            self.hear_the_last()
            self._end_training_stage(self.avg_train_loss, epoch)
        elif stage == Stage.VALID:
            rates = _summarize(self.metrics["greedy"])
            self._end_epoch(epoch, {"loss": stage_loss, **rates})
        else:
            self._end_test(stage_loss)

    def _end_training_stage(self, loss: float, epoch: int) -> None:
        self.train_stats = {"loss": loss}
        meta = {
            "epoch": epoch,
            "lr": self.optimizer.param_groups[0]["lr"],
            "steps": self.optimizer_step,
        }
        if not self.resumed:
            seconds = time.perf_counter() - self.started
            # The logger keeps three digits of a float above 100.
            meta["seconds"] = seconds if seconds < 100 else round(seconds)
        if self.device_type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
            meta["peak_mib"] = round(peak / 2**20)
        if self.skipped_steps:
            meta["skipped_steps"] = self.skipped_steps
        self.train_meta = meta
        if count := int(self.too_many_labels):
            logger.warning(
                "%d utterances of epoch %d had more labels than encoder "
                "frames; CTC cannot align them and left them out.",
                count,
                epoch,
            )

    def _fit_valid(self, valid_set, epoch, enable):
        """Validate every ``valid_every`` epochs, and after the last one."""
        last = (
            epoch == self.hparams.epoch_counter.limit
            or self._optimizer_step_limit_exceeded
        )
        if last or epoch % self.hparams.valid_every == 0:
            super()._fit_valid(valid_set, epoch, enable)
        else:
            self._end_epoch(epoch, None)

    def _end_epoch(self, epoch: int, valid_stats: dict | None) -> None:
        self.hparams.train_logger.log_stats(
            stats_meta=self.train_meta,
            train_stats=self.train_stats,
            valid_stats=valid_stats,
        )
        meta = {"epoch": epoch}
        if valid_stats is not None:
            meta["WER"] = valid_stats["WER"]
        self.checkpointer.save_and_keep_only(
            meta=meta,
            min_keys=["WER"],
            num_to_keep=self.hparams.avg_checkpoints,
        )

    def on_evaluate_start(self, max_key=None, min_key=None):
        """Load the best checkpoint, or the average of the best ones."""
        super().on_evaluate_start(max_key=max_key, min_key=min_key)
        if self.hparams.avg_checkpoints > 1:
            best = self.checkpointer.find_checkpoints(
                max_key=max_key,
                min_key=min_key,
                max_num_checkpoints=self.hparams.avg_checkpoints,
            )
            self.hparams.model.load_state_dict(
                average_checkpoints(best, recoverable_name="model")
            )

    def test(
        self, test_sets: dict[str, DynamicItemDataset], loader_kwargs: dict
    ) -> None:
        """Test the best checkpoint on each set.

        It writes ``wer_<set>.txt`` and ``cer_<set>.txt``; with
        ``test_beam_search`` also ``wer_<set>_beam.txt``. A streaming model
        is tested with full context, and again in the chunks of the sampler's
        ``test_config``, as set ``<set>_chunk<size>_left<chunks>``.

        Arguments
        ---------
        test_sets : dict
            Name to dataset.
        loader_kwargs : dict
            Those of the data loader.
        """
        configs = [None]
        if self.hparams.streaming:
            chunked = self.hparams.dynchunktrain_config_sampler.test_config
            configs += [chunked] if chunked is not None else []
        for name, dataset in test_sets.items():
            for config in configs:
                self.test_config = config
                self.test_name = name + _chunk_suffix(config)
                self.evaluate(
                    dataset,
                    min_key="WER",
                    test_loader_kwargs=dict(loader_kwargs),
                )

    def _end_test(self, loss: float) -> None:
        stats = {"loss": loss}
        folder = Path(self.hparams.output_folder)
        for search, metrics in self.metrics.items():
            suffix = "" if search == "greedy" else f"_{search}"
            rates = _summarize(metrics)
            stats.update({f"{k}{suffix}": v for k, v in rates.items()})
            if not if_main_process():
                continue
            for name, metric in metrics.items():
                path = folder / f"{name.lower()}_{self.test_name}{suffix}.txt"
                with path.open("w", encoding="utf-8") as file:
                    metric.write_stats(file)
        self.hparams.train_logger.log_stats(
            stats_meta={
                "Epoch loaded": self.hparams.epoch_counter.current,
                "set": self.test_name,
            },
            test_stats=stats,
        )


def _error_rates() -> dict[str, ErrorRateStats]:
    return {"CER": ErrorRateStats(split_tokens=True), "WER": ErrorRateStats()}


def _summarize(metrics: dict[str, ErrorRateStats]) -> dict[str, float]:
    return {
        name: metric.summarize("error_rate") for name, metric in metrics.items()
    }


def _valid_frames(lens: torch.Tensor, longest: int) -> torch.Tensor:
    """Turn relative lengths into the frames that the loss counts."""
    return (lens * longest).round().long().clamp(1, longest)


def _chunk_suffix(config: DynChunkTrainConfig | None) -> str:
    if config is None:
        return ""
    left = config.left_context_size
    left = "full" if left is None else left
    return f"_chunk{config.chunk_size}_left{left}"
