"""The LibriSpeech recipe: real utterances, dynamic batches, the schedule."""

import csv
import os
import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from hyperpyyaml import load_hyperpyyaml
from recipe_runs import (
    EXACT,
    FAST_YAML,
    RECIPES,
    ROOT,
    YAML,
    arguments,
    losses,
    run_here,
)
from speechbrain.dataio.dataset import DynamicItemDataset

from speechbrain_triton.runs import read_run
from speechbrain_triton.training import TransducerBrain
from speechbrain_triton.training.data import make_train_loader_options
from speechbrain_triton.training.schedules import noam_schedule

LIBRISPEECH = RECIPES / "LibriSpeech" / "ASR" / "transducer"
DATA = Path(os.environ.get("SPEECHBRAIN_TRITON_DATA", ROOT / "../shared/data"))
FIXTURES = DATA / "libri_fixtures"

# What makes the recipe small enough for a few seconds on a CPU.
DEBUG = {
    "recipe": LIBRISPEECH,
    "precision": "fp32",
    "train_splits": "train-clean-5",
    "valid_splits": "dev-clean-2",
    "test_splits": "dev-clean-2",
    "max_batch_len": 20,
    "num_buckets": 4,
    "grad_accumulation_factor": 1,
    "training_steps": 3,
    "warmup_steps": 2,
    "avg_checkpoints": 2,
}
SMALL_FRONT_END = {"yaml": FAST_YAML, "frontend_channels": 8}
# The same without what draws random numbers.
STILL = {
    **EXACT,
    "frontend_dropout": 0,
    "dec_emb_dropout": 0,
    "dec_dropout": 0,
}


