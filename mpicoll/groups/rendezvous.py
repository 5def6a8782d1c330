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
from mpicoll.transport.polling import wait_until

if TYPE_CHECKING:
    from mpicoll.mpi.library import Comm

Address = tuple[str, int]
# What a rank tells rank 0.
_RING, _LEAVE = range(2)
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

    On rank 0 a thread looks for such messages, until the world has ended on every rank: one may be ahead of the others.
    Where MPI may not be called from a thread of ours, there is no doorbell: see `works`.
    """

    def __init__(self, here: world.World, open_server: Callable[[str], Address]) -> None:
        self._comm = here.default.private
        self._tag = here.default.mailbox.tags.doorbell
        self._call = here.context.progress.call
        self._host = places.host_name(here.local_size == here.default.size())
        self._open_server = open_server
        self._opened: Address | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="mpicoll doorbell", daemon=True)
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
        self._call(lambda: self._comm.send(_RING, 0, self._tag))
        answers: list[Address | str] = []

        def answered() -> bool:
            found = self._call(self._receive)
            if found is not None:
                answers.append(found)
            return bool(answers)

        if not wait_until(answered, timeout):
            raise RuntimeError(f"rank 0 did not open a store within {timeout:g} s")
        if isinstance(answers[0], str):
            raise RuntimeError(f"rank 0 could not open a store: {answers[0]}")
        return answers[0]

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

    def _serve(self) -> None:
        present = self._comm.Get_size() - 1
        while present:
            message = self._call(self._next)
            if message is None:
                time.sleep(_LOOK)
            elif message[1] == _LEAVE:
                present -= 1
            else:
                self._answer(message[0])

    def _next(self) -> tuple[int, int] | None:
        status = library.MPI.Status()
        found = self._comm.improbe(library.MPI.ANY_SOURCE, self._tag, status)
        return None if found is None else (status.Get_source(), found.recv())

    def _answer(self, rank: int) -> None:
        try:
            answer: Address | str = self._open()
        except Exception as error:
            answer = str(error)
        self._call(partial(self._comm.send, answer, rank, self._tag))

    def close(self) -> None:
        """The world ends on this rank. On rank 0 it ends last."""
        if self._comm.Get_rank() != 0:
            self._call(lambda: self._comm.send(_LEAVE, 0, self._tag))
        elif self._thread.is_alive():
            self._thread.join()
