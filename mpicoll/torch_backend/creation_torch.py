"""How groups come to be at the second door, and how torch learns of those of the first. Imports torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import _register_process_group
from torch.distributed import distributed_c10d

from mpicoll.api.world import open_world
from mpicoll.errors import ArgumentError, NotInitializedError, mismatch
from mpicoll.groups import places, world
from mpicoll.groups.group import ProcessGroup
from mpicoll.guard import checks
from mpicoll.mpi import library
from mpicoll.torch_backend import NAME, hooks_torch
from mpicoll.torch_backend.group_torch import TorchGroup
from mpicoll.torch_backend.store_torch import LazyStore
from mpicoll.transport.work import seconds

# sys.excepthook without what torch has put around it for a default group of ours.
_excepthook: Callable[..., Any] | None = None

hooks_torch.replace_compression()  # here, since this module is imported with the first group


def make_group(options: Any, comm: Any) -> TorchGroup:
    """What torch calls for a group with this backend: for the default group on all ranks, else on its members.

    Args:
        options: torch's: store, rank, size, global ranks (none for the default group) and time-out.
        comm: ``pg_options`` of ``init_process_group`` or ``new_group``: an mpi4py communicator, or None.

    MPI_Comm_dup, MPI_Comm_create_group.
    """
    store = LazyStore.take()  # also where the group comes to nothing: it is none for the next one
    if comm is not None and not (library.is_running() and isinstance(comm, library.MPI.Intracomm)):
        raise ArgumentError(mismatch("pg_options", "an mpi4py communicator or None", repr(comm)))
    _tidy_tags()
    ranks = list(options.global_ranks_in_group)
    group = _make_subgroup(ranks, options, comm) if ranks else _make_default(options, comm, store)
    group._torch_store = options.store
    return group


def _make_default(options: Any, comm: Any, store: LazyStore | None) -> TorchGroup:
    rank, size = options.group_rank, options.group_size
    if not world.is_initialized():
        open_world(comm, options.timeout, rank, size, True)
    here = world.current()
    default = here.default
    if comm is not None and not _same_ranks(comm, default.comm):
        raise ArgumentError("pg_options: expected the communicator of mpicoll's default group, got one of other ranks")
    places.refuse_other_place((rank, size), (default.rank(), default.size()), "rank and world_size", "Leave them out")
    here.promote(TorchGroup)
    here.announce = _announce
    group = here.default
    assert isinstance(group, TorchGroup)
    group._lazy_store = store
    if store is not None:
        store.attach(here)
    _tidy_excepthook()
    return group


def _tidy_excepthook() -> None:
    # torch puts a hook around the one there is with each default group and takes none off: a few hundred lives later
    # they would be too deep to call.
    global _excepthook
    if _excepthook is not None and getattr(sys.excepthook, "__name__", "") == "_distributed_excepthook":
        sys.excepthook = _excepthook
    _excepthook = sys.excepthook


def _tidy_tags() -> None:
    # torch leaves an empty list behind for each group that it destroys.
    tags = distributed_c10d._world.tags_to_pg
    for tag in [tag for tag, groups in tags.items() if not groups]:
        del tags[tag]


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
    places.refuse_other_place(
        (torchs.rank(), torchs.size()),
        (here.default.rank(), here.default.size()),
        "rank and size of torch's default group",
        'Use init_method="mpi://"',
    )
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
    _tidy_tags()
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