def add_utterance(root, split, chapter, number, audio, words):
    name = f"{chapter.replace('/', '-')}-{number:04d}"
    folder = root / split / chapter
    folder.mkdir(parents=True, exist_ok=True)
    os.symlink(Path(audio).resolve(), folder / f"{name}.flac")
    text = folder / f"{chapter.replace('/', '-')}.trans.txt"
    with text.open("a") as file:
        file.write(f"{name} {words}\n")


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Three real utterances as a mini-LibriSpeech."""
    if not (FIXTURES / "all.csv").is_file():
        pytest.skip(f"no libri_fixtures in {DATA}; set SPEECHBRAIN_TRITON_DATA")
    root = tmp_path_factory.mktemp("real")
    splits = {
        "1088-134315-0000": "train-clean-5",
        "2412-153948-0000": "train-clean-5",
        "2412-153948-0001": "dev-clean-2",
    }
    for row in rows(FIXTURES / "all.csv"):
        if row["id"] in splits:
            speaker, chapter, number = row["id"].split("-")
            add_utterance(
                root,
                splits[row["id"]],
                f"{speaker}/{chapter}",
                int(number),
                FIXTURES / row["file"],
                row["transcript"],
            )
    return root


@pytest.fixture(scope="module")
def tones(corpus, tmp_path_factory):
    """The tones of the other tests, as a mini-LibriSpeech."""
    root = tmp_path_factory.mktemp("tones")
    for split, name in (("train", "train-clean-5"), ("test", "dev-clean-2")):
        for number, row in enumerate(rows(corpus / f"{split}.csv")):
            chapter = f"{len(split)}/{number % 3}"
            audio = corpus / row["file"]
            add_utterance(root, name, chapter, number, audio, row["transcript"])
    return root


@pytest.mark.parametrize(
    ("yaml", "options", "chunk"),
    [(YAML, {}, 16), (FAST_YAML, SMALL_FRONT_END, 8)],
    ids=["conformer", "fast_conformer"],
)
def test_whole_path_on_real_utterances(
    real, tmp_path, monkeypatch, yaml, options, chunk
):
    argv = arguments(
        real, tmp_path, **{**DEBUG, "output_neurons": 60, **options}
    )
    assert str(LIBRISPEECH / yaml) == argv[0]
    assert run_here(argv, monkeypatch, LIBRISPEECH / "train.py") == 0
    assert (tmp_path / "save" / "60_unigram.model").is_file()
    durations = [r["duration"] for r in rows(tmp_path / "save" / "train.csv")]
    assert durations == ["16.0400", "11.6600"]
    curve = losses(tmp_path)
    assert len(curve) == 3 and all(0 < loss < 1e4 for loss in curve.values())

    names = ["dev-clean-2", f"dev-clean-2_chunk{chunk}_left4"]
    for name in names:
        for rate in ("wer", "cer"):
            text = (tmp_path / f"{rate}_{name}.txt").read_text()
            assert text.startswith("%WER ")
    run = read_run(tmp_path)
    assert sorted(run.evaluations) == names
    (expected,) = rows(tmp_path / "save" / "valid.csv")
    for evaluation in run.evaluations.values():
        (utterance,) = evaluation.utterances
        assert list(utterance.reference) == expected["wrd"].split()
    # Step 3 of a warm-up of 2.
    log = (tmp_path / "train_log.txt").read_text()
    assert f"lr: {0.0008 * (2 / 3) ** 0.5:.3e}" in log


def test_beam_search_and_fixed_batches(tones, tmp_path, monkeypatch):
    options = {
        **DEBUG,
        "dynamic_batching": False,
        "streaming": False,
        "token_type": "word",
        "output_neurons": 6,
        "test_beam_search": True,
        "beam_size": 2,
        "number_of_epochs": 1,
        "training_steps": 1000,
    }
    argv = arguments(tones, tmp_path, **options)
    assert run_here(argv, monkeypatch, LIBRISPEECH / "train.py") == 0
    assert len(losses(tmp_path)) == 6  # 12 utterances, two in each batch
    evaluations = read_run(tmp_path).evaluations
    assert sorted(evaluations) == ["dev-clean-2", "dev-clean-2_beam"]
    assert len(evaluations["dev-clean-2_beam"].utterances) == 4


class Killed(Exception):
    pass


def test_dynamic_batches_go_on_where_they_were(tones, tmp_path, monkeypatch):
    options = {
        **DEBUG,
        **STILL,
        "max_batch_len": 3,
        "streaming": False,
        "token_type": "char",
        "output_neurons": 8,
        "training_steps": 14,
        "ckpt_interval_steps": 2,
        "ckpt_interval_minutes": 0,
    }
    script = LIBRISPEECH / "train.py"
    whole = arguments(tones, tmp_path / "whole", **options)
    assert run_here(whole, monkeypatch, script) == 0
    expected = losses(tmp_path / "whole")
    assert len(expected) == 14
    log = (tmp_path / "whole" / "train_log.txt").read_text()
    assert "epoch: 2, " in log

    fit_batch = TransducerBrain.fit_batch

    def dies(self, batch):
        if self.optimizer_step == 11:
            raise Killed
        return fit_batch(self, batch)

    argv = arguments(tones, tmp_path / "killed", **options)
    with monkeypatch.context() as patch:
        patch.setattr(TransducerBrain, "fit_batch", dies)
        patch.setattr(sys, "argv", [str(script), *argv])
        with pytest.raises(Killed):
            runpy.run_path(str(script), run_name="__main__")
    assert max(losses(tmp_path / "killed")) == 11
    assert run_here(argv, monkeypatch, script) == 0
    assert losses(tmp_path / "killed") == expected


def sampler_of(durations, **arguments):
    dataset = DynamicItemDataset(
        {str(n): {"duration": d} for n, d in enumerate(durations)}
    )
    options = make_train_loader_options(
        dataset,
        {
            "dynamic_batching": True,
            "train_dataloader_opts": {
                "batch_size": 2,
                "shuffle": True,
                "num_workers": 3,
            },
            "dynamic_batch_sampler": {
                "max_batch_length": 30,
                "max_batch_ex": 8,
                "num_buckets": 10,
                "seed": 1,
                **arguments,
            },
        },
    )
    assert sorted(options) == ["batch_sampler", "num_workers"]
    return options["batch_sampler"]


def test_dynamic_batches_are_limited_and_new_in_each_epoch():
    durations = (torch.rand(200, generator=torch.Generator()) * 12 + 1).tolist()
    epochs = {}
    for seed in (1000, 2000):
        sampler = sampler_of(durations, seed=seed)
        for epoch in (1, 2):
            sampler.set_epoch(epoch)
            epochs[seed, epoch] = list(sampler)
            # DDP counts the batches once and for all.
            assert len(epochs[seed, epoch]) == len(epochs[1000, 1])
    for batches in epochs.values():
        assert Counter(k for batch in batches for k in batch) == Counter(
            range(200)
        )
        for batch in batches:
            longest = max(durations[k] for k in batch)
            assert len(batch) <= 8 and longest * len(batch) <= 30
    assert len({str(batches) for batches in epochs.values()}) == 4
    sampler = sampler_of(durations, seed=1000)
    sampler.set_epoch(2)
    assert list(sampler) == epochs[1000, 2]


def test_without_dynamic_batches_the_options_stay():
    options = {"batch_size": 2, "shuffle": True, "num_workers": 0}
    for hparams in ({}, {"dynamic_batching": False}):
        hparams["train_dataloader_opts"] = options
        assert make_train_loader_options(None, hparams) == options


def test_noam_schedule_depends_on_the_step_alone():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=7.0)
    schedule = noam_schedule(0.0008, 25000)
    for step in (100000, 1, 12500, 25000):
        schedule(optimizer, step)
        expected = 0.0008 * min(step / 25000, (25000 / step) ** 0.5)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_splits": "train-clean-6"}, "lacks the split train-clean-6"),
        ({"test_splits": "[]"}, "test_splits is []; one or more splits"),
        ({"dynamic_batching": "yes"}, "dynamic_batching='yes' is not one of"),
        ({"sort_by_duration": 1}, "sort_by_duration=1 is not one of"),
        ({"max_batch_len": 0}, "max_batch_length=0 of dynamic_batch_sampler"),
        ({"num_buckets": 2.5}, "num_buckets=2.5 of dynamic_batch_sampler"),
        ({"warmup_steps": 0}, "warmup_steps=0 is not a number of at least 1"),
        ({"precision": "bf16"}, "precision=bf16 needs a GPU"),
    ],
)
def test_wrong_argument_gets_a_sentence(
    tones, tmp_path, monkeypatch, capsys, options, message
):
    options = {**DEBUG, "token_type": "char", "output_neurons": 8, **options}
    argv = arguments(tones, tmp_path, **options)
    assert run_here(argv, monkeypatch, LIBRISPEECH / "train.py") == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize("yaml", [YAML, FAST_YAML])
def test_sizes_are_the_published_ones(yaml, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (LIBRISPEECH / yaml).open() as file:
        hparams = load_hyperpyyaml(file, {"data_folder": "data"})
    encoder = hparams["Transformer"].encoder.layers
    assert len(encoder) == 12
    assert encoder[0].mha_layer.embed_dim == 512
    assert encoder[0].mha_layer.num_heads == 8
    kernel = 31 if yaml == YAML else 9
    conv = encoder[0].convolution_module.conv
    assert conv.weight.shape == (512, 1, kernel)
    assert hparams["dynamic_batch_sampler"]["seed"] == 1000
    assert hparams["dec"].rnn.input_size == 999
    assert hparams["dec"].rnn.hidden_size == 512
    assert hparams["transducer_lin"].w.weight.shape == (1000, 640)
    assert list(hparams["test_csv"]) == ["test-clean", "test-other"]
    labels = torch.tensor([[0, 1, 999]])
    one_hot = hparams["emb"].eval()(labels)
    assert torch.equal(one_hot[0, 0], torch.zeros(999))
    assert one_hot.argmax(-1)[0, 1:].tolist() == [0, 998]
