"""How ranks without a socket between them find what one of them opens: by MPI.

torch's other backends meet at a store, a small server on one rank. Where it listens goes round by MPI, so that the
port can be whichever is free: two jobs on one host never collide.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mpicoll.groups import places, world
from mpicoll.mpi import library

if TYPE_CHECKING:
    from mpicoll.mpi.library import Comm

Address = tuple[str, int]
# How often rank 0 looks whether somebody asks, in seconds. A look costs a few microseconds.
_LOOK = 0.02


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

    On rank 0 a thread looks for such messages, until the world ends. Where MPI may not be called from a thread of
    ours, there is no doorbell: see `works`.
    """

    def __init__(self, here: world.World, open_server: Callable[[str], Address]) -> None:
        self._comm = here.default.private
        self._tag = here.default.mailbox.tags.doorbell
        self._call = here.context.progress.call
        self._host = places.host_name(here.local_size == here.default.size())
        self._open_server = open_server
        self._opened: Address | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._answer, name="mpicoll doorbell", daemon=True)
        here.at_end.append(self.close)
        if here.default.rank() == 0 and here.default.size() > 1:
            self._thread.start()

    @staticmethod
    def works(here: world.World) -> bool:
        """Whether MPI may be called from a thread of its own."""
        return here.context.level >= library.LEVELS.index("SERIALIZED")

    def ring(self, timeout: float) -> Address:
        """Where the server listens; rank 0 opens it at the first call of any rank.

        Raises:
            RuntimeError: Rank 0 could not open it, or did not answer within `timeout` seconds.
        """
        if self._comm.Get_rank() == 0:
            return self._open()
        self._call(lambda: self._comm.send(None, 0, self._tag))
        deadline = time.monotonic() + timeout
        answer: Address | str | None = None
        while (answer := self._call(self._receive)) is None:
            if self._closing.wait(0.001) or time.monotonic() > deadline:
                raise RuntimeError(f"rank 0 did not open a store within {timeout:g} s: has it ended?")
        if isinstance(answer, str):
            raise RuntimeError(f"rank 0 could not open a store: {answer}")
        address: Address = answer
        return address

    def _receive(self) -> Address | str | None:
        message = self._comm.improbe(0, self._tag)
        if message is None:
            return None
        answer: Address | str = message.recv()
        return answer

    def _open(self) -> Address:
        with self._lock:
            if self._opened is None:
                self._opened = self._open_server(self._host)
            return self._opened

    def _answer(self) -> None:
        while not self._closing.wait(_LOOK):
            while (rank := self._call(self._asked)) is not None:
                try:
                    answer: Address | str = self._open()
                except Exception as error:
                    answer = str(error)
                self._call(partial(self._comm.send, answer, rank, self._tag))

    def _asked(self) -> int | None:
        status = library.MPI.Status()
        message = self._comm.improbe(library.MPI.ANY_SOURCE, self._tag, status)
        if message is None:
            return None
        message.recv()
        return int(status.Get_source())

    def close(self) -> None:
        """End the thread, before MPI ends."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
