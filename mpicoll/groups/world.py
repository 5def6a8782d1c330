"""The world: the default group and those made from it, and what they share.

There is at most one world at a time. It ends with ``destroy_process_group``, or with MPI, whichever comes first.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mpicoll.errors import ArgumentError, NotInitializedError, mismatch
from mpicoll.groups import places
from mpicoll.groups.adopted import Adopted
from mpicoll.groups.group import Context, GroupMember, NotAMember, ProcessGroup
from mpicoll.mpi import library
from mpicoll.transport import channel
from mpicoll.transport.progress import Progress

if TYPE_CHECKING:
    from mpicoll.mpi.library import Comm

DEFAULT_TIMEOUT = 1800.0


class World:
    """The groups of this process.

    Attributes:
        default: The group of all its ranks.
        groups: The groups that this rank is a member of and that are not yet destroyed, by name; `default` is the
            first.
        local_rank: This rank among those that share memory with it.
        local_size: How many those are.
        group_class: What its groups are. The second door puts a class in its place that torch takes.
        announce: Told of each group that is made here and not by the second door.
        torch: Whether torch.distributed is to be initialised with it.
        channel: Reaches the other ranks beside all groups; None where MPI may not be called from a thread of ours.
    """

    def __init__(self, base: Comm, timeout: float, rank: int, world_size: int) -> None:
        private = base.Dup()
        try:
            self.local_rank, self.local_size = places.on_node(private)
            self.variables = places.variables(private, self.local_rank, self.local_size)
            places.agree(private, self._find_problem(private, rank, world_size))
            level = private.allreduce(library.thread_level(), op=library.MPI.MIN)
            # The ranks must choose alike, and some launchers do not hand the environment on to other hosts.
            limit = private.allreduce(library.max_count(), op=library.MPI.MIN)
            wanted = os.environ.get("MPICOLL_DETERMINISTIC", "0") not in ("", "0")
            deterministic = private.allreduce(wanted, op=library.MPI.LOR)
            exclusive = level == library.LEVELS.index("SERIALIZED")
            self.context = Context(Progress(exclusive), level, limit, deterministic)
            free = level == library.LEVELS.index("MULTIPLE")
            self.channel = channel.over(private) if free else None
            if self.channel is not None:
                self.channel.begin_world()
        except BaseException:
            private.Free()
            raise
        self.group_class: type[ProcessGroup] = ProcessGroup
        self.announce: Callable[[ProcessGroup], None] = lambda group: None
        self.torch = False
        self._keys: Counter[int] = Counter()
        everybody = tuple(range(private.Get_size()))
        self.default = ProcessGroup("world", everybody, base, private, False, self.context, timeout)
        self.default.key = self._next_key(everybody)
        self.groups = {self.default.label: self.default}
        self._made = 0
        self._exported = self._export()
        self.adopted = Adopted()

    def _find_problem(self, private: Comm, rank: int, world_size: int) -> str | None:
        here = {"rank": (rank, private.Get_rank()), "world_size": (world_size, private.Get_size())}
        for name, (given, found) in here.items():
            if given not in (-1, found):
                return mismatch(name, f"{found}, as MPI says", given, f"Leave {name} out: it is the communicator's")
        try:
            library.max_count()
        except ArgumentError as error:
            return str(error)
        return places.disagreement(self.variables)

    def _export(self) -> list[str]:
        unset = [name for name in self.variables if name not in os.environ]
        os.environ.update({name: self.variables[name] for name in unset})
        return unset

    def promote(self, group_class: type[ProcessGroup]) -> None:
        """Make groups of another class, and of that class the groups there are. Local."""
        if self.group_class is group_class:
            return
        self.group_class = group_class
        self.groups = {label: group_class.over(group) for label, group in self.groups.items()}
        self.default = self.groups[self.default.label]

    def split(self, parent: ProcessGroup, color: int | None, key: int, ranks: Sequence[int], timeout: float) -> Any:
        """Divide a group; every rank of it calls this. Returns this rank's part, whose global ranks are `ranks`."""
        name = self._next_name()

        def split() -> Any:
            part: Any = parent.private.Split(library.MPI.UNDEFINED if color is None else color, key)
            return GroupMember.NON_GROUP_MEMBER if color is None else self._add(name, tuple(ranks), part, None, timeout)

        return parent.engine.call(split)

    def create(self, ranks: Sequence[int], timeout: float) -> ProcessGroup:
        """A group that its members alone make, `ranks` being their global ranks."""
        world = self.default.private
        # Members alone count it, so the number of a name like `split`'s would differ between them.
        name = self._unused(f"ranks-{_listed(ranks)}")

        def create() -> ProcessGroup:
            everybody = world.Get_group()
            members = everybody.Incl(list(ranks))
            private = world.Create_group(members)
            everybody.Free()
            members.Free()
            return self._add(name, tuple(ranks), private, None, timeout)

        group: ProcessGroup = self.default.engine.call(create, of_all=False)
        return group

    def adopt(self, comm: Comm, timeout: float) -> ProcessGroup:
        """A group over a communicator of the user's, all of whose ranks call this."""
        ranks = self._global_ranks(comm)
        if library.MPI.UNDEFINED in ranks:
            outsider = ranks.index(library.MPI.UNDEFINED)
            raise ArgumentError(
                f"comm: expected ranks of the world, got one that has a rank outside it, its rank {outsider}"
            )
        name = self._unused(f"comm-{_listed(ranks)}")
        return self._add(name, ranks, comm.Dup(), comm, timeout)

    def _global_ranks(self, comm: Comm) -> tuple[int, ...]:
        mine, theirs = self.default.private.Get_group(), comm.Get_group()
        ranks = tuple(library.MPI.Group.Translate_ranks(theirs, list(range(theirs.Get_size())), mine))
        mine.Free()
        theirs.Free()
        return ranks

    def group_over(self, comm: Comm) -> ProcessGroup:
        """The group that stands for a communicator given as ``group=``; its first use, by all its ranks, makes it."""
        group = self.adopted.find(comm)
        if group is None:
            group = self.adopt(comm, self.default.timeout)
            self.announce(group)
            self.adopted.keep(group, comm)
        return group

    def _add(self, name: str, ranks: tuple[int, ...], private: Comm, comm: Comm | None, timeout: float) -> ProcessGroup:
        public = private.Dup() if comm is None else comm
        group = self.group_class(name, ranks, public, private, comm is None, self.context, timeout)
        group.key = self._next_key(ranks)
        group.bound_device_id = self.default.bound_device_id
        self.groups[name] = group
        return group

    def _next_key(self, ranks: Sequence[int]) -> tuple[int, int]:
        # Members make the groups that they have in common in one order. Numbers hash alike in all processes.
        name = hash(tuple(ranks))
        self._keys[name] += 1
        return name, self._keys[name]

    def rename(self, group: ProcessGroup, name: str) -> None:
        """Give a group another name."""
        del self.groups[group.label]
        group.label = self._unused(name)
        self.groups[group.label] = group

    def _next_name(self) -> str:
        self._made += 1
        return self._unused(f"group-{self._made}")

    def _unused(self, name: str) -> str:
        number, unused = 1, name
        while unused in self.groups:
            number += 1
            unused = f"{name}#{number}"
        return unused

    def free(self, group: ProcessGroup) -> None:
        """Destroy one group; its members call this."""
        group.check_open()
        group.free()
        self.groups.pop(group.label)
        self.context.progress.call(lambda: self.adopted.forget(group))

    def close(self) -> None:
        """Destroy every group, the youngest first."""
        for group in reversed(list(self.groups.values())):
            group.free()
        self.groups.clear()
        self.context.progress.close()
        self.adopted.close()
        for name in self._exported:
            if os.environ.get(name) == self.variables[name]:
                del os.environ[name]

    def drain(self) -> None:
        """Wait for what is under way. Where a wait has given up on some of it, end the job: MPI could never end."""
        for group in list(self.groups.values()):
            if not group.engine.end_collectives() or not self.context.progress.take_back(group.engine):
                text = f"mpicoll: group {group.label} has an operation that never ended; ending the job"
                print(text, file=sys.stderr, flush=True)
                library.abort(1)


