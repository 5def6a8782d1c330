"""Where elements lie: contiguous regions that MPI can take, packing, overlap, the division of a buffer among ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from mpicoll.data.arrays import Array, at_address
from mpicoll.mpi import library

_BYTES = np.dtype(np.uint8)
# Above this many elements a strange view's offsets are not enumerated; it is taken to overlap itself.
_ENUMERABLE = 1 << 24


class Region:
    """Contiguous bytes, and whoever keeps them alive."""

    __slots__ = ("nbytes", "owner", "pointer")

    def __init__(self, pointer: int, nbytes: int, owner: Any) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.owner = owner

    def part(self, offset: int, nbytes: int) -> Region:
        """The bytes from `offset` on."""
        return Region(self.pointer + offset, nbytes, self.owner)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The bytes as a numpy array of uint8."""
        return at_address(self.pointer, _BYTES, (self.nbytes,))

    def buffer(self) -> Any:
        """The bytes as mpi4py takes them."""
        return library.MPI.buffer.fromaddress(self.pointer, self.nbytes)

    def same_as(self, other: Region) -> bool:
        """Whether both are the same memory."""
        return self.pointer == other.pointer and self.nbytes == other.nbytes


def region_of(array: Array) -> Region:
    """The memory of a contiguous array."""
    return Region(array.pointer, array.nbytes, array.owner)


def scratch(nbytes: int) -> Region:
    """Fresh memory, filled with nothing in particular."""
    memory = np.empty(nbytes, _BYTES)
    return Region(memory.__array_interface__["data"][0], nbytes, memory)


def pack(array: Array, region: Region) -> None:
    """Copy an array's elements in logical order to a region of their size."""
    if array.nbytes:
        array.read_into(region.numpy().view(array.dtype.carrier))


def unpack(region: Region, array: Array) -> None:
    """Copy a region's elements in logical order to an array of their size."""
    if array.nbytes:
        array.write_from(region.numpy().view(array.dtype.carrier))


def displacements(counts: Sequence[int]) -> list[int]:
    """Where each block begins, if they lie one after the other.

    >>> displacements([2, 0, 3])
    [0, 2, 2]
    """
    return [0, *accumulate(counts)][:-1]


def even_split(total: int, parts: int) -> list[int]:
    """The sizes of `parts` equal parts of `total`, which they divide."""
    return [total // parts] * parts


def pieces(count: int, limit: int) -> list[tuple[int, int]]:
    """Cut `count` elements into pieces of at most `limit`: (first, number) of each.

    >>> pieces(5, 2)
    [(0, 2), (2, 2), (4, 1)]
    """
    return [(first, min(limit, count - first)) for first in range(0, count, limit)]


def overlaps_itself(array: Array) -> bool:
    """Whether two elements of a view share memory, as those of an expanded tensor do."""
    if array.strides is None or array.count <= 1:
        return False
    steps = sorted((abs(step), size) for step, size in zip(array.strides, array.shape, strict=True) if size > 1)
    reach = array.dtype.itemsize - 1
    for step, size in steps:
        if step <= reach:
            return _enumerate_overlap(array)
        reach += step * (size - 1)
    return False


def _enumerate_overlap(array: Array) -> bool:
    # The quick test was not conclusive: dimensions interleave. Look at every element's offset.
    assert array.strides is not None
    dimensions = [(step, size) for step, size in zip(array.strides, array.shape, strict=True) if size > 1]
    if array.count > _ENUMERABLE or 0 in (step for step, _ in dimensions):
        return True
    offsets = np.zeros(1, np.int64)
    for step, size in dimensions:
        offsets = np.add.outer(offsets, np.arange(size, dtype=np.int64) * step).reshape(-1)
    return bool((np.diff(np.sort(offsets)) < array.dtype.itemsize).any())


def bounds(array: Array) -> tuple[int, int]:
    """The first address of an array's elements and the one behind the last."""
    if array.strides is None or not array.count:
        return array.pointer, array.pointer + array.nbytes
    reaches = [step * (size - 1) for step, size in zip(array.strides, array.shape, strict=True)]
    low = array.pointer + sum(reach for reach in reaches if reach < 0)
    return low, array.pointer + sum(reach for reach in reaches if reach > 0) + array.dtype.itemsize


def share_memory(one: Array, other: Array) -> bool:
    """Whether two arrays have an element's memory in common."""
    (low, high), (other_low, other_high) = bounds(one), bounds(other)
    if not one.count or not other.count or high <= other_low or other_high <= low:
        return False
    if one.strides is None and other.strides is None:
        return True
    try:
        # Exact, where it can be found out within reason: columns of one matrix lie between one another.
        return np.shares_memory(_raw(one), _raw(other), max_work=1_000_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _raw(array: Array) -> np.ndarray[Any, Any]:
    return at_address(array.pointer, array.dtype.carrier, array.shape, array.strides, array.writable)
