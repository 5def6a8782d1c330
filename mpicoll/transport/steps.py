"""The steps that an operation is made of: a list which every rank of the group carries out in order.

Each step can be run (MPI's blocking call) or started (its non-blocking twin). The two do not match each other across
ranks, so a job uses one kind throughout: it runs steps where MPI may be called from any thread, and starts them where
one thread makes all the calls and must not block in one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mpicoll.data.layout import Region
from mpicoll.errors import CollectiveTimeoutError, MessageError, mismatch
from mpicoll.mpi import library
from mpicoll.transport.polling import wait_until

if TYPE_CHECKING:
    from mpicoll.mpi.library import Comm, Request, Status


class Step(Protocol):
    """One step of an operation."""

    def run(self, comm: Comm) -> None:
        """Carry the step out."""

    def start(self, comm: Comm) -> list[Request]:
        """Start the step; it is done when the requests are, and `finish` has been called."""

    def finish(self, statuses: Sequence[Status]) -> None:
        """What remains to be done when the requests of `start` are done, with these statuses."""


class Call:
    """A collective call of MPI's, by its name in mpi4py."""

    __slots__ = ("arguments", "name")

    def __init__(self, name: str, *arguments: Any) -> None:
        self.name = name
        self.arguments = arguments

    def run(self, comm: Comm) -> None:
        """Call it."""
        getattr(comm, self.name)(*self.arguments)

    def start(self, comm: Comm) -> list[Request]:
        """Call its non-blocking twin."""
        return [getattr(comm, f"I{self.name.lower()}")(*self.arguments)]

    def finish(self, statuses: Sequence[Status]) -> None:
        """Nothing remains."""


class Barrier:
    """A barrier with a time-out. It is always the non-blocking call, to match that of the other ranks.

    One that has timed out is left under way.
    """

    __slots__ = ("limit",)

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def run(self, comm: Comm) -> None:
        """Wait for the other ranks, for `limit` seconds at most."""
        if not wait_until(comm.Ibarrier().Test, self.limit):
            raise CollectiveTimeoutError(
                f"Timed out after {self.limit:g} s: expected all ranks, got fewer. Call monitored_barrier() to"
                " learn which ranks do not come"
            )

    def start(self, comm: Comm) -> list[Request]:
        """Start to wait."""
        return [comm.Ibarrier()]

    def finish(self, statuses: Sequence[Status]) -> None:
        """Nothing remains."""


class Local:
    """Something to do on this rank alone: packing, unpacking, converting."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action = action

    def run(self, comm: Comm) -> None:
        """Do it."""
        self.action()

    def start(self, comm: Comm) -> list[Request]:
        """Do it."""
        self.action()
        return []

    def finish(self, statuses: Sequence[Status]) -> None:
        """Nothing remains."""


class Exchange:
    """Blocks sent to and received from ranks of the communicator, all at once.

    It takes the place of MPI's Gatherv, Scatterv and Alltoallv: there no rank knows all the sizes, so the ranks could
    not agree on another algorithm once one of them has a block beyond MPI's largest count. Here a block is a message of
    its own.
    """

    __slots__ = ("limit", "receives", "sends", "tag")

    def __init__(
        self, tag: int, limit: int, sends: Sequence[tuple[int, Region]], receives: Sequence[tuple[int, Region]]
    ) -> None:
        self.tag = tag
        self.limit = limit
        # Empty blocks too: where two ranks disagree on one, a message left behind would be taken for a later one.
        self.sends = sends
        self.receives = receives

    def run(self, comm: Comm) -> None:
        """Exchange the blocks."""
        requests = self.start(comm)
        statuses = [library.MPI.Status() for _ in requests]
        library.MPI.Request.Waitall(requests, statuses)
        self.finish(statuses)

    def start(self, comm: Comm) -> list[Request]:
        """Post the receives, then the sends."""
        requests = [post(comm.Irecv, block, rank, self.tag, self.limit) for rank, block in self.receives]
        return requests + [post(comm.Isend, block, rank, self.tag, self.limit) for rank, block in self.sends]

    def finish(self, statuses: Sequence[Status]) -> None:
        """See that each block had the size that was expected of it."""
        for (rank, block), status in zip(self.receives, statuses, strict=False):
            got = status.Get_elements(library.MPI.BYTE)
            if got != block.nbytes:
                raise MessageError(mismatch(f"block from rank {rank}", f"{block.nbytes} bytes", f"{got} bytes"))


def post(method: Callable[..., Request], region: Region, rank: int, tag: int, limit: int) -> Request:
    """Send or receive (`method` is Isend or Irecv of a communicator) a region as one message, whatever its size.

    Above `limit` bytes it travels as one element of a datatype made of blocks: a message is then never cut in two,
    which receives from any source could not put together again.
    """
    mpi = library.MPI
    if region.nbytes <= limit:
        return method([region.buffer(), region.nbytes, mpi.BYTE], rank, tag)
    blocks, rest = divmod(region.nbytes, limit)
    block = mpi.BYTE.Create_contiguous(limit)
    whole = mpi.Datatype.Create_struct([blocks, rest], [0, blocks * limit], [block, mpi.BYTE]).Commit()
    block.Free()
    try:
        return method([region.buffer(), 1, whole], rank, tag)
    finally:
        whole.Free()  # MPI keeps it until the message is done