def _listed(ranks: Sequence[int]) -> str:
    if len(ranks) <= 8:
        return "-".join(map(str, ranks))
    return f"{ranks[0]}-{ranks[1]}-...-{ranks[-1]}-{len(ranks)}-in-all"


class SecondDoor(Protocol):
    """What the first door knows of torch.distributed's: `mpicoll.torch_backend` has it."""

    def check(self, wanted: bool) -> None:
        """Refuse what `open` could not do."""

    def open(self, wanted: bool) -> None:
        """Initialise torch.distributed over the world."""

    def close(self, group: ProcessGroup) -> bool:
        """Destroy a group by torch.distributed if that knows it."""


second_door: SecondDoor | None = None
# Called before MPI ends: `mpicoll.guard` has what waits there for the other ranks.
leave: Callable[[], None] | None = None

_world: World | None = None
_abandoned: list[World] = []
_over: str = "the process group is not initialised. Call init_process_group() first"
_at_finalize: int | None = None
_exiting = False


def start_world(base: Comm | None, timeout: float, rank: int, world_size: int) -> World:
    """Make the world over a communicator, MPI.COMM_WORLD by default. Every rank of it calls this."""
    global _world, _at_finalize
    library.refuse_singleton()
    _world = World(library.MPI.COMM_WORLD if base is None else base, timeout, rank, world_size)
    if _at_finalize is None:
        atexit.register(_at_exit)
        # MPI_Finalize begins with deleting the attributes of COMM_SELF.
        _at_finalize = library.MPI.Comm.Create_keyval(delete_fn=_at_mpi_end)
        library.MPI.COMM_SELF.Set_attr(_at_finalize, None)
    return _world


