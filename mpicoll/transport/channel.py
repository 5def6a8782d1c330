"""Small messages between the ranks of a world, beside all groups: they are answered while other threads sit in MPI.

A thread of every rank looks for them twenty times a second, on a communicator of their own. A look takes a few
microseconds. A channel stays until the process ends: after the world that it was made for is destroyed, other ranks may
still have something to ask, and a later world of the same ranks uses it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpicoll.mpi import library

if TYPE_CHECKING:
    from mpicoll.mpi.library import Comm, Request

# Seconds between two looks.
_LOOK = 0.05
# What messages are about: a rank asks for a server, is told where it listens, leaves.
ASKS, IS_TOLD, LEAVES = range(3)
_KINDS = 3
# Worlds are numbered up to this, so that a tag can hold the number and the kind.
_MOST = 4096


class Channel:
    """The messages of some ranks, where MPI may be called from any thread.

    Attributes:
        rank: This rank among them.
        size: How many they are.
        watch: Called at every look.
    """

    def __init__(self, comm: Comm) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.watch: Callable[[], None] = lambda: None
        self._comm = comm
        self._world = 0  # how many there have been of these ranks
        self._handlers: dict[int, Callable[[int, Any], None]] = {}  # by tag
        self._early: list[tuple[int, int, Any]] = []  # messages that came before there was a handler
        self._sent: list[Request] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="mpicoll channel", daemon=True)
        if self.size > 1:
            self._thread.start()

    def begin_world(self) -> None:
        """Begin a new world of the same ranks: what is handled and sent from now on is of this one."""
        self._world = (self._world + 1) % _MOST
        self._handlers.clear()

    def handle(self, kind: int, handler: Callable[[int, Any], None]) -> None:
        """Have messages of a kind handled, on the channel's thread, by a function of the sender and what it sent."""
        self._handlers[self._world * _KINDS + kind] = handler

    def send(self, rank: int, kind: int, what: Any) -> None:
        """Send a rank something small that can be pickled, without waiting for it."""
        sent = [*self._sent, self._comm.isend(what, rank, self._world * _KINDS + kind)]
        self._sent = [request for request in sent if not request.Test()]

    def start_barrier(self) -> Callable[[], bool]:
        """Tell all ranks that this one is here. Returns a function that tells whether all are."""
        return self._comm.Ibarrier().Test

    def is_over(self, comm: Comm) -> bool:
        """Whether its ranks are those of a communicator, in the same order."""
        return library.MPI.Comm.Compare(self._comm, comm) == library.MPI.CONGRUENT

    def _loop(self) -> None:
        while not self._ended.wait(_LOOK):
            messages, self._early = [*self._early, *iter(self._next, None)], []
            for message in messages:
                tag, rank, what = message
                if tag in self._handlers:
                    self._handlers[tag](rank, what)
                else:
                    self._early.append(message)
            self.watch()

    def _next(self) -> tuple[int, int, Any] | None:
        status = library.MPI.Status()
        message = self._comm.improbe(library.MPI.ANY_SOURCE, library.MPI.ANY_TAG, status)
        return None if message is None else (status.Get_tag(), status.Get_source(), message.recv())

    def end(self) -> None:
        """End the thread. What comes from now on stays where it is."""
        self._ended.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()


_channels: list[Channel] = []


def over(comm: Comm) -> Channel:
    """The channel of a communicator's ranks. Collective where they have none yet."""
    for channel in _channels:
        if channel.is_over(comm):
            return channel
    channel = Channel(comm.Dup())
    _channels.append(channel)
    return channel


def opened() -> list[Channel]:
    """The channels that there are."""
    return list(_channels)
