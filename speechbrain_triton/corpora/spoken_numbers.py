"""SpokenNumbers: numbers and short commands, spoken on the spot by espeak-ng.

25 words: the ten digits, one to five of them in a row, and short commands such
as ``STOP``, ``TURN LEFT`` or ``CALL THREE ONE FOUR``. Voices of the test split
do not occur in training; the validation split shares the training voices.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from speechbrain_triton.corpora.espeak import Synthesizer, synthesizer_version
from speechbrain_triton.corpora.files import (
    exclusive,
    progress_bar,
    remove_temporaries,
    sound_duration,
    write_atomically,
    write_flac,
)
from speechbrain_triton.corpora.manifest import Row, write_manifest
from speechbrain_triton.corpora.utterances import (
    SPLITS,
    Utterance,
    draw_utterance,
    render,
)
from speechbrain_triton.files import read_text

RECIPE = 1
"""Raised whenever the same settings would give another corpus."""

MARKER = "spoken_numbers.json"
_LARGEST_MARKER = 10_000


def prepare_spoken_numbers(
    data_folder: str | Path,
    *,
    seed: int = 1234,
    train_utterances: int = 800,
    valid_utterances: int = 60,
    test_utterances: int = 150,
    workers: int | None = None,
    progress: bool = True,
) -> dict[str, Path]:
    """Makes the SpokenNumbers corpus: FLAC files and SpeechBrain manifests.

    The same settings give the same files, byte by byte, on the same machine,
    whatever ``workers`` is. A corpus that is complete is left as it is; one
    whose making was interrupted is completed.

    Arguments
    ---------
    data_folder : str | Path
        Folder of the corpus, made where it is missing. Audio files go to
        ``train/``, ``valid/`` and ``test/`` in it (16 kHz, mono, 16 bit);
        the manifests name them relative to ``$data_root``, this folder.
    seed : int
        Decides texts, voices, noise and everything else; at least 0.
    train_utterances : int
        Number of training utterances, at least 1; 800 are about 16 minutes.
        They are spoken by twelve voices in turn.
    valid_utterances : int
        Number of validation utterances, at least 1, by the training voices.
    test_utterances : int
        Number of test utterances, at least 1, by four voices of their own.
    workers : int, optional
        Utterances made at a time, at least 1; up to four, by the number of
        processors, if not given.
    progress : bool
        Shows a progress bar on standard error if that is a terminal.

    Returns
    -------
    dict[str, Path]
        Manifests by split: ``"train"``, ``"valid"``, ``"test"``. Their columns
        are ``ID, duration, wav, spk_id, wrd``.

    Raises
    ------
    ImportError
        If the package ``espeakng-loader`` is not installed and something is
        to be made.
    TypeError
        If a number is not an integer.
    ValueError
        If a number is out of range, or if ``data_folder`` holds something
        else, such as a corpus made with other settings.

    Example
    -------
    >>> manifests = prepare_spoken_numbers(
    ...     getfixture("tmp_path"),
    ...     train_utterances=2,
    ...     valid_utterances=1,
    ...     test_utterances=1,
    ... )
    >>> print(manifests["train"].read_text().splitlines()[0])
    ID,duration,wav,spk_id,wrd
    """
    counts = {
        "train_utterances": train_utterances,
        "valid_utterances": valid_utterances,
        "test_utterances": test_utterances,
    }
    if workers is None:
        workers = min(4, os.cpu_count() or 1)
    _check_integer("seed", seed, minimum=0)
    for name, value in {**counts, "workers": workers}.items():
        _check_integer(name, value, minimum=1)
    root = Path(data_folder)
    settings = {"recipe": RECIPE, "seed": seed, **counts}
    corpus = {
        split: [draw_utterance(seed, split, i) for i in range(count)]
        for split, count in zip(SPLITS, counts.values(), strict=True)
    }
    manifests = {split: root / f"{split}.csv" for split in SPLITS}
    if not _is_complete(root, settings, corpus):
        with exclusive(root):
            if not _is_complete(root, settings, corpus):
                _build(root, settings, corpus, workers, progress)
    return manifests


def _check_integer(name: str, value: int, *, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"{name} is {value!r}; an integer of at least {minimum} is allowed."
        )
    if value < minimum:
        raise ValueError(
            f"{name} is {value}; an integer of at least {minimum} is allowed."
        )


def _audio(root: Path, split: str, utterance: Utterance) -> Path:
    return root / split / f"{utterance.ID}.flac"


def _read_marker(root: Path) -> dict | None:
    path = root / MARKER
    if not os.path.lexists(path):
        return None
    try:
        return dict(json.loads(read_text(path, _LARGEST_MARKER)))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"data_folder {root} has a {MARKER} that is not its own; choose "
            "another folder or delete this one."
        ) from error


def _write_marker(root: Path, settings: dict, complete: bool) -> None:
    marker = {
        "corpus": "SpokenNumbers",
        "complete": complete,
        "settings": settings,
        "synthesizer": synthesizer_version(),
    }
    content = json.dumps(marker, indent=2).encode() + b"\n"
    write_atomically(root / MARKER, content)


def _is_complete(root: Path, settings: dict, corpus: dict) -> bool:
    """Whether nothing is left to do; a ValueError if settings would mix."""
    marker = _read_marker(root)
    if marker is None:
        return False
    made_with = marker.get("settings")
    if made_with != settings:
        raise ValueError(
            f"data_folder {root} holds a corpus made with {made_with}, but "
            f"{settings} is asked for; choose another folder or delete it."
        )
    return (
        marker.get("complete") is True
        and all((root / f"{split}.csv").is_file() for split in SPLITS)
        and all(
            _audio(root, split, utterance).is_file()
            for split, utterances in corpus.items()
            for utterance in utterances
        )
    )


def _claim(root: Path, settings: dict) -> None:
    """Marks the folder as ours before the first file, or refuses it."""
    marker = _read_marker(root)
    if marker is None:
        for split in SPLITS:
            for path in (root / split, root / f"{split}.csv"):
                if path.exists():
                    raise ValueError(
                        f"data_folder {root} holds {path.name}, which is not "
                        "of a SpokenNumbers corpus; choose another folder."
                    )
    elif marker.get("synthesizer") != synthesizer_version():
        raise ValueError(
            f"data_folder {root} holds part of a corpus made with "
            f"{marker.get('synthesizer')}, but {synthesizer_version()} is "
            "installed; choose another folder or delete it."
        )
    _write_marker(root, settings, complete=False)


def _build(
    root: Path, settings: dict, corpus: dict, workers: int, progress: bool
) -> None:
    _claim(root, settings)
    remove_temporaries(root)
    missing = [
        (utterance, path)
        for split, utterances in corpus.items()
        for utterance in utterances
        if not (path := _audio(root, split, utterance)).is_file()
    ]
    _speak_all(missing, workers, progress)
    for split, utterances in corpus.items():
        rows = (_row(root, split, utterance) for utterance in utterances)
        write_manifest(root / f"{split}.csv", rows)
    _write_marker(root, settings, complete=True)


def _row(root: Path, split: str, utterance: Utterance) -> Row:
    path = _audio(root, split, utterance)
    return Row(
        ID=utterance.ID,
        duration=sound_duration(path, utterance.ID, "SpokenNumbers"),
        wav=f"$data_root/{path.relative_to(root).as_posix()}",
        spk_id=utterance.speaker,
        wrd=utterance.words,
    )


def _speak_all(
    jobs: list[tuple[Utterance, Path]], workers: int, progress: bool
) -> None:
    with ExitStack() as stack:
        idle: SimpleQueue[Synthesizer] = SimpleQueue()
        for _ in range(min(workers, len(jobs))):
            idle.put(stack.enter_context(Synthesizer()))

        def make(job: tuple[Utterance, Path]) -> None:
            utterance, path = job
            synthesizer = idle.get()
            try:
                samples = render(utterance, synthesizer)
            finally:
                idle.put(synthesizer)
            write_flac(path, samples)

        executor = stack.enter_context(ThreadPoolExecutor(workers))
        bar = stack.enter_context(progress_bar(progress))
        task = bar.add_task("Speaking", total=len(jobs))
        for _ in executor.map(make, jobs):
            bar.advance(task)