def end_world() -> None:
    """Destroy the world and all its groups."""
    global _world
    world = current()
    world.close()
    _world = None


def abandon_world() -> None:
    """Forget the world without freeing it, since some of its ranks may never come to do so. The exit waits for it."""
    global _world
    _abandoned.append(current())
    _world = None


def current() -> World:
    """The world.

    Raises:
        NotInitializedError: There is none (any more).
        LaunchError: This is a process forked from a rank.
    """
    if _world is None:
        library.refuse_in_fork()
        raise NotInitializedError(_over)
    return _world


def is_initialized() -> bool:
    """Whether there is a world."""
    return _world is not None


def existing() -> World | None:
    """The world, or None."""
    return _world


def default_group() -> ProcessGroup | None:
    """The default group, or None."""
    return None if _world is None else _world.default


def resolve(group: Any, collective: bool = True) -> ProcessGroup:
    """The group that a ``group=`` argument means: None is the default group, an mpi4py communicator the group over it.

    Raises:
        NotAMember: This rank is not in the group.
    """
    if group is None:
        return (_world or current()).default
    if isinstance(group, ProcessGroup):
        if group.closed or _world is None:
            current()
            group.check_open()
        return group
    if isinstance(group, int) and group == GroupMember.NON_GROUP_MEMBER:
        current()
        raise NotAMember
    return _resolve_comm(group, collective)


def _resolve_comm(comm: Any, collective: bool) -> ProcessGroup:
    world = current()
    # By type first: some objects are compared element by element.
    if isinstance(comm, library.MPI.Comm) and comm == library.MPI.COMM_NULL:
        raise NotAMember
    if not isinstance(comm, library.MPI.Intracomm):
        kind = f"{type(comm).__module__}.{type(comm).__qualname__}"
        raise ArgumentError(mismatch("group", "a ProcessGroup or an mpi4py communicator", kind))
    found: ProcessGroup = world.context.progress.call(lambda: _group_over(world, comm, collective))
    return found


def is_unused_comm(group: Any) -> bool:
    """Whether a ``group=`` argument is an mpi4py communicator that no operation has used yet."""
    if group is None or isinstance(group, (ProcessGroup, int)):
        return False
    world = current()
    if not isinstance(group, library.MPI.Intracomm) or group == library.MPI.COMM_NULL:
        return False
    unused: bool = world.context.progress.call(lambda: world.adopted.find(group) is None)
    return unused


def _group_over(world: World, comm: Any, collective: bool) -> ProcessGroup:
    group = world.adopted.find(comm)
    if group is None and not collective:
        raise ArgumentError(
            "group: expected a ProcessGroup, got an mpi4py communicator that no collective operation has used yet, of"
            " which two ranks alone cannot make a group. Call new_group(comm=...) on all its ranks first"
        )
    return group or world.group_over(comm)


def _at_exit() -> None:
    global _exiting
    _exiting = True
    if library.is_running() and _at_finalize is not None:
        _end_with_mpi()
        # While Python is there: MPI may be finalised when it no longer is.
        library.MPI.COMM_SELF.Delete_attr(_at_finalize)


def _at_mpi_end(comm: Any, key: int, value: Any) -> None:
    global _world, _over
    if not _exiting:
        _end_with_mpi()
        _world = None
        _over = (
            "MPI has been finalised, and the process group with it. Call destroy_process_group() before MPI.Finalize()"
        )


def _end_with_mpi() -> None:
    """Wait for what is under way, and for the other ranks to have come as far."""
    worlds = [*_abandoned, *([] if _world is None else [_world])]
    for world in worlds:
        world.drain()
    if leave is not None:
        leave()
    for world in worlds:
        world.context.progress.drain()
        world.context.progress.close()


def _after_fork() -> None:
    global _world, _exiting
    _world = None
    _exiting = True  # the child's end is not the rank's
    atexit.unregister(_at_exit)
    _abandoned.clear()


os.register_at_fork(after_in_child=_after_fork)
