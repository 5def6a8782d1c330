"""An operation being put together: its steps, and what must stay alive until they are done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mpicoll.data import layout
from mpicoll.data.arrays import Array
from mpicoll.data.layout import Region
from mpicoll.mpi import library
from mpicoll.transport.steps import Call, Exchange, Local, Step


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operation takes place, as far as its steps depend on it.

    Attributes:
        rank: This rank in the communicator.
        size: The ranks of the communicator.
        limit: The largest count to hand to MPI in one call.
        exchange_tag: The tag of the messages inside collectives.
        deterministic: Whether a reduction's bits may depend on the inputs alone.
    """

    rank: int
    size: int
    limit: int
    exchange_tag: int
    deterministic: bool


class Operation:
    """The steps of an operation in order, and the memory that they use.

    Everything that touches a tensor is a step, packing too: the operation before it in the queue may still be writing
    there.
    """

    __slots__ = ("_after", "_keep", "limit", "place", "steps")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.limit: float | None = None  # seconds that it may take as a synchronous operation
        self.steps: list[Step] = []
        self._after: list[Step] = []
        self._keep: list[Any] = []

    def buffer_of(self, array: Array) -> Any:
        """The memory of a contiguous array as mpi4py takes it."""
        self._keep.append(array.owner)
        return array.buffer()

    def call(self, name: str, *arguments: Any) -> None:
        """A collective call of MPI's."""
        self.steps.append(Call(name, *arguments))

    def local(self, action: Callable[[], Any]) -> None:
        """Something to do on this rank."""
        self.steps.append(Local(action))

    def exchange(self, sends: list[tuple[int, Region]], receives: list[tuple[int, Region]]) -> None:
        """Blocks to send to and receive from ranks; those of this rank to itself are copied."""
        me = self.place.rank
        mine = [block for rank, block in sends if rank == me], [block for rank, block in receives if rank == me]
        for source, target in zip(*mine, strict=True):
            self.copy(source, target)
        others = [(rank, block) for rank, block in sends if rank != me]
        expected = [(rank, block) for rank, block in receives if rank != me]
        if others or expected:
            self.steps.append(Exchange(self.place.exchange_tag, self.place.limit, others, expected))

    def copy(self, source: Region, target: Region) -> None:
        """Copy a block, unless it is there already."""
        if source.nbytes and not source.same_as(target):
            self.local(partial(_copy, source, target))

    def source(self, array: Array, outputs: Sequence[Array] = ()) -> Region:
        """The elements of an input as contiguous bytes: where they are; packed if strided or in the outputs' memory."""
        if array.contiguous and not any(layout.share_memory(array, output) for output in outputs):
            return self.keep(layout.region_of(array))
        region = self.scratch(array.nbytes)
        self.local(partial(layout.pack, array, region))
        return region

    def target(self, array: Array) -> Region:
        """Contiguous bytes for the elements of an output: where they belong, or scratch that is unpacked in the end."""
        if array.contiguous:
            return self.keep(layout.region_of(array))
        region = self.scratch(array.nbytes)
        self._after.append(Local(partial(layout.unpack, region, array)))
        return region

    def scratch(self, nbytes: int) -> Region:
        """Memory that lives as long as the operation."""
        return self.keep(layout.scratch(nbytes))

    def keep(self, region: Region) -> Region:
        """Keep a region's owner alive."""
        self._keep.append(region.owner)
        return region

    def append(self, part: Operation) -> None:
        """Do what another operation does, after the steps so far."""
        self.steps += part.sealed().steps
        self._keep += part._keep

    def sealed(self) -> Operation:
        """The operation with the steps that come last in their place."""
        self.steps += self._after
        self._after = []
        return self

    def bytes_of(self, region: Region) -> list[Any]:
        """A region as mpi4py takes it, in bytes."""
        return [region.buffer(), region.nbytes, library.MPI.BYTE]


def _copy(source: Region, target: Region) -> None:
    target.numpy()[:] = source.numpy()
