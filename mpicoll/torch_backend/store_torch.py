"""torch's store, opened by MPI: at once for a backend that meets at it, on demand under mpicoll. Imports torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from torch._C._distributed_c10d import Store, TCPStore

from mpicoll.groups import places, rendezvous, world
from mpicoll.groups.rendezvous import Address, Doorbell
from mpicoll.guard import failures
from mpicoll.mpi import library

_TIMEOUT = timedelta(minutes=30)


class LazyStore(Store):
    """A store that no rank opens before one of them uses it: most programs never do.

    A job that uses mpicoll alone opens no listening socket so. A gloo group beside it, for instance, does.
    """

    # torch holds on to the C++ half of a store alone, which is nothing without this one; the group takes it.
    _latest: ClassVar[LazyStore | None] = None

    def __init__(self, timeout: timedelta = _TIMEOUT) -> None:
        super().__init__()
        LazyStore._latest = self
        self._timeout = timeout
        self._lock = threading.Lock()
        self._opened: Any = None
        self._server: TCPStore | None = None
        self._doorbell: Doorbell | None = None

    @classmethod
    def take(cls) -> LazyStore | None:
        """The store of the default group that is being made, if it has one of these. The caller keeps it alive."""
        store, cls._latest = cls._latest, None
        return store

    def attach(self, here: world.World) -> None:
        """Make it one that the ranks of the default group share. Collective where it has to be opened at once."""
        if here.channel is not None:
            self._doorbell = Doorbell(here, here.channel, self._open_server)
        else:
            self._opened = self._connect(rendezvous.announce(self._open_server))

    def _open_server(self, host: str) -> Address:
        self._server = _serve(host, self._timeout)
        return host, self._server.port

    def _connect(self, address: Address) -> TCPStore:
        return self._server or TCPStore(*address, is_master=False, timeout=self._timeout)

    def _store(self) -> Any:
        with self._lock:
            if self._opened is None:
                if self._doorbell is None:
                    raise RuntimeError("this store belongs to a process group that was never made")
                self._opened = self._connect(self._doorbell.ring(self._timeout.total_seconds()))
            return self._opened

    def set_timeout(self, timeout: timedelta) -> None:
        """How long a wait for a key may take."""
        self._timeout = timeout
        if self._opened is not None:
            self._opened.set_timeout(timeout)

    @property
    def timeout(self) -> timedelta:
        """How long a wait for a key may take."""
        return self._timeout


def _forward(name: str) -> None:
    def call(self: LazyStore, *args: Any) -> Any:
        return getattr(self._store(), name)(*args)

    call.__name__ = name
    call.__doc__ = f"As of ``torch.distributed.Store.{name}``; opens the store."
    setattr(LazyStore, name, call)


for _name in (
    *("set", "get", "add", "append", "check", "compare_set", "delete_key", "num_keys", "wait", "multi_get"),
    *("multi_set", "list_keys", "queue_len", "queue_pop", "queue_push", "clone", "has_extended_api"),
):
    if hasattr(Store, _name):
        _forward(_name)


def _serve(host: str, timeout: timedelta) -> TCPStore:
    # Port 0: the system chooses one that is free, and nobody else can take it between the choice and the use.
    return TCPStore(host, 0, is_master=True, timeout=timeout, wait_for_workers=False)


def meet(
    url: str, timeout: timedelta = _TIMEOUT, lazily: bool = False, comm: Any = None, **options: Any
) -> Iterator[tuple[Store, int, int]]:
    """The rendezvous of ``mpi://``: a store, and this process's rank and world size by MPI.

    A generator as ``torch.distributed.register_rendezvous_handler`` wants it.

    Args:
        url: ``mpi://``; behind it a rank and a world size if the user gave any.
        timeout: How long a wait for a key of the store may take.
        lazily: Whether the store is opened on demand.
        comm: The communicator whose ranks they are.
        options: Not needed.
    """
    over_comm = library.is_running() and isinstance(comm, library.MPI.Intracomm)  # what else it may be is told later
    rank, size = (comm.Get_rank(), comm.Get_size()) if over_comm else rendezvous.everybody()
    given = dict(parse_qsl(urlsplit(url).query))
    place = int(given.get("rank", rank)), int(given.get("world_size", size))
    if lazily:  # whoever makes the group checks the place
        yield LazyStore(timeout), *place
        return
    places.refuse_other_place(place, (rank, size), "rank and world_size", "Leave them out")
    failures.install()  # MPI is running from here on, where a rank that failed would wait for the others to end
    failures.watch_exit()
    server: list[TCPStore] = []

    def open_server(host: str) -> Address:
        server.append(_serve(host, timeout))
        return host, server[0].port

    address = rendezvous.announce(open_server)
    yield server[0] if server else TCPStore(*address, is_master=False, timeout=timeout), rank, size
