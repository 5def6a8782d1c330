"""Point-to-point messages, which tell their dtype and shape.

A message begins with a header. Up to a few KiB the elements follow in the same MPI message; above, they follow in one
of their own, under a tag that the header names, so that however receives are posted each gets the elements that belong
to its header.
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
import operator
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.data import layout
from mpicoll.data.arrays import Array
from mpicoll.data.layout import region_of, scratch
from mpicoll.errors import ArgumentError, DTypeError, MessageError, mismatch
from mpicoll.mpi import library
from mpicoll.transport.steps import post

if TYPE_CHECKING:
    from mpicoll.mpi.library import Comm
    from mpicoll.transport.progress import Steps

_INLINE = 8192
_LONGEST_INLINE_HEADER = 4096
_FIRST = _LONGEST_INLINE_HEADER + _INLINE  # bytes of the first MPI message at most
_ALIGNMENT = 16  # of the elements behind a header in the message: some vectorised copies ask for it
# Tag of the elements (0 where they follow at once), their bytes, number of dimensions, length of the dtype's name, 1
# for torch; behind it the dimensions and the name.
_FIXED = struct.Struct("<iqHHB")


@dataclass(frozen=True, slots=True)
class Tags:
    """How the tags of a communicator are divided.

    Attributes:
        users: Tags below this are the user's.
        first: From here on are those of elements that follow their header, `count` of them, used in turn.
        count: How many those are.
        exchange: The tag of the messages inside collectives.
        objects: The tag of objects.
        monitor: The tag of monitored barriers.
    """

    users: int
    first: int
    count: int
    exchange: int
    objects: int
    monitor: int


def divide_tags(upper_bound: int) -> Tags:
    """Divide the tags up to MPI_TAG_UB, which is at least 32,767.

    >>> divide_tags(32767)
    Tags(users=16384, first=16384, count=16381, exchange=32767, objects=32766, monitor=32765)
    """
    count = min((upper_bound + 1) // 2, 1 << 20)
    first = upper_bound + 1 - count
    return Tags(first, first, count - 3, *range(upper_bound, upper_bound - 3, -1))


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A message to be sent or received.

    Attributes:
        mailbox: Where it goes through.
        rank: The other side's rank, None for any.
        sends: Whether this rank sends it.
        steps: What there is to do.
    """

    mailbox: Mailbox
    rank: int | None
    sends: bool
    steps: Steps

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Around the time in which somebody waits for it, which `waits` tells."""
        waits.add(self)
        try:
            yield
        finally:
            waits.discard(self)


# The messages that somebody waits for.
waits: set[Message] = set()


class Mailbox:
    """The messages of one communicator."""

    def __init__(self, comm: Comm, limit: int) -> None:
        self.comm = comm
        self.limit = limit
        self.tags = divide_tags(library.tag_upper_bound())
        self._next = itertools.count()
        self._to_itself = _ToItself(comm.Get_rank(), comm.Get_size())

    def check_tag(self, tag: int) -> None:
        """Refuse a tag that is not the user's to take."""
        try:
            number = operator.index(tag)
        except TypeError:
            number = -1
        if not 0 <= number < self.tags.users:
            raise ArgumentError(mismatch("tag", f"an integer from 0 to {self.tags.users - 1}", repr(tag)))

    def send(self, array: Array, rank: int, tag: int, blocking: bool = False) -> Message:
        """Send an array's elements to a rank of the communicator.

        Raises:
            ArgumentError: Nothing but this call could end it: a `blocking` one to this rank, which awaits no message.
        """
        self._to_itself.send(rank, tag, blocking)
        return Message(self, rank, True, self._send(array, rank, tag))

    def _send(self, array: Array, rank: int, tag: int) -> Steps:
        header = _pack_header(array, 0)
        if array.nbytes <= _INLINE and len(header) <= _LONGEST_INLINE_HEADER:
            message = np.empty(len(header) + array.nbytes, np.uint8)
            message[: len(header)] = np.frombuffer(header, np.uint8)
            if array.nbytes:
                array.read_into(message[len(header) :].view(array.dtype.carrier))
            yield [self.comm.Isend([message, message.size, library.MPI.BYTE], rank, tag)]
            return None
        elements_tag = self.tags.first + next(self._next) % self.tags.count
        message = np.frombuffer(_pack_header(array, elements_tag), np.uint8)
        region = region_of(array) if array.contiguous else scratch(array.nbytes)
        if not array.contiguous:
            layout.pack(array, region)
        yield [
            self.comm.Isend([message, message.size, library.MPI.BYTE], rank, tag),
            post(self.comm.Isend, region, rank, elements_tag, self.limit),
        ]
        return None

    def receive(self, accept: Callable[[Header], Array], rank: int | None, tag: int, blocking: bool = False) -> Message:
        """Receive from a rank, or from any, the array that `accept` gives for the header. Returns the rank.

        What `accept` raises is raised when the message's elements have been taken in, so that the next message can
        come.

        Raises:
            ArgumentError: A `blocking` receive from this rank alone, which has sent nothing that is still to be taken.
        """
        self._to_itself.receive(rank, tag, blocking)
        return Message(self, rank, False, self._receive(accept, rank, tag))

    def _receive(self, accept: Callable[[Header], Array], rank: int | None, tag: int) -> Steps:
        message = np.empty(_FIRST, np.uint8)
        any_rank = library.MPI.ANY_SOURCE if rank is None else rank
        statuses = yield [self.comm.Irecv([message, message.size, library.MPI.BYTE], any_rank, tag)]
        source = int(statuses[0].Get_source())
        if rank is None:
            self._to_itself.taken(source, tag)
        header, start = _unpack_header(message)
        try:
            array: Array | None = accept(header)
            error: Exception | None = None
        except Exception as refusal:
            array, error = None, refusal
        if not header.elements_tag:
            if array is not None and array.nbytes:
                array.write_from(message[start : start + header.nbytes].view(array.dtype.carrier))
        else:
            direct = array is not None and array.contiguous
            region = region_of(array) if array is not None and direct else scratch(header.nbytes)
            yield [post(self.comm.Irecv, region, source, header.elements_tag, self.limit)]
            if array is not None and not direct:
                layout.unpack(region, array)
        if error is not None:
            raise error
        return source


