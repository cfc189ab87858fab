"""The gate: what it lets through, and what it says."""

import math

import pytest
import torch

from speechbrain_triton.bench.check import complaint

EXACT = {"y": torch.tensor([3.0, 4.0]), "dx": torch.tensor([1.0, 0.0])}
STOCK = {"y": torch.tensor([3.0, 4.01]), "dx": torch.tensor([1.0, 0.0])}


def test_as_exact_as_stock_is_let_through():
    assert complaint(STOCK, STOCK, EXACT) is None
    assert complaint({**STOCK, "y": EXACT["y"]}, STOCK, EXACT) is None


@pytest.mark.parametrize("wrong", [4.03, math.nan])
def test_further_off_than_twice_stock_is_named(wrong):
    found = {**STOCK, "y": torch.tensor([3.0, wrong])}
    assert complaint(found, STOCK, EXACT).startswith("y has relative error")


def test_rounding_is_allowed_on_top():
    found = {**STOCK, "y": torch.tensor([3.0, 4.03])}
    assert complaint(found, STOCK, EXACT, rounding=0.002) is None
    assert complaint(found, STOCK, EXACT, rounding=0.001) is not None


def test_every_result_is_compared():
    found = {**STOCK, "dx": torch.tensor([1.0, 1e-3])}
    assert complaint(found, STOCK, EXACT).startswith("dx has relative error")


def test_a_shape_that_only_broadcasts_is_named():
    found = {**STOCK, "y": torch.tensor([[3.0, 4.0]])}
    assert complaint(found, STOCK, EXACT) == (
        "y has shape (1, 2), PyTorch has (2,)"
    )
