"""Factors of PREMUL_SUM: which are taken, for what they are, and that they are not kept."""

from __future__ import annotations

import gc
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.ranks(1, 2)

LONG = np.longdouble(1) / 3


def scaled(dist: ModuleType, factor: Any, dtype: Any = np.float64) -> Any:
    x = np.ones(2, dtype)
    dist.all_reduce(x, dist.ReduceOp.PREMUL_SUM(factor))
    return x


# Each pair prints alike.
ALIKE = {
    "numpy": (np.array(0.123456781), np.array(0.123456784)),
    "one element": (np.array([[0.123456781]]), np.array([[0.123456784]])),
    "signs of zero": (0.0, -0.0),
}


@pytest.mark.parametrize("pair", ALIKE)
def test_factors_that_look_alike(dist: ModuleType, size: int, pair: str) -> None:
    for factor in ALIKE[pair]:
        expected = size * np.float64(np.asarray(factor).item())
        assert scaled(dist, factor).tobytes() == np.array([expected, expected]).tobytes()


@pytest.mark.needs_torch
def test_tensors_that_look_alike(dist: ModuleType, size: int) -> None:
    import torch

    for number in (0.12345678, 0.12349999):
        assert scaled(dist, torch.tensor(number, dtype=torch.float64)).tolist() == [size * number] * 2


@pytest.mark.parametrize(
    ("factor", "dtype", "number"),
    [
        (3, "f4", 3.0),
        (True, "f8", 1.0),
        (Fraction(1, 4), "f8", 0.25),
        (np.float32(0.1), "f8", float(np.float32(0.1))),
        (np.int8(-2), "f2", -2.0),
        (np.array([0.5]), "f8", 0.5),
        (LONG, "g", LONG),
        (2j, "c8", 2j),
        (np.complex64(1 + 2j), "c16", 1 + 2j),
        (float("nan"), "f4", float("nan")),
    ],
    ids=str,
)
def test_numbers_of_every_kind(dist: ModuleType, size: int, factor: Any, dtype: str, number: Any) -> None:
    np.testing.assert_array_equal(scaled(dist, factor, dtype), np.full(2, size * np.dtype(dtype).type(number)))


@pytest.mark.parametrize(
    "factor",
    [None, "0.5", b"1", [0.5], (0.5,), np.ones(2), np.ones(0), np.array("0.5"), {}, object(), 10**400],
    ids=lambda factor: type(factor).__name__,
)
def test_what_is_no_number_is_refused(dist: ModuleType, factor: Any) -> None:
    with pytest.raises(dist.ArgumentError, match=r"factor of PREMUL_SUM: expected a number.*, got"):
        dist.ReduceOp.PREMUL_SUM(factor)


@pytest.mark.needs_torch
def test_tensors_without_one_number_are_refused(dist: ModuleType) -> None:
    import torch

    for factor in (torch.ones(2), torch.ones(0), torch.ones((), device="meta")):
        with pytest.raises(dist.ArgumentError, match="factor of PREMUL_SUM: expected a number"):
            dist.ReduceOp.PREMUL_SUM(factor)


@pytest.mark.parametrize("factor", [0.5 + 3j, np.complex64(0.5 + 3j), np.clongdouble(1j), np.array(2j)], ids=repr)
def test_a_complex_factor_of_real_numbers_is_refused(dist: ModuleType, factor: Any) -> None:
    x = np.ones(2)
    with pytest.raises(dist.ArgumentError, match=r"factor of PREMUL_SUM for float64: expected a real number, got"):
        dist.all_reduce(x, dist.ReduceOp.PREMUL_SUM(factor))
    assert x.tolist() == [1, 1]


def test_a_new_factor_in_each_call_leaves_nothing(dist: ModuleType) -> None:
    def use(first: int) -> int:
        for i in range(200):
            scaled(dist, 1 / (first + i))
        gc.collect()
        return len(gc.get_objects())

    before = use(1)
    assert use(201) - before < 50
