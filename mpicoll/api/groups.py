"""The groups: new ones, and who is who in them."""

from __future__ import annotations

from typing import Any

from mpicoll.api.entry import Group, entry
from mpicoll.errors import ArgumentError, mismatch
from mpicoll.groups import world
from mpicoll.groups.group import GroupMember as _GroupMember
from mpicoll.groups.group import ProcessGroup
from mpicoll.guard import checks
from mpicoll.mpi import library
from mpicoll.transport.work import Timeout, seconds


@entry
def get_group_rank(group: Group, global_rank: int) -> int:
    """The rank in a group of a global rank. Local.

    Raises:
        ArgumentError: The rank is not in the group.
    """
    return world.resolve(group, collective=False).group_rank(checks.whole(global_rank, "global_rank"))


@entry
def get_global_rank(group: Group, group_rank: int) -> int:
    """The global rank of a rank in a group. Local.

    Raises:
        ArgumentError: The group has no such rank.
    """
    pg = world.resolve(group, collective=False)
    return pg.ranks[checks.within(pg, group_rank, "group_rank")]


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
        timeout: How long a wait for a Work may take; the default group's by default.
        backend: As of `init_process_group`.
        pg_options: Not needed.
        use_local_synchronization: The members alone call this.
        group_desc: A name for error texts.
        device_id: As of `init_process_group`; the default group's by default, and no other if that has one.
        sort_ranks: Order the group by global rank, as torch does; else as `ranks` are given.
        comm: An mpi4py communicator whose ranks are to be the group, in its order, in place of `ranks`. It is
            duplicated, and ``group.comm`` is the communicator itself.

    Returns:
        A ProcessGroup; ``GroupMember.NON_GROUP_MEMBER`` on a rank that is not a member.

    Raises:
        ArgumentError: Ranks out of range or given twice, on every rank before anything is made; both `ranks` and
            `comm`; a device that is not there, or not the default group's.

    MPI_Comm_split, MPI_Comm_create_group, MPI_Comm_dup. Example:
        >>> import mpicoll as dist
        >>> first = dist.new_group([0])
        >>> dist.get_rank(first) == (0 if dist.get_rank() == 0 else -1)
        True
    """
    here = world.current()
    checks.names(backend, group_desc)
    device = checks.same_device(device_id, here.default)
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
    if isinstance(group, ProcessGroup):
        group.bound_device_id = device or group.bound_device_id
        if group_desc:
            here.rename(group, group_desc)
        here.announce(group)
    return group


def _adopt(here: world.World, comm: Any, limit: float) -> Any:
    if isinstance(comm, library.MPI.Comm) and comm == library.MPI.COMM_NULL:
        return _GroupMember.NON_GROUP_MEMBER
    if not isinstance(comm, library.MPI.Intracomm):
        raise ArgumentError(mismatch("comm", "an mpi4py intracommunicator", repr(comm)))
    return here.context.progress.call(lambda: here.adopt(comm, limit))


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
        timeout: How long a wait for a Work may take; the parent's by default.
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
    checks.names(backend, group_desc)
    parts = _check_parts(split_ranks, "split_ranks", parent.size())
    limit = parent.timeout if timeout is None else seconds(timeout)
    return _divide(here, parent, parts, limit, group_desc) or None


def _check_parts(parts: Any, name: str, size: int) -> list[list[int]]:
    try:
        listed = list(parts)
    except TypeError:
        listed = []
    if not listed:
        raise ArgumentError(mismatch(name, "a list of lists of ranks", repr(parts)))
    checked = [checks.group_ranks(part, size) for part in listed]
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
    here.announce(group)
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
        timeout: How long a wait for a Work may take; the group's by default.
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
        timeout: How long a wait for a Work may take; the default group's by default.
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
    checks.names(backend, name)
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
