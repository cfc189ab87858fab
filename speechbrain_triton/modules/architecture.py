"""The architecture of a Conformer's feed-forwards, chosen by a flag."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from speechbrain.lobes.models.transformer.Conformer import (
    ConformerEncoderLayer,
)
from speechbrain.nnet.attention import PositionalwiseFeedForward
from torch import nn

from speechbrain_triton.backend import check_choice
from speechbrain_triton.model import Model, announce, named_modules
from speechbrain_triton.modules.coverage import layer_obstacle
from speechbrain_triton.modules.encoder import TritonConformerEncoderLayer
from speechbrain_triton.modules.feedforward import GEGLUFeedForward
from speechbrain_triton.ops.geglu_linear.reference import APPROXIMATIONS

FEEDFORWARDS = ("standard", "geglu")
KEEPS = ("d_ffn", "parameters")
# Hidden sizes are rounded up to full tiles of the matrix products.
MULTIPLE = 64

_PLACES = ("ffn_module1", "ffn_module2")


@dataclass
class FeedForwardReport:
    """What :func:`use_feedforward` did.

    Arguments
    ---------
    ffn : str
        The flag's value.
    names : list of str
        The feed-forwards of the model.
    sizes : list of tuple
        Of each that was replaced, ``d_ffn`` before and now.
    approximate : str
        Of the new ones' GELU.
    """

    ffn: str
    names: list[str]
    sizes: list[tuple[int, int]] = field(default_factory=list)
    approximate: str = "none"

    def __str__(self) -> str:
        count = len(self.names)
        line = f"ffn={self.ffn}: {count} module{'' if count == 1 else 's'}, "
        if not self.sizes:
            return f"{line}left as they are."
        sizes = " and ".join(
            f"{old}" if old == new else f"{new} in place of {old}"
            for old, new in sorted(set(self.sizes))
        )
        return f"{line}d_ffn {sizes}, approximate={self.approximate}."


def use_feedforward(
    model: Model, ffn: str, keep: str = "d_ffn", approximate: str = "none"
) -> FeedForwardReport:
    """Choose the feed-forwards of a model's Conformer encoder, in place.

    To be called where the model is built: before
    :func:`~speechbrain_triton.apply_kernels`, which switches their kernels,
    and before an optimizer or a checkpoint sees the parameters. In YAML
    ``!apply`` does it when the file is loaded. A line says what was done,
    through logging, or on stderr while logging is not configured.

    Arguments
    ---------
    model : torch.nn.Module, or a dict, list or tuple of them
        The model, for instance a recipe's ``Transformer``.
    ffn : str
        ``"standard"`` changes nothing. ``"geglu"`` puts a new
        :class:`GEGLUFeedForward` in the place of both
        ``PositionalwiseFeedForward`` of every ``ConformerEncoderLayer``, with
        the dropout of the old one. Subclasses of the layer, and decoders, are
        left alone.
    keep : str
        What stays as it was: ``"d_ffn"``, so that the block has half as many
        parameters more; or the number of ``"parameters"``, by two thirds of
        ``d_ffn``, rounded up to a multiple of 64.
    approximate : str
        ``"none"`` for GELU by the error function, or ``"tanh"``.

    Returns
    -------
    FeedForwardReport
        The modules, and their sizes.

    Raises
    ------
    ValueError
        For an unknown value of a flag, a model without such layers or with
        kernels switched on already, or a layer whose feed-forward is not the
        one that SpeechBrain built. Nothing is changed then.
    TypeError
        If ``model`` holds no module.

    Example
    -------
    >>> layer = ConformerEncoderLayer(64, d_ffn=256, nhead=4, kernel_size=15)
    >>> str(use_feedforward(layer, "geglu", keep="parameters"))
    'ffn=geglu: 2 modules, d_ffn 192 in place of 256, approximate=none.'
    """
    check_choice("ffn", ffn, FEEDFORWARDS)
    check_choice("keep", keep, KEEPS)
    check_choice("approximate", approximate, APPROXIMATIONS)
    blocks = dict(_blocks(model))
    if not blocks:
        raise ValueError(
            f"ffn={ffn!r}, but the model has no ConformerEncoderLayer whose "
            "feed-forwards it could choose; is it the recipe's Transformer?"
        )
    report = FeedForwardReport(ffn, list(blocks), approximate=approximate)
    for name, block in blocks.items():
        obstacle = _gate(block) if ffn == "standard" else _obstacle(block)
        if obstacle:
            raise ValueError(
                f"ffn={ffn!r} needs the feed-forwards that SpeechBrain built, "
                f"and {name} has {obstacle}."
            )
    if ffn == "standard":
        return report
    _check_kernels(model)
    for block in blocks.values():
        old = block[1]
        block[1] = _geglu_for(old, keep, approximate)
        report.sizes.append((old.ffn[0].out_features, block[1].d_ffn))
    announce(str(report))
    return report


def _check_kernels(model: Model) -> None:
    """Refuse to add feed-forwards that a flag given before does not reach."""
    for _, module in named_modules(model):
        if type(module) is TritonConformerEncoderLayer:
            raise ValueError(
                "ffn='geglu' must be chosen before apply_kernels, whose flag "
                "ffn would not reach the new feed-forwards; in YAML put it "
                "first, or call restore before."
            )


def _blocks(model: Model) -> Iterator[tuple[str, nn.Module]]:
    """What stands at each place of a feed-forward, and its name."""
    for name, module in named_modules(model):
        if type(module) in (ConformerEncoderLayer, TritonConformerEncoderLayer):
            for place in _PLACES:
                yield f"{name}.{place}".lstrip("."), getattr(module, place)


def _gate(block: nn.Module) -> str | None:
    """Say that a feed-forward has a gate; an adapter in it may stay."""
    if any(isinstance(module, GEGLUFeedForward) for module in block.modules()):
        return "a GEGLUFeedForward"
    return None


def _obstacle(block: nn.Module) -> str | None:
    """Say why a feed-forward is not the one that SpeechBrain built."""
    if type(block) is not nn.Sequential or len(block) != 3:
        return f"a {type(block).__name__} that SpeechBrain did not build"
    inner = block[1]
    if obstacle := layer_obstacle(
        "PositionalwiseFeedForward", inner, PositionalwiseFeedForward
    ):
        return obstacle
    expected = nn.Linear, None, nn.Dropout, nn.Linear
    if type(inner.ffn) is not nn.Sequential or len(inner.ffn) != len(expected):
        return f"a {type(inner.ffn).__name__} that SpeechBrain did not build"
    for index, kind in enumerate(expected):
        layer = inner.ffn[index]
        obstacle = kind and layer_obstacle(f"ffn.{index}", layer, kind)
        if obstacle:
            return obstacle
    return None


def _geglu_for(
    old: PositionalwiseFeedForward, keep: str, approximate: str
) -> GEGLUFeedForward:
    linear, _, dropout, _ = old.ffn
    d_ffn = linear.out_features
    if keep == "parameters":
        d_ffn = -(-2 * d_ffn // (3 * MULTIPLE)) * MULTIPLE
    new = GEGLUFeedForward(
        d_ffn,
        input_size=linear.in_features,
        dropout=dropout.p,
        approximate=approximate,
    )
    return new.to(linear.weight).train(old.training)
