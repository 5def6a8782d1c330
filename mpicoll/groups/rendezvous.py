"""How ranks without a socket between them find what one of them opens: by MPI.

torch's other backends meet at a store, a small server on one rank. Where it listens goes round by MPI, so that the
port can be whichever is free: two jobs on one host never collide.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from mpicoll.groups import places, world
from mpicoll.mpi import library
from mpicoll.transport.channel import ASKS, IS_TOLD, Channel

if TYPE_CHECKING:
    from mpicoll.mpi.library import Comm

Address = tuple[str, int]


def everybody() -> tuple[int, int]:
    """This process's rank and the number of processes: the default group's, or MPI's where there is none."""
    library.start()
    here = world.default_group()
    comm = library.MPI.COMM_WORLD if here is None else here.private
    return comm.Get_rank(), comm.Get_size()


def announce(open_server: Callable[[str], Address]) -> Address:
    """Open a server on rank 0 and tell all the others where. Every rank calls this.

    Args:
        open_server: Called on rank 0 with the name by which the others reach this host.
    """
    library.start()
    here = world.default_group()
    if here is not None:
        address: Address = here.engine.call(lambda: _announce(here.private, open_server))
        return address
    comm = library.MPI.COMM_WORLD.Dup()
    try:
        return _announce(comm, open_server)
    finally:
        comm.Free()


def _announce(comm: Comm, open_server: Callable[[str], Address]) -> Address:
    host = places.host_name(places.on_node(comm)[1] == comm.Get_size())
    address, error = None, None
    if comm.Get_rank() == 0:
        try:
            address = open_server(host)
        except Exception as failure:
            error = failure
    address, told = comm.bcast((address, None if error is None else str(error)), root=0)
    if error is not None:
        raise error
    if address is None:
        raise RuntimeError(f"rank 0 could not open a store: {told}")
    known: Address = address
    return known


class Doorbell:
    """Lets any rank of the default group ask rank 0 to open a server, at a time that rank 0 does not know of.

    Rank 0 answers for as long as it lives: another rank may ask when the world has ended there.
    """

    def __init__(self, here: world.World, channel: Channel, open_server: Callable[[str], Address]) -> None:
        self._channel = channel
        self._host = places.host_name(here.local_size == here.default.size())
        self._open_server = open_server
        self._opened: Address | None = None
        self._lock = threading.Lock()
        self._answers: queue.SimpleQueue[Address | str] = queue.SimpleQueue()
        if channel.rank == 0:
            channel.handle(ASKS, self._answer)
        else:
            channel.handle(IS_TOLD, lambda rank, answer: self._answers.put(answer))

    def ring(self, timeout: float) -> Address:
        """Where the server listens; rank 0 opens it at the first call of any rank.

        Raises:
            RuntimeError: Rank 0 could not open it, or did not answer within `timeout` seconds.
        """
        if self._channel.rank == 0:
            return self._open()
        self._channel.send(0, ASKS, None)
        try:
            answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise RuntimeError(f"rank 0 did not open a store within {timeout:g} s") from None
        if isinstance(answer, str):
            raise RuntimeError(f"rank 0 could not open a store: {answer}")
        return answer

    def _open(self) -> Address:
        with self._lock:
            if self._opened is None:
                self._opened = self._open_server(self._host)
            return self._opened

    def _answer(self, rank: int, asked: None) -> None:
        try:
            answer: Address | str = self._open()
        except Exception as error:
            answer = str(error)
        self._channel.send(rank, IS_TOLD, answer)
