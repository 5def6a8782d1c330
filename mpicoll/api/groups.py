"""The world and its groups: start and finish, who is who, new groups."""

from __future__ import annotations

from typing import Any

from mpicoll.api.entry import Group, entry
from mpicoll.errors import ArgumentError, mismatch
from mpicoll.groups import world
from mpicoll.groups.group import GroupMember as _GroupMember
from mpicoll.groups.group import NotAMember, ProcessGroup
from mpicoll.guard import checks, failures
from mpicoll.mpi import library
from mpicoll.transport.work import Timeout, seconds

_BACKENDS = {"mpicoll", "mpi", "gloo", "nccl", "ucc", "xccl", "undefined"}


@entry
def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Timeout = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
    _ranks: list[int] | None = None,
    comm: Any = None,
) -> None:
    """Make the default group of all ranks, and start MPI unless it is running.

    Collective over `comm`. Needs no argument: rank and size are the communicator's. Sets ``RANK WORLD_SIZE LOCAL_RANK
    LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT`` in the environment where they are unset. From here on a rank that fails
    (an uncaught exception, ``sys.exit`` with a status, Ctrl-C) ends the job.

    Args:
        backend: Any of torch's names, so that ported code runs; what carries the traffic is MPI.
        init_method: Not needed; MPI knows where the ranks are.
        timeout: How long an operation may take, as a timedelta or in seconds; 30 minutes by default.
        world_size: The size that the communicator must have, if given.
        rank: The rank that this process must have, if given.
        store: Not needed.
        group_name: Not needed.
        pg_options: Not needed.
        device_id: Not needed.
        _ranks: Taken for the sake of torch's signature.
        comm: An mpi4py communicator to take in place of MPI.COMM_WORLD. It is duplicated.

    Raises:
        ArgumentError: It has been called before; a backend that torch does not know; not a communicator.
        LaunchError: The environment says other than MPI: a world of size 1 under a launcher that started more,
            variables or arguments that disagree (on every rank, if on one), or a worker process.

    MPI_Init_thread, MPI_Comm_dup. Example:
        >>> import mpicoll as dist
        >>> dist.is_initialized()  # this example runs where init_process_group() has been called
        True
    """
    if world.is_initialized():
        raise ArgumentError(
            "the default group: expected none yet, got a second call. Call destroy_process_group() before it"
        )
    _check_backend(backend)
    limit = world.DEFAULT_TIMEOUT if timeout is None else seconds(timeout)
    library.start()
    failures.install()
    if comm is not None and (not isinstance(comm, library.MPI.Intracomm) or comm == library.MPI.COMM_NULL):
        raise ArgumentError(mismatch("comm", "an mpi4py intracommunicator", repr(comm)))
    world.start_world(comm, limit, rank, world_size)


def _check_backend(backend: Any) -> None:
    # "nccl", or "cpu:gloo,cuda:nccl".
    names = {part.rpartition(":")[2].lower() for part in str(backend or "mpicoll").split(",")}
    if not names <= _BACKENDS:
        raise ArgumentError(
            mismatch("backend", f"one of {', '.join(sorted(_BACKENDS - {'undefined'}))}", repr(backend))
        )


@entry
def destroy_process_group(group: Group = None) -> None:
    """Wait for what is under way, and free a group; the default group with all others.

    Called by every member of the group. MPI itself goes on, and `init_process_group` may be called again.

    Args:
        group: The group; None is the default group.

    Raises:
        NotInitializedError: There is no default group, or the group has been destroyed before.

    MPI_Comm_free. Example:
        >>> import mpicoll as dist
        >>> pair = dist.new_group([0])
        >>> if dist.get_rank(pair) >= 0:
        ...     dist.destroy_process_group(pair)
    """
    pg = world.resolve(group, collective=False)
    if pg is world.default_group():
        world.end_world()
        failures.uninstall()
    else:
        world.current().free(pg)


def is_available() -> bool:
    """Whether the package can be used: always, as torch.distributed asks it of itself."""
    return True


def is_initialized() -> bool:
    """Whether there is a default group. Local."""
    return world.is_initialized()


@entry
def get_backend(group: Group = None) -> str:
    """The name of the backend, ``"mpicoll"``.

    Args:
        group: The group; None is the default group.

    Raises:
        ArgumentError: This rank is not in the group.
    """
    try:
        world.resolve(group, collective=False)
    except NotAMember:
        raise ArgumentError("group: expected one with this rank in it, got GroupMember.NON_GROUP_MEMBER") from None
    return "mpicoll"


@entry
def get_rank(group: Group = None) -> int:
    """This process's rank in a group, or -1 if it is not in it. Local.

    Args:
        group: The group; None is the default group.
    """
    try:
        return world.resolve(group, collective=False).rank()
    except NotAMember:
        return -1


@entry
def get_world_size(group: Group = None) -> int:
    """The number of ranks in a group, or -1 if this process is not in it. Local.

    Args:
        group: The group; None is the default group.
    """
    try:
        return world.resolve(group, collective=False).size()
    except NotAMember:
        return -1


