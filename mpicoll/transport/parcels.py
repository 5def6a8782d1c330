"""Parcels: lists of frames whose number and sizes only the sender knows.

Each operation first tells every rank of the group what is coming, or that some rank has nothing to send because it
failed (to pickle), so that all ranks raise together and the group stays usable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mpicoll.data.arrays import Array, describe
from mpicoll.data.layout import Region, displacements
from mpicoll.data.objects import ALIGNMENT, Frame, new_frame
from mpicoll.errors import ObjectError
from mpicoll.mpi import library
from mpicoll.transport import direct
from mpicoll.transport.engine import Engine
from mpicoll.transport.messages import Header, Mailbox
from mpicoll.transport.operation import Operation, Place

# Parcels of up to so many bytes on average are gathered through one buffer.
_PACKED = 1 << 16


@dataclass(frozen=True, slots=True)
class Failure:
    """What a rank sends in place of a parcel: why it has none."""

    text: str


Parcel = list[Frame] | Failure


class Parcels:
    """The parcels of one communicator."""

    def __init__(self, engine: Engine, mailbox: Mailbox, place: Place) -> None:
        self._engine = engine
        self._mailbox = mailbox
        self._place = place

    def all_gather(self, mine: Parcel) -> list[list[Frame]]:
        """Every rank's parcel, for every rank."""
        tables = self._all_gather_tables(_table(mine))
        _refuse_failures(tables)
        return self._all_gather_frames(_frames(mine), tables)

    def gather(self, mine: Parcel, root: int) -> list[list[Frame]]:
        """Every rank's parcel, for the root; elsewhere an empty list."""
        tables = self._all_gather_tables(_table(mine))
        _refuse_failures(tables)
        at_root = self._place.rank == root
        parcels = [_room(table) for table in tables.values()] if at_root else []
        operation = Operation(self._place)
        received = [(rank, _region(frame)) for rank, parcel in enumerate(parcels) for frame in parcel]
        operation.exchange([(root, _region(frame)) for frame in _frames(mine)], received)
        self._run(operation)
        return parcels

    def broadcast(self, mine: Parcel | None, root: int) -> list[Frame]:
        """The root's parcel, for every rank; only the root has one to give."""
        table = self._broadcast_sized(None if mine is None else _table(mine), root)
        _refuse_failures({root: table})
        parcel = _room(table) if mine is None else _frames(mine)
        operation = Operation(self._place)
        for frame in parcel:
            direct.broadcast_region(operation, _region(frame), root)
        self._run(operation)
        return parcel

    def scatter(self, parcels: list[Parcel] | None, root: int) -> list[Frame]:
        """A parcel of the root's for each rank; only the root has some to give."""
        joined = None if parcels is None else _join([_table(parcel) for parcel in parcels])
        tables = _split(self._broadcast_sized(joined, root))
        for table in tables:
            _refuse_failures({root: table})
        mine = _room(tables[self._place.rank])
        sends = [(rank, _region(frame)) for rank, parcel in enumerate(parcels or []) for frame in _frames(parcel)]
        operation = Operation(self._place)
        operation.exchange(sends, [(root, _region(frame)) for frame in mine])
        self._run(operation)
        return mine

    def send(self, parcel: Parcel, rank: int) -> None:
        """Send a parcel to a rank."""
        for array in (_table(parcel), *([] if isinstance(parcel, Failure) else parcel)):
            self._engine.finish(self._mailbox.send(describe(array), rank, self._mailbox.tags.objects))

    def receive(self, rank: int | None) -> tuple[list[Frame], int]:
        """Receive a parcel from a rank, or from any. Returns it and the rank."""
        tables: list[Frame] = []

        def accept(header: Header) -> Array:
            tables.append(header.new_array())
            return describe(tables[0])

        source = self._receive(accept, rank)
        _refuse_failures({source: tables[0]})
        parcel = _room(tables[0])
        for frame in parcel:
            self._receive(partial(Header.fits, array=describe(frame)), source)
        return parcel, source

    def _receive(self, accept: Callable[[Header], Array], rank: int | None) -> int:
        source = self._engine.finish(self._mailbox.receive(accept, rank, self._mailbox.tags.objects, blocking=True))
        assert source is not None
        return source

    def _all_gather_tables(self, mine: Frame) -> dict[int, Frame]:
        lengths = np.empty(self._place.size, np.int64)
        self._call("Allgather", _int64(np.array([mine.size])), [lengths, 1, library.MPI.INT64_T])
        sizes = lengths.tolist()
        whole = np.empty(sum(sizes), np.int64)
        tables = np.split(whole, displacements(sizes)[1:])
        if whole.size <= self._place.limit:
            spec = [whole, sizes, displacements(sizes), library.MPI.INT64_T]
            self._call("Allgatherv", _int64(mine), spec)
        else:
            tables[self._place.rank][:] = mine
            self._broadcast_blocks([[table] for table in tables])
        return dict(enumerate(tables))

    def _all_gather_frames(self, mine: list[Frame], tables: dict[int, Frame]) -> list[list[Frame]]:
        sizes = [table.tolist() for table in tables.values()]
        totals = [sum(map(_padded, some)) for some in sizes]
        if sum(totals) <= min(_PACKED * self._place.size, self._place.limit):
            packed, whole = np.zeros(totals[self._place.rank], np.uint8), new_frame(sum(totals))
            for part, frame in zip(_cut(packed, 0, sizes[self._place.rank]), mine, strict=True):
                part[:] = frame
            spec = [whole, totals, displacements(totals), library.MPI.BYTE]
            self._call("Allgatherv", [packed, packed.size, library.MPI.BYTE], spec)
            return [_cut(whole, first, some) for first, some in zip(displacements(totals), sizes, strict=True)]
        parcels = [_room(tables[rank]) for rank in range(self._place.size)]
        for frame, room in zip(mine, parcels[self._place.rank], strict=True):
            room[:] = frame
        self._broadcast_blocks(parcels)
        return parcels

    def _broadcast_blocks(self, blocks: list[list[Frame]]) -> None:
        """Every rank's block for everybody, frame by frame."""
        operation = Operation(self._place)
        for root, frames in enumerate(blocks):
            for frame in frames:
                direct.broadcast_region(operation, _region(frame), root)
        self._run(operation)

    def _broadcast_sized(self, array: Frame | None, root: int) -> Frame:
        length = np.array([0 if array is None else array.size])
        self._call("Bcast", _int64(length), root)
        if array is None:
            array = np.empty(int(length[0]), np.int64)
        operation = Operation(self._place)
        direct.broadcast_region(operation, _region(array), root)
        self._run(operation)
        return array

    def _call(self, name: str, *arguments: Any) -> None:
        operation = Operation(self._place)
        operation.call(name, *arguments)
        self._run(operation)

    def _run(self, operation: Operation) -> None:
        self._engine.run(operation.sealed())


