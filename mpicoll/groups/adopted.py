"""The groups that stand for communicators of the user's, given as ``group=``: each is kept with its communicator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpicoll.mpi import library

if TYPE_CHECKING:
    from mpicoll.groups.group import ProcessGroup
    from mpicoll.mpi.library import Comm
    from mpicoll.transport.engine import Engine


class Adopted:
    """Finds the group of a communicator by an attribute of the communicator's: a handle may be another's tomorrow.

    The attribute goes with the communicator, if the user frees that first, else with the group.
    """

    def __init__(self) -> None:
        self._key = library.MPI.Comm.Create_keyval(delete_fn=self._on_delete)
        self._comms: dict[Engine, Comm] = {}  # those with an attribute

    def find(self, comm: Comm) -> ProcessGroup | None:
        """The group that stands for a communicator, if there is one."""
        group: Any = comm.Get_attr(self._key)
        return None if group is None or group.closed else group

    def keep(self, group: ProcessGroup, comm: Comm) -> None:
        """Let a group stand for a communicator."""
        comm.Set_attr(self._key, group)
        self._comms[group.engine] = comm

    def _on_delete(self, comm: Any, key: int, group: ProcessGroup) -> None:
        self._comms.pop(group.engine, None)

    def forget(self, group: ProcessGroup) -> None:
        """A group has been destroyed: its communicator, which lives on, is not to hold on to it."""
        comm = self._comms.get(group.engine)
        if comm is not None:
            comm.Delete_attr(self._key)

    def close(self) -> None:
        """Take the attributes away from all communicators that there are."""
        for comm in list(self._comms.values()):
            comm.Delete_attr(self._key)
        library.MPI.Comm.Free_keyval(self._key)