@entry
def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """This rank among those that share memory with it. Local.

    Args:
        fallback_rank: What to return before `init_process_group`.

    MPI_Comm_split_type with MPI_COMM_TYPE_SHARED, whatever the launcher says.
    """
    if fallback_rank is not None and not world.is_initialized():
        return fallback_rank
    return world.current().local_rank


@entry
def get_local_world_size() -> int:
    """The number of ranks that share memory with this one, itself among them. Local."""
    return world.current().local_size


@entry
def get_pg_count() -> int:
    """The number of groups that this rank is in and that are not destroyed, the default group among them. Local."""
    return len(world.current().groups)


@entry
def local_device() -> Any:
    """The torch.device for this rank: the GPU of its local rank, counted round, or the CPU where there is none. Local.

    Example:
        >>> import mpicoll as dist, torch
        >>> torch.zeros(1, device=dist.local_device()).shape
        torch.Size([1])
    """
    import torch

    local_rank = world.current().local_rank
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, local_rank % torch.accelerator.device_count())


@entry
def get_group_rank(group: Group, global_rank: int) -> int:
    """The rank in a group of a global rank. Local.

    Raises:
        ArgumentError: The rank is not in the group.
    """
    return world.resolve(group, collective=False).group_rank(global_rank)


@entry
def get_global_rank(group: Group, group_rank: int) -> int:
    """The global rank of a rank in a group. Local.

    Raises:
        ArgumentError: The group has no such rank.
    """
    ranks = world.resolve(group, collective=False).ranks
    if not 0 <= group_rank < len(ranks):
        raise ArgumentError(mismatch("group_rank", f"a rank from 0 to {len(ranks) - 1}", group_rank))
    return ranks[group_rank]


@entry
def get_process_group_ranks(group: Group = None) -> list[int]:
    """The global ranks of a group, in the order of their ranks in it. Local."""
    return list(world.resolve(group, collective=False).ranks)


@entry
def new_group(
    ranks: Any = None,
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
    sort_ranks: bool = True,
    comm: Any = None,
) -> Any:
    """Make a group of some ranks.

    Collective over the default group; over the members alone with `use_local_synchronization` or `comm`.

    Args:
        ranks: Global ranks; None is all.
        timeout: How long an operation may take; the default group's by default.
        backend: As of `init_process_group`.
        pg_options: Not needed.
        use_local_synchronization: The members alone call this.
        group_desc: A name for error texts.
        device_id: Not needed.
        sort_ranks: Order the group by global rank, as torch does; else as `ranks` are given.
        comm: An mpi4py communicator whose ranks are to be the group, in its order, in place of `ranks`. It is
            duplicated, and ``group.comm`` is the communicator itself.

    Returns:
        A ProcessGroup; ``GroupMember.NON_GROUP_MEMBER`` on a rank that is not a member.

    Raises:
        ArgumentError: Ranks out of range or given twice, on every rank before anything is made; both `ranks` and
            `comm`.

    MPI_Comm_split, MPI_Comm_create_group, MPI_Comm_dup. Example:
        >>> import mpicoll as dist
        >>> first = dist.new_group([0])
        >>> dist.get_rank(first) == (0 if dist.get_rank() == 0 else -1)
        True
    """
    here = world.current()
    _check_backend(backend)
    limit = here.default.timeout if timeout is None else seconds(timeout)
    if comm is not None:
        if ranks is not None:
            raise ArgumentError("ranks and comm: expected one of them, got both. Leave one out")
        group = _adopt(here, comm, limit)
    else:
        listed = checks.group_ranks(range(here.default.size()) if ranks is None else ranks, here.default.size())
        ordered = sorted(listed) if sort_ranks else listed
        me = here.default.rank()
        if not use_local_synchronization:
            color, key = (0, ordered.index(me)) if me in ordered else (None, 0)
            group = here.split(here.default, color, key, ordered, limit)
        elif me in ordered:
            group = here.create(ordered, limit)
        else:
            group = _GroupMember.NON_GROUP_MEMBER
    if group_desc and isinstance(group, ProcessGroup):
        here.rename(group, group_desc)
    return group


def _adopt(here: world.World, comm: Any, limit: float) -> Any:
    if comm == library.MPI.COMM_NULL:
        return _GroupMember.NON_GROUP_MEMBER
    if not isinstance(comm, library.MPI.Intracomm):
        raise ArgumentError(mismatch("comm", "an mpi4py intracommunicator", repr(comm)))
    return here.adopt(comm, limit)