def pack(make: Callable[[], list[Frame]]) -> tuple[Parcel, BaseException | None]:
    """The frames that `make` returns, or the failure to send in their place and the error that it raised."""
    try:
        return make(), None
    except Exception as error:
        return Failure(describe_error(error)), error


def describe_error(error: BaseException) -> str:
    """An error in one line, also where it cannot say itself what it is."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _frames(parcel: Parcel) -> list[Frame]:
    assert not isinstance(parcel, Failure)
    return parcel


# A table is the sizes of a parcel's frames; that of a failure is -1 and then the characters of its text.


def _table(parcel: Parcel) -> Frame:
    if isinstance(parcel, Failure):
        return np.array([-1, *parcel.text[:2000].encode(errors="backslashreplace")], np.int64)
    return np.array([frame.size for frame in parcel], np.int64)


def _refuse_failures(tables: dict[int, Frame]) -> None:
    for rank, table in tables.items():
        if table[0] == -1:
            text = bytes(table[1:].tolist()).decode(errors="replace")
            raise ObjectError(f"object of group rank {rank}: expected one that can be pickled, got {text}")


def _room(table: Frame) -> list[Frame]:
    return [new_frame(size) for size in table.tolist()]


def _padded(size: int) -> int:
    """The bytes that a frame takes up where another follows, each at an aligned place."""
    return size + -size % ALIGNMENT


def _cut(block: Frame, first: int, sizes: list[int]) -> list[Frame]:
    frames = []
    for size in sizes:
        frames.append(block[first : first + size])
        first += _padded(size)
    return frames


def _join(tables: Sequence[Frame]) -> Frame:
    return np.concatenate([np.array([table.size, *table], np.int64) for table in tables])


def _split(joined: Frame) -> list[Frame]:
    tables, first = [], 0
    while first < joined.size:
        end = first + 1 + int(joined[first])
        tables.append(joined[first + 1 : end])
        first = end
    return tables


def _region(frame: Frame) -> Region:
    return Region(frame.__array_interface__["data"][0], frame.nbytes, frame)


def _int64(array: Frame) -> list[Any]:
    return [array, array.size, library.MPI.INT64_T]
