"""Datasets from SpeechBrain CSV manifests."""

from collections.abc import Mapping

import speechbrain as sb
import torch
from speechbrain.dataio.dataset import DynamicItemDataset
from speechbrain.dataio.sampler import DynamicBatchSampler

from speechbrain_triton.training.tokens import BLANK, Tokenizer


def make_dataset(
    csv_path: str,
    data_folder: str,
    tokenizer: Tokenizer,
    sort_by_duration: bool = False,
) -> DynamicItemDataset:
    """Make a dataset from one manifest.

    Arguments
    ---------
    csv_path : str
        Manifest with columns ID, duration, wav and wrd; ``$data_root`` in
        ``wav`` stands for ``data_folder``.
    data_folder : str
        The corpus.
    tokenizer : Tokenizer
        Makes labels of ``wrd``.
    sort_by_duration : bool
        Longest first: little padding, and an out-of-memory error at once.

    Returns
    -------
    DynamicItemDataset
        Items ``id``, ``sig`` (samples,), ``wrd``, ``tokens_bos`` (U + 1,)
        and ``tokens`` (U,), the latter two int64.
    """
    dataset = DynamicItemDataset.from_csv(
        csv_path, replacements={"data_root": data_folder}
    )
    dataset.add_dynamic_item(
        sb.dataio.dataio.read_audio, takes="wav", provides="sig"
    )
    dataset.add_dynamic_item(
        lambda text: torch.tensor(tokenizer.encode(text), dtype=torch.int64),
        takes="wrd",
        provides="tokens",
    )
    dataset.add_dynamic_item(
        lambda tokens: torch.nn.functional.pad(tokens, (1, 0), value=BLANK),
        takes="tokens",
        provides="tokens_bos",
    )
    dataset.set_output_keys(["id", "sig", "wrd", "tokens_bos", "tokens"])
    if sort_by_duration:
        return dataset.filtered_sorted(sort_key="duration", reverse=True)
    return dataset


def make_datasets(
    hparams: Mapping, tokenizer: Tokenizer
) -> tuple[DynamicItemDataset, DynamicItemDataset, dict]:
    """Make a recipe's training, validation and test sets.

    Arguments
    ---------
    hparams : mapping
        With ``data_folder``, ``train_csv``, ``valid_csv`` and ``test_csv``,
        the last one a path, or a mapping of set names to paths.
    tokenizer : Tokenizer
        Makes labels of transcripts.

    Returns
    -------
    tuple
        Training set, validation set, and a dict of test sets by name.
    """
    folder = hparams["data_folder"]
    test_csv = hparams["test_csv"]
    if not isinstance(test_csv, Mapping):
        test_csv = {"test": test_csv}
    train = make_dataset(hparams["train_csv"], folder, tokenizer)
    valid = make_dataset(hparams["valid_csv"], folder, tokenizer, True)
    tests = {
        name: make_dataset(path, folder, tokenizer, True)
        for name, path in test_csv.items()
    }
    return train, valid, tests


def make_train_loader_options(
    train_set: DynamicItemDataset, hparams: Mapping
) -> dict:
    """Give the options of the training set's loader.

    Arguments
    ---------
    train_set : DynamicItemDataset
        With durations, in seconds.
    hparams : mapping
        With ``train_dataloader_opts``. Where ``dynamic_batching`` is there
        and True, batches are those of SpeechBrain's ``DynamicBatchSampler``
        with the arguments of ``dynamic_batch_sampler``, and the batch size
        and the shuffling of ``train_dataloader_opts`` do not count.

    Returns
    -------
    dict
        With a ``batch_sampler`` if batches are dynamic.

    Raises
    ------
    ValueError
        If an argument of the sampler is out of its range.
    """
    options = dict(hparams["train_dataloader_opts"])
    if not hparams.get("dynamic_batching", False):
        return options
    for name in ("batch_size", "shuffle"):
        options.pop(name, None)
    arguments = hparams["dynamic_batch_sampler"]
    for name, kind in (
        ("max_batch_length", int | float),
        ("num_buckets", int),
        ("max_batch_ex", int),
    ):
        value = arguments[name]
        if not (isinstance(value, kind) and value >= 1):
            raise ValueError(
                f"{name}={value!r} of dynamic_batch_sampler is not a number "
                "of at least 1."
            )
    options["batch_sampler"] = DynamicBatchSampler(train_set, **arguments)
    return options