@entry
def split_group(
    parent_pg: Any = None,
    split_ranks: list[list[int]] | None = None,
    timeout: Timeout = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> Any:
    """Divide a group into several.

    Collective over the parent.

    Args:
        parent_pg: The group to divide; None is the default group.
        split_ranks: The parts: ranks in the parent, each in one part at most. A part is ordered as it is given.
        timeout: How long an operation may take; the parent's by default.
        pg_options: Not needed.
        group_desc: A name for error texts.
        backend: As of `init_process_group`.

    Returns:
        The part that this rank is in, or None.

    Raises:
        ArgumentError: No parts, an empty one, ranks out of range or in two parts.

    MPI_Comm_split. Example:
        >>> import mpicoll as dist
        >>> part = dist.split_group(split_ranks=[[r] for r in range(dist.get_world_size())])
        >>> part.size()
        1
    """
    here = world.current()
    parent = world.resolve(parent_pg)
    _check_backend(backend)
    parts = _check_parts(split_ranks, "split_ranks", parent.size())
    limit = parent.timeout if timeout is None else seconds(timeout)
    return _divide(here, parent, parts, limit, group_desc) or None


def _check_parts(parts: Any, name: str, size: int) -> list[list[int]]:
    if not parts:
        raise ArgumentError(mismatch(name, "a list of lists of ranks", repr(parts)))
    checked = [checks.group_ranks(part, size) for part in parts]
    checks.group_ranks([rank for part in checked for rank in part], size)  # each rank once in all
    return checked


def _divide(here: world.World, parent: ProcessGroup, parts: list[list[int]], limit: float, name: str | None) -> Any:
    """The part that this rank is in, by one split of the parent; None where it is in none."""
    color = next((i for i, part in enumerate(parts) if parent.rank() in part), None)
    if color is None:
        here.split(parent, None, 0, (), limit)
        return None
    ranks = [parent.ranks[rank] for rank in parts[color]]
    group = here.split(parent, color, parts[color].index(parent.rank()), ranks, limit)
    if name:
        here.rename(group, name)
    return group


@entry
def new_subgroups(
    group_size: int | None = None,
    group: Group = None,
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Divide a group into parts of equal size, of ranks that follow one another.

    Collective over the group.

    Args:
        group_size: The ranks of a part; the ranks of a node by default.
        group: The group to divide; None is the default group.
        timeout: How long an operation may take; the group's by default.
        backend: As of `init_process_group`.
        pg_options: Not needed.
        group_desc: A name for error texts.

    Returns:
        The part that this rank is in, and the list of all parts, which holds ``GroupMember.NON_GROUP_MEMBER`` for those
        that it is not in.

    Raises:
        ArgumentError: A size below 1, above the group's, or that does not divide it.

    MPI_Comm_split. Example:
        >>> import mpicoll as dist
        >>> mine, parts = dist.new_subgroups(1)
        >>> mine.size(), len(parts) == dist.get_world_size()
        (1, True)
    """
    here = world.current()
    parent = world.resolve(group)
    size = here.local_size if group_size is None else group_size
    if not isinstance(size, int) or not 1 <= size <= parent.size() or parent.size() % size:
        raise ArgumentError(mismatch("group_size", f"a divisor of the group's size {parent.size()}", size))
    parts = [list(range(first, first + size)) for first in range(0, parent.size(), size)]
    return _subgroups(here, parent, parts, timeout, backend, group_desc)


@entry
def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: list[list[int]],
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Divide the default group into parts that are given.

    Collective over the default group.

    Args:
        ranks_per_subgroup_list: The parts: global ranks, each in one part at most.
        timeout: How long an operation may take; the default group's by default.
        backend: As of `init_process_group`.
        pg_options: Not needed.
        group_desc: A name for error texts.

    Returns:
        The part that this rank is in (None if in none), and the list of all parts, which holds
        ``GroupMember.NON_GROUP_MEMBER`` for those that it is not in.

    Raises:
        ArgumentError: No parts, an empty one, ranks out of range or in two parts.

    MPI_Comm_split. Example:
        >>> import mpicoll as dist
        >>> mine, parts = dist.new_subgroups_by_enumeration([[r] for r in range(dist.get_world_size())])
        >>> mine.size(), len(parts) == dist.get_world_size()
        (1, True)
    """
    here = world.current()
    parts = [
        sorted(part) for part in _check_parts(ranks_per_subgroup_list, "ranks_per_subgroup_list", here.default.size())
    ]
    return _subgroups(here, here.default, parts, timeout, backend, group_desc)


def _subgroups(
    here: world.World, parent: ProcessGroup, parts: list[list[int]], timeout: Timeout, backend: Any, name: str | None
) -> tuple[Any, list[Any]]:
    _check_backend(backend)
    mine = _divide(here, parent, parts, parent.timeout if timeout is None else seconds(timeout), name)
    return mine, [mine if parent.rank() in part else _GroupMember.NON_GROUP_MEMBER for part in parts]


class _WithWorld(type):
    """Gives a class an attribute WORLD, the default group as it is now."""

    @property
    def WORLD(cls) -> ProcessGroup | None:
        """The default group, or None before `init_process_group`."""
        return world.default_group()


class GroupMember(_GroupMember, metaclass=_WithWorld):
    """What stands for a group.

    Attributes:
        WORLD: The default group, or None before `init_process_group`.
        NON_GROUP_MEMBER: What `new_group` returns to a rank that is not a member.
    """


class group(metaclass=_WithWorld):
    """What stands for a group.

    Attributes:
        WORLD: The default group, or None before `init_process_group`.
    """
