"""The settings that a run folder records, read without executing anything."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from speechbrain_triton.files import RunError, read_text

Scalar = str | int | float | bool | None

# Of a hyperparams.yaml, in bytes: those of recipes have tens of thousands, and
# PyYAML takes seconds for a million.
LARGEST = 1_000_000

_PLAIN_TYPES = {
    f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float")
}
_STANDARD_TAG = re.compile(r"tag:yaml\.org,2002:(str|map|seq|set|omap|pairs)")
# How data is loaded and what is logged, saved or done again change no result.
_INCIDENTAL = {
    "ckpt_interval_minutes",
    "ckpt_interval_steps",
    "device",
    "log_steps",
    "noprogressbar",
    "num_workers",
    "skip_prep",
    "skip_training",
    "test_only",
}
_LOCATION = re.compile(r"(?!.*pretrain).*(folder|directory|dir|root)")
_TELLING = (
    "conv_backend",
    "frontend_backend",
    "ffn",
    "ffn_backend",
    "loss_backend",
    "fused_joint",
    "precision",
    "eval_precision",
    "streaming",
    "dynamic_batching",
    "batch_size",
    "max_batch_len",
    "grad_accumulation_factor",
    "seed",
    "number_of_epochs",
    "training_steps",
    "lr",
)
_CHUNKS = re.compile(r".*(chunk_size|left_context(_size|_chunks)?)")
# Only names and paths carry the seed: in "(2, 2)" a 2 is not seed 2.
_NAMING = re.compile(r"(.*[._])?(name|id|experiment|run)(_\w+)?")


def read_hyperparameters(path: Path) -> dict[str, Scalar]:
    """Reads the scalars of a ``hyperparams.yaml``, tags and all, as plain data.

    Arguments
    ---------
    path : Path
        The file that ``create_experiment_directory`` wrote, with overrides and
        references resolved.

    Returns
    -------
    dict
        Dotted name to value. A tag is never followed: ``!new:torch.nn.GELU``
        is the text ``"!new:torch.nn.GELU"``. A list of scalars is one text.
        What an alias repeats is given once, at its first place.

    Raises
    ------
    RunError
        If the file is not text, too large or not a YAML mapping.

    Example
    -------
    >>> path = Path(getfixture("tmp_path")) / "hyperparams.yaml"
    >>> _ = path.write_text(
    ...     "seed: 1\\n"
    ...     "act: !name:torch.nn.GELU\\n"
    ...     "opt: &id001 !name:torch.optim.AdamW\\n"
    ...     "  lr: 0.001\\n"
    ...     "  betas: [0.9, 0.98]\\n"
    ...     "modules: [*id001]\\n"
    ... )
    >>> for name, value in read_hyperparameters(path).items():
    ...     print(name, repr(value))
    seed 1
    act '!name:torch.nn.GELU'
    opt '!name:torch.optim.AdamW'
    opt.lr 0.001
    opt.betas '[0.9, 0.98]'
    """
    try:
        root = yaml.compose(read_text(path, LARGEST), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" at line {mark.line + 1}" if mark else ""
        raise RunError(
            f"'{path}' is not valid YAML{where}: {error.problem}."
        ) from error
    except yaml.YAMLError as error:
        raise RunError(
            f"'{path}' is not valid YAML: {' '.join(str(error).split())}."
        ) from error
    except RecursionError as error:
        raise RunError(f"'{path}' is nested too deeply.") from error
    if not isinstance(root, yaml.MappingNode):
        raise RunError(f"'{path}' is not a YAML mapping of settings.")
    settings: dict[str, Scalar] = {}
    _flatten("", root, settings, seen=set())
    return settings


def differing_settings(
    runs: Sequence[Mapping[str, Scalar]],
) -> dict[str, tuple[Scalar, ...]]:
    """Names the settings that differ between runs, and their values.

    Arguments
    ---------
    runs : sequence of mapping
        The settings of each run.

    Returns
    -------
    dict
        Name to one value a run (None where it is not recorded). Left out are
        seeds, folders and what derives from them, what changes no result
        (such as ``num_workers``), and an inner setting that only repeats what
        a top-level one says.

    Example
    -------
    >>> first = {"seed": 1, "save_folder": "out/1", "conv_backend": "torch"}
    >>> second = {"seed": 2, "save_folder": "out/2", "conv_backend": "auto"}
    >>> differing_settings([first, second])
    {'conv_backend': ('torch', 'auto')}
    """
    names = dict.fromkeys(name for settings in runs for name in settings)
    differing = {}
    for name in names:
        if _is_incidental(name) or all(
            _same(name, runs[0], other) for other in runs[1:]
        ):
            continue
        differing[name] = tuple(settings.get(name) for settings in runs)
    outer = {values for name, values in differing.items() if "." not in name}
    return {
        name: values
        for name, values in differing.items()
        if "." not in name or values not in outer
    }


def shared_settings(
    runs: Sequence[Mapping[str, Scalar]],
) -> dict[str, Scalar]:
    """Names the settings that matter to a comparison and are equal in all runs.

    Arguments
    ---------
    runs : sequence of mapping
        The settings of each run.

    Returns
    -------
    dict
        Flags of this package, precision, batches, chunks and the like.

    Example
    -------
    >>> shared_settings([{"streaming": True, "lr": 1}, {"streaming": True}])
    {'streaming': True}
    """
    first, *others = runs
    names = [name for name in _TELLING if name in first]
    names += [name for name in first if _CHUNKS.fullmatch(name)]
    return {
        name: first[name]
        for name in dict.fromkeys(names)
        if all(name in o and o[name] == first[name] for o in others)
    }


def _flatten(name, node, settings, seen):
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        settings[name] = _scalar(node)
        return
    if not _STANDARD_TAG.fullmatch(node.tag):
        settings[name] = node.tag
    if isinstance(node, yaml.MappingNode):
        children = [(key.value, value) for key, value in node.value]
    elif _is_plain_list(node):
        settings[name] = f"[{', '.join(item.value for item in node.value)}]"
        return
    else:
        children = list(enumerate(node.value))
    prefix = f"{name}." if name else ""
    for key, child in children:
        _flatten(f"{prefix}{key}", child, settings, seen)


def _is_plain_list(node):
    return _STANDARD_TAG.fullmatch(node.tag) and all(
        isinstance(item, yaml.ScalarNode) for item in node.value
    )


def whole_number(
    path: Path, settings: Mapping[str, Scalar], name: str, least: int = 1
) -> int:
    """A setting that has to be a whole number.

    Arguments
    ---------
    path : Path
        Where the settings are from, for messages.
    settings : mapping
        From :func:`read_hyperparameters`.
    name : str
        Which one.
    least : int
        The smallest that is allowed.

    Returns
    -------
    int

    Raises
    ------
    RunError
        If it is another value; the message names all of these.

    Example
    -------
    >>> whole_number(Path("a.yaml"), {"rate": 0.5}, "rate")
    Traceback (most recent call last):
    speechbrain_triton.files.RunError: 'a.yaml': rate is 0.5, and a whole \
