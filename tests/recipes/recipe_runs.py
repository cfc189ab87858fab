"""A tiny corpus in AN4's layout, and ways to run a recipe on it."""

import csv
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tiny_model

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
AN4 = RECIPES / "AN4" / "ASR" / "transducer"
SPOKEN_NUMBERS = RECIPES / "SpokenNumbers" / "ASR" / "transducer"
YAML = "hparams/conformer_transducer.yaml"
FAST_YAML = "hparams/fast_conformer_transducer.yaml"

RATE = 16000
# A letter is a tone of this many Hz.
TONES = {"A": 400, "B": 900, "C": 2000, "D": 4500}
SPEAKERS = ("fab", "fcd", "mef", "mgh")

TINY = {
    **tiny_model.SIZES,
    "batch_size": 2,
    "valid_speakers": 2,
    "num_workers": 0,
    "warmup_steps": 1,
    "log_steps": 1,
    "valid_every": 100,
    "test_beam_search": False,
}
# The same with the other front end; the tones have too few words for pieces.
FAST = {"yaml": FAST_YAML, "frontend_channels": 8, "token_type": "char"}
# What makes two runs comparable step by step.
EXACT = {"dropout": 0.0, "wav_augment": "null", "fea_augment": "null"}


def write_corpus(folder, train=12, test=4):
    """Write letters of AN4's alphabet as tones, 5 a second."""
    random = np.random.default_rng(0)
    for split, count in (("train", train), ("test", test)):
        (folder / split).mkdir(parents=True)
        rows = []
        for number in range(count):
            letters = random.choice(list(TONES), random.integers(1, 4))
            speaker = SPEAKERS[number % len(SPEAKERS)]
            name = f"{split}{number}-{speaker}-b"
            sound = np.concatenate([_tone(TONES[letter]) for letter in letters])
            sound += random.normal(0, 1e-3, len(sound))
            path = folder / split / f"{name}.flac"
            soundfile.write(path, sound, RATE)
            seconds = len(sound) / RATE
            rows.append(
                (
                    name,
                    speaker,
                    f"{split}/{name}.flac",
                    seconds,
                    " ".join(letters),
                )
            )
        with (folder / f"{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "speaker", "file", "seconds", "transcript"])
            writer.writerows(rows)
    return folder


def _tone(frequency):
    time = np.arange(RATE // 5) / RATE
    return 0.3 * np.sin(2 * np.pi * frequency * time) * np.hanning(len(time))


def arguments(
    data_folder,
    output_folder,
    *,
    device="cpu",
    recipe=AN4,
    yaml=YAML,
    **options,
):
    """The command line of a tiny run, without the program."""
    options = {
        "data_folder": data_folder,
        "output_folder": output_folder,
        **TINY,
        **options,
    }
    if recipe is not AN4:
        del options["valid_speakers"]
    return [
        str(recipe / yaml),
        f"--device={device}",
        "--noprogressbar",
        *(f"--{name}={value}" for name, value in options.items()),
    ]


def run_here(argv, monkeypatch, script=AN4 / "train.py"):
    """Run train.py in this process; returns the exit code."""
    monkeypatch.setattr(sys, "argv", [str(script), *argv])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    with pytest.raises(SystemExit) as exit_:
        runpy.run_path(str(script), run_name="__main__")
    return exit_.value.code


def start(argv, *launcher, script=AN4 / "train.py", log=subprocess.PIPE):
    """Start train.py in a process of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, *launcher, str(script), *argv],
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process, timeout=240):
    """Wait for a process of :func:`start`, which must end well."""
    output, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, output
    return output


def losses(output_folder):
    """Step to loss; of a step that was repeated, the later one."""
    lines = (output_folder / "steps.csv").read_text().splitlines()
    return {int(k): float(v) for k, v in (line.split(",") for line in lines)}
