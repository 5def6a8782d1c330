"""Where the ranks of a communicator are, and what torch.distributed's programs look for in the environment about it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from mpicoll.errors import LaunchError, mismatch
from mpicoll.mpi import launcher, library

if TYPE_CHECKING:
    from mpicoll.mpi.library import Comm


def on_node(private: Comm) -> tuple[int, int]:
    """This process's rank among those that share memory with it, and how many these are. Collective."""
    node = private.Split_type(library.MPI.COMM_TYPE_SHARED)
    place = node.Get_rank(), node.Get_size()
    node.Free()
    return place


def host_name(one_node: bool) -> str:
    """The name by which the other ranks reach this host."""
    return "127.0.0.1" if one_node else socket.gethostname()


def variables(private: Comm, local_rank: int, local_size: int) -> dict[str, str]:
    """What torch.distributed's programs look for in the environment. Nothing listens on the port; it was free."""
    rank, size = private.Get_rank(), private.Get_size()
    address = None
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        host = host_name(local_size == size)
        address = os.environ.get("MASTER_ADDR", host), os.environ.get("MASTER_PORT", str(port))
    address = private.bcast(address, root=0)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "MASTER_ADDR": address[0],
        "MASTER_PORT": address[1],
    }


def disagreement(variables: dict[str, str]) -> str | None:
    """What the environment says other than MPI, of ranks and sizes; None where they agree."""
    numbers = {name: int(value) for name, value in variables.items() if not name.startswith("MASTER")}
    return launcher.check_variables(os.environ, numbers)


def refuse_other_place(given: tuple[int, int], found: tuple[int, int], what: str, remedy: str) -> None:
    """Raise where a rank and a size are other than MPI's, `found`."""
    if given != found:
        expected = f"{found[0]} and {found[1]}, as MPI says"
        raise LaunchError(mismatch(what, expected, f"{given[0]} and {given[1]}", remedy))


def agree(private: Comm, problem: str | None) -> None:
    """Raise on every rank if one has a problem."""
    for rank, text in enumerate(private.allgather(problem)):
        if text is not None:
            raise LaunchError(problem or f"rank {rank} reports: {text}")
