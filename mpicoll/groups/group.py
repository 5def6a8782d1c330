"""A process group: a communicator with an engine of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from mpicoll.errors import ArgumentError, NotInitializedError
from mpicoll.transport.engine import make_engine
from mpicoll.transport.messages import Mailbox
from mpicoll.transport.operation import Operation, Place
from mpicoll.transport.parcels import Parcels
from mpicoll.transport.work import Work

if TYPE_CHECKING:
    from mpicoll.mpi.library import Comm
    from mpicoll.transport.progress import Progress


class ProcessGroup:
    """The ranks that take part in an operation: what ``new_group`` returns.

    Where torch.distributed is initialised with mpicoll, it is a ``torch.distributed.ProcessGroup`` too.

    Attributes:
        label: Its name, which error texts give.
        ranks: The global ranks of its members, in the order of their ranks in the group.
        comm: An mpi4py communicator of the same ranks, for traffic of the user's own. mpicoll never uses it.
        timeout: Seconds that a wait for one of its Works may take.
        key: Tells it from the other groups of its world, and is the same on all its ranks.
        bound_device_id: The accelerator that ``device_id=`` named, as a torch.device, or None.

    Example:
        >>> import mpicoll as dist
        >>> world = dist.group.WORLD
        >>> world.size() == dist.get_world_size(), world.comm.Get_rank() == world.rank()
        (True, True)
    """

    work_class: ClassVar[type[Work]] = Work
    bound_device_id: Any = None

    def __init__(
        self,
        label: str,
        ranks: tuple[int, ...],
        comm: Comm,
        private: Comm,
        owns_comm: bool,
        context: Context,
        timeout: float,
    ) -> None:
        self.label = label
        self.ranks = ranks
        self.comm = comm
        self.timeout = timeout
        self.private = private
        self.engine = make_engine(private, context.progress, context.level)
        self.mailbox = Mailbox(private, context.limit)
        self.place = Place(
            private.Get_rank(), private.Get_size(), context.limit, self.mailbox.tags.exchange, context.deterministic
        )
        self.parcels = Parcels(self.engine, self.mailbox, self.place)
        self.key = (0, 0)
        self.closed = False
        self.aborted = False
        self._owns_comm = owns_comm
        self._rank_of = {rank: index for index, rank in enumerate(ranks)}

    @classmethod
    def over(cls, group: ProcessGroup) -> ProcessGroup:
        """`group` as one of this class: the same group, of which either may be used."""
        other = cls.__new__(cls)
        other.__dict__ = group.__dict__
        return other

    def rank(self) -> int:
        """This process's rank in the group."""
        return self.place.rank

    def size(self) -> int:
        """The number of ranks in the group."""
        return self.place.size

    def __repr__(self) -> str:
        return f"<mpicoll.ProcessGroup {self.label}: rank {self.rank()} of {self.size()}>"

    def group_rank(self, global_rank: int) -> int:
        """The rank in the group of a global rank."""
        rank = self._rank_of.get(global_rank)
        if rank is None:
            raise ArgumentError(
                f"global rank: expected one of {_some(self.ranks)}, got {global_rank},"
                f" which is not part of group {self.label}"
            )
        return rank

    def where(self, operation: str) -> str:
        """The place that error texts begin with."""
        return f"{operation}(group={self.label}, rank {self.rank()} of {self.size()})"

    def operation(self) -> Operation:
        """A new operation of this group, with no steps yet."""
        return Operation(self.place)

    def carry_out(self, operation: Operation, name: str, outputs: list[Any], async_op: bool) -> Work | None:
        """Run an operation, or start it and return its Work."""
        operation.sealed()
        if not async_op:
            self.engine.run(operation)
            return None
        work = self.work_class(self.where(name), outputs, limit=self.timeout)
        self.engine.submit(operation, work)
        return work

    def free(self) -> None:
        """Wait for what is under way, then free what the group owns. Every member calls it."""
        if self.closed and not self.aborted:
            return
        self.engine.close()
        self.closed, self.aborted = True, False
        self.engine.progress.call(self.private.Free)
        if self._owns_comm:
            self.engine.progress.call(self.comm.Free)

    def abort(self) -> None:
        """Give up what is under way, whose Works raise from now on. Local; what the group owns is freed at the end."""
        if not self.closed:
            self.closed = self.aborted = True
            self.engine.abandon(NotInitializedError("the group has been aborted"))

    def check_open(self) -> None:
        """Refuse a group that has been destroyed or aborted."""
        if self.closed:
            raise NotInitializedError(f"group {self.label} has been {'aborted' if self.aborted else 'destroyed'}")


class Context:
    """What the groups of a world have in common."""

    def __init__(self, progress: Progress, level: int, limit: int, deterministic: bool) -> None:
        self.progress = progress
        self.level = level
        self.limit = limit
        self.deterministic = deterministic


class GroupMember:
    """What stands for a group that this rank may not be in.

    Attributes:
        NON_GROUP_MEMBER: What ``new_group`` returns to a rank that is not a member. It is torch's value.
        WORLD: The default group, once it is initialised, else None.
    """

    NON_GROUP_MEMBER: ClassVar[int] = -100


class NotAMember(Exception):
    """This rank is not in the group: the operation is none of its business."""


def _some(ranks: tuple[int, ...]) -> str:
    return str(list(ranks)) if len(ranks) <= 16 else f"the {len(ranks)} ranks of the group"