class _ToItself:
    """Knows which messages of this rank to itself have both ends, so that a blocking call without the other is no hang.

    For each tag it counts the receives that may take a message of this rank's own, less the messages that it has sent
    to itself: MPI gives them to one another in order. They are counted as the calls come in, in program order.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._alone = size == 1
        self._lock = threading.Lock()
        self._awaited: dict[int, int] = {}

    def send(self, rank: int, tag: int, blocking: bool) -> None:
        """A message goes to a rank."""
        if rank == self._rank and not self._count(tag, -1, must_meet=blocking):
            expected = "another rank, or this one with a receive posted before"
            raise ArgumentError(mismatch("dst", expected, f"{rank}, this rank itself, which awaits none", "Use isend"))

    def receive(self, rank: int | None, tag: int, blocking: bool) -> None:
        """A receive is posted, for messages of one rank or of any."""
        only_own = rank == self._rank or self._alone
        if (only_own or rank is None) and not self._count(tag, 1, must_meet=blocking and only_own):
            expected = "another rank, or this one with a message sent before"
            got = f"{self._rank}, this rank itself, which has sent none"
            raise ArgumentError(mismatch("src", expected, got, "Use irecv"))

    def taken(self, source: int, tag: int) -> None:
        """A receive from any rank has taken a message."""
        if source != self._rank:
            self._count(tag, -1)

    def _count(self, tag: int, change: int, must_meet: bool = False) -> bool:
        """Count one in. Returns whether it meets another one, if it must; else it is not counted."""
        with self._lock:
            balance = self._awaited.get(tag, 0)
            if must_meet and balance * change >= 0:
                return False
            self._awaited[tag] = balance + change
            if not self._awaited[tag]:
                del self._awaited[tag]
            return True


@dataclass(frozen=True, slots=True)
class Header:
    """What a message tells before its elements."""

    elements_tag: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    torch: bool

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def fits(self, array: Array) -> Array:
        """`array`, if the elements can go there."""
        if self.dtype != array.dtype.name or self.nbytes != array.nbytes:
            raise MessageError(
                mismatch("message", array, self, "Receive into a tensor like the one that was sent, or use recv_tensor")
            )
        return array

    def new_array(self) -> Any:
        """A new tensor or numpy array for the elements."""
        try:
            if self.torch and importlib.util.find_spec("torch") is not None:
                import torch

                if hasattr(torch, self.dtype):
                    return torch.empty(self.shape, dtype=getattr(torch, self.dtype))
            return np.empty(self.shape, _numpy_dtype(self.dtype))
        except (AttributeError, ImportError, SyntaxError, TypeError, ValueError) as error:
            remedy = "Receive with recv into an array like the one that was sent"
            raise MessageError(mismatch("message", "a dtype that can be made here", self, remedy)) from error


def _is_torchs(array: Array) -> bool:
    # A DLPack object does not tell where it comes from: torch alone has the dtypes that numpy lacks.
    return array.kind == "torch" or (array.kind == "dlpack" and not array.dtype.in_numpy)


def _pack_header(array: Array, elements_tag: int) -> bytes:
    name, shape = array.dtype.name.encode(), tuple(array.shape)
    length, most = _FIXED.size + 8 * len(shape) + len(name), _FIRST - _ALIGNMENT
    if length > most:
        raise DTypeError(mismatch("description of dtype and shape", f"at most {most} bytes", length))
    fixed = _FIXED.pack(elements_tag, array.nbytes, len(shape), len(name), _is_torchs(array))
    header = fixed + struct.pack(f"<{len(shape)}q", *shape) + name
    return header + bytes(-len(header) % _ALIGNMENT)


def _unpack_header(message: np.ndarray[Any, Any]) -> tuple[Header, int]:
    """The header, and where it ends."""
    elements_tag, nbytes, dimensions, length, torch = _FIXED.unpack_from(message.data)
    shape = struct.unpack_from(f"<{dimensions}q", message.data, _FIXED.size)
    start = _FIXED.size + 8 * dimensions
    name = message[start : start + length].tobytes().decode()
    end = start + length
    return Header(elements_tag, nbytes, name, shape, bool(torch)), end + -end % _ALIGNMENT


@lru_cache(maxsize=256)
def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name.startswith(("[", "{")):  # a structured dtype
        parsed: np.dtype[Any] = np.dtype(ast.literal_eval(name))
        return parsed
    try:
        return np.dtype(name)
    except TypeError:  # numpy learns of the small floats when ml_dtypes is imported, which the sender has done
        importlib.import_module("ml_dtypes")
        return np.dtype(name)
