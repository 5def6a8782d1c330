"""The world: start and finish, who is who."""

from __future__ import annotations

from typing import Any

from mpicoll.api.entry import Group, entry
from mpicoll.errors import ArgumentError, mismatch
from mpicoll.groups import world
from mpicoll.groups.group import NotAMember, ProcessGroup
from mpicoll.guard import checks, departures, failures
from mpicoll.mpi import library
from mpicoll.transport.work import Timeout, seconds


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
    torch: bool | None = None,
) -> None:
    """Make the default group of all ranks, and start MPI unless it is running.

    Collective over `comm`. Needs no argument: rank and size are the communicator's. Sets ``RANK WORLD_SIZE LOCAL_RANK
    LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT`` in the environment where they are unset. From here on a rank that fails
    (an uncaught exception, ``sys.exit`` with a status, Ctrl-C) ends the job. torch.distributed is initialised with it.

    Args:
        backend: Any of torch's names, so that ported code runs; what carries the traffic is MPI.
        init_method: Not needed; MPI knows where the ranks are.
        timeout: How long a wait for a Work may take, as a timedelta or in seconds; 30 minutes by default.
        world_size: The size that the communicator must have, if given.
        rank: The rank that this process must have, if given.
        store: Not needed.
        group_name: Not needed.
        pg_options: Not needed.
        device_id: This rank's accelerator, as a torch.device with an index or as a number. It is kept for those who ask
            torch's groups for it, as `bound_device_id`.
        _ranks: Taken for the sake of torch's signature.
        comm: An mpi4py communicator to take in place of MPI.COMM_WORLD. It is duplicated.
        torch: Whether torch.distributed is initialised too, with the backend ``"mpicoll"``. None does so if torch is
            imported, before or after, and has no default group yet.

    Raises:
        ArgumentError: It has been called before, or torch.distributed's with this backend; a backend that torch does
            not know; not a communicator; a device that is not there; `torch` where torch.distributed has a default
            group.
        LaunchError: The environment says other than MPI: a world of size 1 under a launcher that started more,
            variables or arguments that disagree (on every rank, if on one), or a worker process.

    MPI_Init_thread, MPI_Comm_dup. Example:
        >>> import mpicoll as dist
        >>> dist.is_initialized()  # this example runs where init_process_group() has been called
        True
    """
    checks.names(backend)
    device = checks.bound_device(device_id)
    if world.second_door is not None:
        world.second_door.check(wanted=torch is True)
    opened = open_world(comm, timeout, rank, world_size, torch is not False)
    opened.default.bound_device_id = device
    if world.second_door is not None and torch is not False:
        world.second_door.open(wanted=torch is True)


def open_world(comm: Any, timeout: Timeout, rank: int, world_size: int, torch: bool) -> world.World:
    """What `init_process_group` does before it looks at torch; arguments as there."""
    if world.is_initialized():
        raise ArgumentError(
            "the default group: expected none yet, got a second call. Call destroy_process_group() before it"
        )
    limit = world.DEFAULT_TIMEOUT if timeout is None else seconds(timeout)
    library.start()
    failures.install()
    if comm is not None and (not isinstance(comm, library.MPI.Intracomm) or comm == library.MPI.COMM_NULL):
        raise ArgumentError(mismatch("comm", "an mpi4py intracommunicator", repr(comm)))
    opened = world.start_world(comm, limit, rank, world_size)
    opened.torch = torch
    departures.watch(opened)
    failures.watch_exit()  # runs before what the world does at exit, which waits for other ranks
    return opened


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
    try:
        pg = world.resolve(group, collective=False)
    except NotAMember:
        return  # every rank may go through the list of all subgroups
    if world.second_door is None or not world.second_door.close(pg):
        close_group(pg)


def close_group(pg: ProcessGroup) -> None:
    """What `destroy_process_group` does once torch knows of it."""
    here = world.current()
    if pg.engine is here.default.engine:
        world.end_world()
    else:
        here.free(pg)


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
    if world.is_unused_comm(group):
        return int(group.Get_rank())
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
    if world.is_unused_comm(group):
        return int(group.Get_size())
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
