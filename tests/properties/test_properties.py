"""One property of every op: as exact as its twin, whatever the call.

Values and every gradient, against float64, over shapes, strides, lengths,
chunks, options and frozen parameters. In the interpreter a few cases, in a
fixed time; on a GPU thousands. These variables set them:

``SPEECHBRAIN_TRITON_CASES``
    Cases of each op and dtype; 120, or 6 of each op in the interpreter.
``SPEECHBRAIN_TRITON_SEED``
    A number; another one gives other cases. 0.
``SPEECHBRAIN_TRITON_CONSTANTS``
    Combinations of what kernels are compiled for (channels, taps, options...)
    for each op and dtype; 2.
``SPEECHBRAIN_TRITON_SECONDS``
    After so many no further case is started; 30, or 3 in the interpreter.
``SPEECHBRAIN_TRITON_TABLE``
    Path of a CSV file, to which each op and dtype adds a row, see ``Tally``.

With pytest-xdist ``--dist loadgroup`` lets each worker compile its own ops:

    pytest -m gpu -n 12 --dist loadgroup tests/properties/test_properties.py
"""

import os
import sys

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from op_table import OPS
from speechbrain.utils.importutils import LazyModule
from strategies import LARGE, SMALL, cases, palette
from tally import Tally

pytestmark = pytest.mark.filterwarnings(
    # Of the interpreter, about infinities of rows that are masked.
    "ignore:divide by zero",
    "ignore:invalid value",
    "ignore:overflow",
)


def from_environment(name, default):
    return int(os.environ.get(f"SPEECHBRAIN_TRITON_{name}", default))


@pytest.fixture(autouse=True)
def unloaded(monkeypatch):
    """Hypothesis asks each module for its file, and SpeechBrain's lazy ones
    then import what may not be installed."""
    for module in list(sys.modules.values()):
        if isinstance(module, LazyModule):
            monkeypatch.setitem(vars(module), "__file__", None)


def assert_all_right(tally, drawn, n_cases, device):
    """Each case that is drawn, and the table's row about them."""

    @seed(from_environment("SEED", 0))
    @settings(
        max_examples=from_environment("CASES", n_cases),
        # No shrinking: it would take many times as long.
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn)
    def add(case):
        tally.add(case, device)

    add()
    if table := os.environ.get("SPEECHBRAIN_TRITON_TABLE"):
        tally.append_to(table)
    assert not tally.failures, tally.report()


@pytest.mark.parametrize("name", list(OPS))
def test_in_the_interpreter(name, device):
    if device != "cpu":
        pytest.skip("the longer run is for a GPU")
    # But bfloat16, to which the interpreter cuts and does not round.
    modes = [mode for mode in OPS[name].modes if mode != "bfloat16"]
    tally = Tally(name, "any", from_environment("SECONDS", 3))
    assert_all_right(tally, cases(name, modes, SMALL), 6, device)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(
            name, mode, marks=pytest.mark.xdist_group(f"{name}-{mode}")
        )
        # What compiles longest first.
        for name, op in reversed(OPS.items())
        for mode in op.modes
    ],
)
def test_at_length(name, mode, device):
    number = from_environment("SEED", 0)
    n_constants = from_environment("CONSTANTS", 2)
    constants = palette(OPS[name], n_constants, f"{name} {mode} {number}")
    tally = Tally(name, mode, from_environment("SECONDS", 30))
    assert_all_right(tally, cases(name, [mode], LARGE, constants), 120, device)
