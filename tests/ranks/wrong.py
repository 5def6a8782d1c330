"""What the tests of wrong calls are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

Array = np.ndarray[Any, np.dtype[Any]]


def ones(*shape: int, dtype: str = "f4") -> Array:
    return np.ones(shape, dtype)


def lists(size: int, count: int = 3) -> list[Array]:
    return [ones(count) for _ in range(size)]


def read_only(*shape: int) -> Array:
    array = ones(*shape)
    array.flags.writeable = False
    return array


def windows() -> Array:
    """Three rows of three that share two elements each."""
    return np.lib.stride_tricks.as_strided(ones(5), (3, 3), (4, 4))


def expanded() -> Array:
    return np.lib.stride_tricks.as_strided(ones(1), (3,), (0,))


class Job:
    """What a wrong call is made from."""

    def __init__(self, dist: ModuleType, rank: int, size: int) -> None:
        self.dist: Any = dist
        self.rank, self.size = rank, size
        self.other = (rank + 1) % size


def still_works(dist: ModuleType, rank: int, size: int) -> None:
    array = np.array([rank, 1])
    dist.all_reduce(array)
    assert array.tolist() == [size * (size - 1) // 2, size]


def refused(
    dist: ModuleType,
    rank: int,
    size: int,
    call: Callable[[Job], Any],
    errors: tuple[type[Exception], ...],
    texts: Iterable[object],
) -> None:
    """Have each rank make the call alone and then all of them; everybody checks the group after each time."""
    failure = None
    for caller in [*range(size), None]:
        if caller is None or caller == rank:
            try:
                with pytest.raises(errors) as caught:
                    call(Job(dist, rank, size))
                message = str(caught.value)
                for text in texts:
                    assert str(text) in message
            except (AssertionError, pytest.fail.Exception) as error:  # the others wait for this rank
                failure = failure or error
        still_works(dist, rank, size)
    if failure:
        raise failure
