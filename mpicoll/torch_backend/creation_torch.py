"""How groups come to be at the second door, and how torch learns of those of the first. Imports torch."""

from __future__ import annotations

from typing import Any

from torch._C._distributed_c10d import _register_process_group
from torch.distributed import distributed_c10d

from mpicoll.api.world import open_world
from mpicoll.errors import ArgumentError, LaunchError, NotInitializedError, mismatch
from mpicoll.groups import world
from mpicoll.groups.group import ProcessGroup
from mpicoll.guard import checks
from mpicoll.mpi import library
from mpicoll.torch_backend.group_torch import TorchGroup
from mpicoll.torch_backend.registration import NAME
from mpicoll.torch_backend.store_torch import LazyStore
from mpicoll.transport.work import seconds


def make_group(options: Any, comm: Any) -> TorchGroup:
    """What torch calls for a group with this backend: for the default group on all ranks, else on its members.

    Args:
        options: torch's: store, rank, size, global ranks (none for the default group) and time-out.
        comm: ``pg_options`` of ``init_process_group`` or ``new_group``: an mpi4py communicator, or None.

    MPI_Comm_dup, MPI_Comm_create_group.
    """
    if comm is not None and not (library.is_running() and isinstance(comm, library.MPI.Intracomm)):
        raise ArgumentError(mismatch("pg_options", "an mpi4py communicator or None", repr(comm)))
    ranks = list(options.global_ranks_in_group)
    group = _make_subgroup(ranks, options, comm) if ranks else _make_default(options, comm)
    group._torch_store = options.store
    return group


def _make_default(options: Any, comm: Any) -> TorchGroup:
    rank, size = options.group_rank, options.group_size
    if not world.is_initialized():
        open_world(comm, options.timeout, rank, size, True)
    here = world.current()
    if comm is not None and not _same_ranks(comm, here.default.comm):
        raise ArgumentError("pg_options: expected the communicator of mpicoll's default group, got one of other ranks")
    if (rank, size) != (here.default.rank(), here.default.size()):
        expected = f"{here.default.rank()} and {here.default.size()}, as MPI says"
        raise LaunchError(mismatch("rank and world_size", expected, f"{rank} and {size}", "Leave them out"))
    here.promote(TorchGroup)
    here.announce = _announce
    if LazyStore.latest is not None:
        LazyStore.latest.attach(here)
    default = here.default
    assert isinstance(default, TorchGroup)
    return default


def _same_ranks(comm: Any, other: Any) -> bool:
    return library.MPI.Comm.Compare(comm, other) in (library.MPI.IDENT, library.MPI.CONGRUENT)


def _make_subgroup(ranks: list[int], options: Any, comm: Any) -> TorchGroup:
    if not world.is_initialized():
        raise NotInitializedError(
            'a group of backend "mpicoll": expected mpicoll to be initialised, got a default group of another backend'
            " alone. Call mpicoll.init_process_group(torch=False) on every rank first"
        )
    here = world.current()
    checks.group_ranks(ranks, here.default.size())
    torchs = distributed_c10d._get_default_group()
    mpis = here.default.rank(), here.default.size()
    if (torchs.rank(), torchs.size()) != mpis:
        expected, got = f"{mpis[0]} and {mpis[1]}, as MPI says", f"{torchs.rank()} and {torchs.size()}"
        raise LaunchError(mismatch("rank and size of torch's default group", expected, got, 'Use init_method="mpi://"'))
    here.promote(TorchGroup)
    limit = seconds(options.timeout)
    if comm is None:
        group = here.create(ranks, limit)
    else:
        group = here.adopt(comm, limit)
        if group.ranks != tuple(ranks):
            here.free(group)
            raise ArgumentError(mismatch("ranks of pg_options", ranks, list(group.ranks)))
    assert isinstance(group, TorchGroup)
    return group


def _announce(group: ProcessGroup) -> None:
    """Write a group of the first door into torch's tables, as ``torch.distributed.new_group`` does."""
    assert isinstance(group, TorchGroup)
    tables = distributed_c10d._world
    name, store = f"{NAME}-{group.label}", tables.pg_map[distributed_c10d._get_default_group()][1]
    group._torch_store = store
    group._set_group_name(name)
    tables.pg_map[group] = (distributed_c10d.Backend(NAME), store)
    tables.pg_names[group] = name  # type: ignore[assignment]
    tables.pg_backend_config[group] = str(distributed_c10d.BackendConfig(distributed_c10d.Backend(NAME)))
    tables.pg_group_ranks[group] = {rank: index for index, rank in enumerate(group.ranks)}
    tables.tags_to_pg.setdefault(f"ptd:{name}", []).append(group)
    tables.pg_to_tag[group] = f"ptd:{name}"
    _register_process_group(name, group)  # type: ignore[arg-type]  # a NewType of str in new versions
