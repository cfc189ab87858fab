"""Strategies that draw cases."""

import random
from collections.abc import Sequence
from types import SimpleNamespace

from hypothesis import strategies as st
from op_draws import Size
from op_table import OPS, Op
from property_cases import ALIGNED, Case

# What the interpreter, and what a GPU, has time for.
SMALL = Size(utterances=3, frames=34, bins=7, labels=6)
LARGE = Size(utterances=4, frames=600, bins=41, labels=40)


@st.composite
def cases(
    draw: st.DrawFn,
    name: str,
    modes: Sequence[str],
    size: Size,
    choices: Sequence[SimpleNamespace] | None = None,
) -> Case:
    """Draw a case of an op.

    Arguments
    ---------
    draw : callable
        Hypothesis'.
    name : str
        The op's.
    modes : sequence of str
        To draw from.
    size : Size
        Of the largest case.
    choices : sequence of SimpleNamespace, optional
        Constants to draw from; all combinations where there is none.

    Returns
    -------
    Case
    """
    op = OPS[name]
    unaligned = True
    if choices is None:
        constants = SimpleNamespace(
            **{n: draw(st.sampled_from(v)) for n, v in op.constants.items()}
        )
    else:
        constants = draw(st.sampled_from(choices))
        # Else all kernels would be compiled twice.
        unaligned = constants is choices[0]
    shapes, integers, options = op.draw(draw, constants, size)
    tensors = (*shapes, *integers, "dy")
    return Case(
        op=name,
        mode=draw(st.sampled_from(modes)),
        shapes=shapes,
        integers=integers,
        options=options,
        layouts=draw(layouts(tensors, unaligned)),
        frozen=draw(st.sampled_from(frozen_sets(tuple(shapes)))),
        scale=draw(st.sampled_from((1.0, 0.1, 4.0))),
        seed=draw(st.integers(0, 10**6)),
    )


def layouts(
    tensors: Sequence[str], unaligned: bool
) -> st.SearchStrategy[dict[str, str]]:
    """Some of the tensors laid out otherwise, or all of them unaligned."""
    some = st.dictionaries(
        st.sampled_from(tensors), st.sampled_from(ALIGNED), max_size=4
    )
    if not unaligned:
        return some
    return some | some | some | st.just(dict.fromkeys(tensors, "offset"))


def frozen_sets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """None, all parameters, the input, all but one, one, everything."""
    first, *others = names
    return [
        *[()] * 4,
        tuple(others),
        (first,),
        tuple(others[1:]),
        tuple(others[:1]),
        names,
    ]


def palette(op: Op, n: int, seed: str) -> list[SimpleNamespace]:
    """A few combinations of constants, for as few compiled kernels.

    Each constant has as many values in them as it can.
    """
    rng = random.Random(seed)
    orders = {k: rng.sample(v, len(v)) for k, v in op.constants.items()}
    return [
        SimpleNamespace(**{k: v[i % len(v)] for k, v in orders.items()})
        for i in range(n)
    ]
