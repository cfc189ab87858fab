"""The hyperparams.yaml of an exported model, written from that of its run."""

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from speechbrain_triton.files import RunError, read_text
from speechbrain_triton.runs.settings import (
    Scalar,
    read_hyperparameters,
    whole_number,
)
from speechbrain_triton.streaming.templates import read_template
from speechbrain_triton.training.tokens import TOKEN_TYPES

# What a streaming model consists of, and the classes that can be streamed.
_CLASSES = {
    "compute_features": ("speechbrain.lobes.features.Fbank",),
    "normalize": ("speechbrain.processing.features.InputNormalization",),
    "CNN": (
        "speechbrain.lobes.models.convolution.ConvolutionFrontEnd",
        "speechbrain_triton.modules.FastConformerFrontEnd",
    ),
    "Transformer": (
        "speechbrain.lobes.models.transformer.TransformerASR.TransformerASR",
    ),
    "enc": (
        "speechbrain.lobes.models.transformer.TransformerASR.EncoderWrapper",
    ),
}
_MODULES = (
    *("normalize", "CNN", "enc", "proj_enc"),
    *("emb", "dec", "proj_dec", "Tjoint", "transducer_lin"),
)
_SCALARS = ("sample_rate", "token_type", "output_neurons", "blank_index")
_COPIED = (*_SCALARS, *_CLASSES, *_MODULES, "model")
_SAMPLER = "dynchunktrain_config_sampler"
_ALLOWED = {
    "Transformer.encoder_module": ("conformer",),
    "Transformer.attention_type": ("RoPEMHA", "RelPosMHAXL"),
    "Transformer.causal": (False,),
    "normalize.norm_type": ("global", None),
    "compute_features.deltas": (False, None),
    "compute_features.context": (False, None),
    "token_type": TOKEN_TYPES,
}
_REFERENCE = re.compile(r"<(\w+)")
_QUOTED = re.compile(r"(!ref )'(<\w+>)'$|(?<=\S) ''$", re.MULTILINE)


def inference_hyperparameters(run: Path) -> str:
    """Write the hyperparams.yaml of streaming inference.

    Nothing of the run's file is executed: its model is copied, tags and all.

    Arguments
    ---------
    run : Path
        Folder of a finished run of a transducer recipe.

    Returns
    -------
    str
        The new file's text.

    Raises
    ------
    RunError
        If the run's model cannot be streamed; the message says why.
    """
    path = run / "hyperparams.yaml"
    settings = read_hyperparameters(path)
    _check(path, settings)
    root = yaml.compose(read_text(path), Loader=yaml.SafeLoader)
    gated = settings.get("feedforwards.ffn", "standard") != "standard"
    names = [*_COPIED, *(["feedforwards"] if gated else [])]
    chunk_size, left_context = _chunks(path, settings)
    separator = {"char": "", "word": " "}.get(settings["token_type"])
    kind = "pieces" if separator is None else "labels"
    return read_template("hyperparams.yaml").substitute(
        chunk_size=chunk_size,
        left_context="null" if left_context is None else left_context,
        model=_copy(path, root, names),
        ffn_flag="ffn_backend: auto       # feed-forwards\n" if gated else "",
        ffn_argument="  ffn: !ref <ffn_backend>\n" if gated else "",
        modules="\n".join(f"  {name}: !ref <{name}>" for name in _MODULES),
        tokenizer=read_template(f"{kind}.yaml").substitute(separator=separator),
    )


def _check(path: Path, settings: Mapping[str, Scalar]) -> None:
    needed = (*_COPIED, _SAMPLER)
    missing = [name for name in needed if not _has(settings, name)]
    if missing:
        raise RunError(
            f"'{path}' has no {', '.join(missing)}: it is not that of a "
            "transducer recipe of this package."
        )
    if settings.get("streaming") is not True:
        raise RunError(
            f"'{path.parent}' cannot stream: it was trained with streaming: "
            f"{settings.get('streaming')}, and chunks need streaming: True."
        )
    for name, classes in _CLASSES.items():
        if str(settings.get(name)).removeprefix("!new:") not in classes:
            raise RunError(
                f"'{path}': {name} is {settings.get(name)}, and streaming is "
                f"known for {' or '.join(classes)} alone."
            )
    for name, allowed in _ALLOWED.items():
        if settings.get(name) not in allowed:
            raise RunError(
                f"'{path}': {name} is {settings.get(name)!r}, and a model "
                f"can be streamed if it is {_words(allowed)}."
            )


def _has(settings, name):
    return name in settings or any(k.startswith(f"{name}.") for k in settings)


def _words(allowed):
    return " or ".join(repr(value) for value in allowed if value is not None)


def _chunks(path, settings):
    """The chunks of the test; if it had none, the longest of the training."""
    names = "test_config.chunk_size", "test_config.left_context_size"
    if f"{_SAMPLER}.{names[0]}" not in settings:
        names = "chunk_size_max", "left_context_chunks_max"
    size, left = (f"{_SAMPLER}.{name}" for name in names)
    chunk_size = whole_number(path, settings, size)
    if settings.get(left) is None:
        return chunk_size, None
    return chunk_size, whole_number(path, settings, left, least=0)


def _copy(path: Path, root: yaml.MappingNode, names: list[str]) -> str:
    """Copy keys, and those that they refer to, with named references."""
    values = {key.value: value for key, value in root.value}
    keys = {id(v): k for k, v in values.items() if _children(v)}
    wanted: dict[str, None] = {}

    def want(name):
        if name not in values:
            raise RunError(f"'{path}' refers to {name}, which it lacks.")
        if name not in wanted:
            for reference in _references(values[name], keys):
                want(reference)
            wanted[name] = None

    for name in names:
        want(name)
    copied = [
        (yaml.ScalarNode("tag:yaml.org,2002:str", name), _named(v, keys))
        for name, v in values.items()
        if name in wanted
    ]
    node = yaml.MappingNode("tag:yaml.org,2002:map", copied, flow_style=False)
    text = yaml.serialize(node, Dumper=yaml.SafeDumper, width=80)
    # Scalars with a tag come out quoted.
    return _QUOTED.sub(r"\1\2", text)


def _children(node):
    if isinstance(node, yaml.MappingNode):
        return [value for _, value in node.value]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _references(node, keys):
    if node.tag in ("!ref", "!copy"):
        yield from _REFERENCE.findall(node.value)
    for child in _children(node):
        if id(child) in keys:
            yield keys[id(child)]
        else:
            yield from _references(child, keys)


def _named(node, keys):
    """A copy whose aliases of top-level keys are written !ref <key>."""

    def child(value):
        if id(value) in keys:
            return yaml.ScalarNode("!ref", f"<{keys[id(value)]}>")
        return _named(value, keys)

    if isinstance(node, yaml.MappingNode):
        pairs = [(key, child(value)) for key, value in node.value]
        return yaml.MappingNode(node.tag, pairs, flow_style=node.flow_style)
    if isinstance(node, yaml.SequenceNode):
        items = [child(value) for value in node.value]
        return yaml.SequenceNode(node.tag, items, flow_style=node.flow_style)
    return node