number of at least 1 is allowed.
    """
    value = settings.get(name)
    if type(value) is not int or value < least:
        raise RunError(
            f"'{path}': {name} is {value!r}, and a whole number of at least "
            f"{least} is allowed."
        )
    return value


def _scalar(node):
    if node.tag in _PLAIN_TYPES:
        loader = yaml.SafeLoader("")
        try:
            value = loader.construct_object(node)
        # As PyYAML says that "!!int ''" and "!!bool maybe" are none.
        except (ValueError, LookupError):
            return node.value
        if isinstance(value, float) and not math.isfinite(value):
            return node.value
        # Python itself refuses to print integers of thousands of digits.
        if isinstance(value, int) and value.bit_length() > 64:
            return node.value
        return value
    if _STANDARD_TAG.fullmatch(node.tag) or node.tag.startswith("tag:"):
        return node.value
    return f"{node.tag} {node.value}".strip()


def _is_incidental(name):
    parts = name.split(".")
    return (
        parts[-1] in _INCIDENTAL
        or any(part.endswith("seed") for part in parts)
        or bool(_LOCATION.fullmatch(name))
    )


def _same(name, first, second):
    if (name in first) != (name in second):
        return False
    if first.get(name) == second.get(name):
        return True
    return _unplaced(name, first) == _unplaced(name, second)


def _unplaced(name, settings):
    """The value with this run's own folders and seed replaced by names."""
    value, seed = settings.get(name), settings.get("seed")
    if not isinstance(value, str):
        return value
    places = {
        place: f"<{key}>"
        for key, place in settings.items()
        if "." not in key and isinstance(place, str) and place
        if _LOCATION.fullmatch(key)
    }
    for place in sorted(places, key=len, reverse=True):
        value = value.replace(place, places[place])
    if seed is not None and ("/" in value or _NAMING.fullmatch(name)):
        value = re.sub(rf"(?<!\d){re.escape(str(seed))}(?!\d)", "<seed>", value)
    return value
