"""What is contiguous travels from where it lies: no copy of it is made in Python."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

LARGE = 1 << 21  # elements of float32: 8 MiB
SMALL = 1 << 19  # bytes; a copy of any of the arrays takes more


def all_reduce(dist: ModuleType, size: int) -> Callable[[], Any]:
    x = np.ones(LARGE, np.float32)
    return lambda: dist.all_reduce(x)


def all_reduce_max(dist: ModuleType, size: int) -> Callable[[], Any]:
    x = np.ones(LARGE, np.int32)
    return lambda: dist.all_reduce(x, dist.ReduceOp.MAX)


def broadcast(dist: ModuleType, size: int) -> Callable[[], Any]:
    x = np.ones(LARGE, np.float32)
    return lambda: dist.broadcast(x, src=0)


def all_gather(dist: ModuleType, size: int) -> Callable[[], Any]:
    x, outputs = np.ones(LARGE, np.float32), [np.zeros(LARGE, np.float32) for _ in range(size)]
    return lambda: dist.all_gather(outputs, x)


def all_gather_into_tensor(dist: ModuleType, size: int) -> Callable[[], Any]:
    x, output = np.ones(LARGE, np.float32), np.zeros(size * LARGE, np.float32)
    return lambda: dist.all_gather_into_tensor(output, x)


def reduce_scatter_tensor(dist: ModuleType, size: int) -> Callable[[], Any]:
    x, output = np.ones(size * LARGE, np.float32), np.zeros(LARGE, np.float32)
    return lambda: dist.reduce_scatter_tensor(output, x)


def all_to_all_single(dist: ModuleType, size: int) -> Callable[[], Any]:
    x, output = np.ones(size * LARGE, np.float32), np.zeros(size * LARGE, np.float32)
    return lambda: dist.all_to_all_single(output, x)


OPERATIONS = [
    all_reduce,
    all_reduce_max,
    broadcast,
    all_gather,
    all_gather_into_tensor,
    reduce_scatter_tensor,
    all_to_all_single,
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_no_copy_of_a_contiguous_array(dist: ModuleType, size: int, operation: Callable[..., Any]) -> None:
    call = operation(dist, size)
    call()  # what is kept from the first call is not counted
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        call()
        most = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert most < SMALL


def test_a_half_is_widened_piece_by_piece(dist: ModuleType, size: int) -> None:
    x = np.ones(4 * LARGE, np.float16)
    tracemalloc.start()
    try:
        dist.all_reduce(x)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < x.nbytes
    assert (x == size).all()
