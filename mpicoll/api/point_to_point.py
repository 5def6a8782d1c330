"""Messages from one rank to another.

A message carries the dtype and shape of its tensor, so that a receive which does not fit says so.
"""

from __future__ import annotations

from typing import Any

from mpicoll.api.entry import Group, entry
from mpicoll.data.arrays import Array, describe
from mpicoll.errors import ArgumentError, mismatch
from mpicoll.groups.group import ProcessGroup
from mpicoll.groups.world import resolve
from mpicoll.guard import checks
from mpicoll.transport.messages import Header
from mpicoll.transport.work import Work


@entry
def send(tensor: Any, dst: int | None = None, group: Group = None, tag: int = 0, group_dst: int | None = None) -> None:
    """Send a tensor to one rank.

    Blocks until the tensor may be used again; for a large one that is when the other rank has received it. So two ranks
    that both send first and receive then are a deadlock: use `isend`.

    Args:
        tensor: Of any shape and dtype.
        dst: The destination's global rank.
        group: The group; None is the default group.
        tag: A number from 0 that the receiver gives too.
        group_dst: The destination's rank in the group, instead of `dst`.

    Raises:
        ArgumentError: No destination, two, or one outside the group; this rank itself, with no receive posted that
            would take the message; a tag out of range.
        DTypeError: It is not an array.

    MPI_Isend and MPI_Wait. Example:
        >>> import numpy as np, mpicoll as dist
        >>> x = np.full(2, float(dist.get_rank()))
        >>> if dist.get_rank() == 0:
        ...     dist.send(x, dst=1)
        ... elif dist.get_rank() == 1:
        ...     source = dist.recv(x, src=0)
        >>> float(x[0]) == (0 if dist.get_rank() < 2 else dist.get_rank())
        True
    """
    pg = resolve(group, collective=False)
    peer, array = _outgoing(pg, tensor, dst, tag, group_dst)
    pg.engine.finish(pg.mailbox.send(array, peer, tag, blocking=True))


@entry
def recv(tensor: Any, src: int | None = None, group: Group = None, tag: int = 0, group_src: int | None = None) -> int:
    """Receive a tensor from one rank, or from any.

    Args:
        tensor: Overwritten. Of the dtype and the number of elements that were sent; shape and strides are its own.
        src: The sender's global rank; any rank if neither it nor `group_src` is given.
        group: The group; None is the default group.
        tag: The number that the sender gave.
        group_src: The sender's rank in the group, instead of `src`.

    Returns:
        The sender's global rank.

    Raises:
        ArgumentError: A sender outside the group; this rank itself, which has sent no such message; a tag out of range;
            a tensor that is read-only or overlaps itself.
        DTypeError: It is not an array.
        MessageError: The message has another dtype or number of elements. It is gone then.

    MPI_Irecv and MPI_Wait. Example: see `send`.
    """
    pg = resolve(group, collective=False)
    peer, array = _incoming(pg, tensor, src, tag, group_src)
    source = pg.engine.finish(pg.mailbox.receive(lambda header: header.fits(array), peer, tag, blocking=True))
    assert source is not None
    return pg.ranks[source]


@entry
def recv_tensor(src: int | None = None, group: Group = None, tag: int = 0, group_src: int | None = None) -> Any:
    """Receive a tensor whose shape and dtype come from the message. It is sent by `send` or `isend`.

    Args:
        src: The sender's global rank; any rank if neither it nor `group_src` is given.
        group: The group; None is the default group.
        tag: The number that the sender gave.
        group_src: The sender's rank in the group, instead of `src`.

    Returns:
        A torch tensor if the sender sent one, else a numpy array.

    Raises:
        ArgumentError: A sender outside the group; this rank itself, which has sent no such message; a tag out of range.

    MPI_Irecv and MPI_Wait. Example:
        >>> import numpy as np, mpicoll as dist
        >>> if dist.get_rank() == 0:
        ...     dist.send(np.arange(6, dtype=np.int16).reshape(2, 3), dst=1)
        ... elif dist.get_rank() == 1:
        ...     x = dist.recv_tensor(src=0)
        ...     assert x.shape == (2, 3) and x.dtype == np.int16
    """
    pg = resolve(group, collective=False)
    peer = _sender(pg, src, tag, group_src)
    received: list[Any] = []

    def accept(header: Header) -> Array:
        received.append(header.new_array())
        return describe(received[0])

    pg.engine.finish(pg.mailbox.receive(accept, peer, tag, blocking=True))
    return received[0]


@entry
def isend(tensor: Any, dst: int | None = None, group: Group = None, tag: int = 0, group_dst: int | None = None) -> Work:
    """Start to send a tensor to one rank.

    Args:
        tensor: Of any shape and dtype; not to be written to before the Work is done.
        dst: The destination's global rank; this one too.
        group: The group; None is the default group.
        tag: A number from 0 that the receiver gives too.
        group_dst: The destination's rank in the group, instead of `dst`.

    Returns:
        A Work.

    Raises:
        ArgumentError, DTypeError: As of `send`, but that this rank may send to itself before it receives.

    MPI_Isend. Example:
        >>> import numpy as np, mpicoll as dist
        >>> n, r, x = dist.get_world_size(), dist.get_rank(), np.zeros(1)
        >>> works = [dist.isend(np.array([float(r)]), (r + 1) % n), dist.irecv(x, (r - 1) % n)]
        >>> all(work.wait() for work in works) and int(x[0]) == (r - 1) % n
        True
    """
    pg = resolve(group, collective=False)
    peer, array = _outgoing(pg, tensor, dst, tag, group_dst)
    pg.engine.require_async()
    work = pg.work_class(pg.where("isend"), [tensor], limit=pg.timeout)
    pg.engine.start(pg.mailbox.send(array, peer, tag), work)
    return work


@entry
def irecv(tensor: Any, src: int | None = None, group: Group = None, tag: int = 0, group_src: int | None = None) -> Work:
    """Start to receive a tensor from one rank, or from any.

    Args:
        tensor: Overwritten; not to be used before the Work is done.
        src: The sender's global rank; any rank if neither it nor `group_src` is given.
        group: The group; None is the default group.
        tag: The number that the sender gave.
        group_src: The sender's rank in the group, instead of `src`.

    Returns:
        A Work, whose ``source_rank()`` is the sender's global rank and whose ``wait()`` raises what `recv` would.

    Raises:
        ArgumentError, DTypeError: As of `recv`, but that this rank may await what it sends itself later.

    MPI_Irecv. Example: see `isend`.
    """
    pg = resolve(group, collective=False)
    peer, array = _incoming(pg, tensor, src, tag, group_src)
    pg.engine.require_async()
    work = pg.work_class(pg.where("irecv"), [tensor], pg.ranks, pg.timeout)
    pg.engine.start(pg.mailbox.receive(lambda header: header.fits(array), peer, tag), work)
    return work


class P2POp:
    """A message of `batch_isend_irecv`.

    Args:
        op: `isend` or `irecv`.
        tensor: The tensor to send or to receive.
        peer: The other side's global rank.
        group: The group; None is the default group.
        tag: As of `isend` and `irecv`.
        group_peer: The other side's rank in the group, instead of `peer`.

    Raises:
        ArgumentError: `op` is another function.

    Example: see `batch_isend_irecv`.
    """

    def __init__(
        self,
        op: Any,
        tensor: Any,
        peer: int | None = None,
        group: Group = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op is not isend and op is not irecv:
            raise ArgumentError(mismatch("P2POp: op", "mpicoll.isend or mpicoll.irecv", repr(op)))
        self.op = op
        self.tensor = tensor
        self.peer = peer
        self.group = group
        self.tag = tag
        self.group_peer = group_peer


@entry
def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
    """Start several messages at once, in any order on either side.

    Args:
        p2p_op_list: At least one P2POp.

    Returns:
        A Work for each.

    Raises:
        ArgumentError, DTypeError: As of `isend` and `irecv`, before anything is sent; an empty list; a tensor to
            receive into that shares memory with another of the list.

    Example:
        >>> import numpy as np, mpicoll as dist
        >>> n, r = dist.get_world_size(), dist.get_rank()
        >>> x, y = np.array([float(r)]), np.zeros(1)
        >>> ops = [dist.P2POp(dist.isend, x, (r + 1) % n), dist.P2POp(dist.irecv, y, (r - 1) % n)]
        >>> all(work.wait() for work in dist.batch_isend_irecv(ops)) and int(y[0]) == (r - 1) % n
        True
    """
    if not isinstance(p2p_op_list, (list, tuple)) or not all(isinstance(op, P2POp) for op in p2p_op_list):
        raise ArgumentError(mismatch("p2p_op_list", "a list of P2POp", repr(p2p_op_list)))
    if not p2p_op_list:
        raise ArgumentError(mismatch("length of p2p_op_list", "at least 1", 0))
    sent: list[checks.Part] = []
    received: list[checks.Part] = []
    for i, op in enumerate(p2p_op_list):
        check, parts = (_outgoing, sent) if op.op is isend else (_incoming, received)
        pg = resolve(op.group, collective=False)
        parts.append((i, check(pg, op.tensor, op.peer, op.tag, op.group_peer)[1]))
    checks.apart(received, "p2p_op_list", sent, "p2p_op_list")
    return [op.op(op.tensor, op.peer, op.group, op.tag, op.group_peer) for op in p2p_op_list]


def _outgoing(pg: ProcessGroup, tensor: Any, dst: Any, tag: int, group_dst: Any) -> tuple[int, Array]:
    peer = checks.rank_in_group(pg, dst, group_dst, "dst")
    pg.mailbox.check_tag(tag)
    return peer, checks.input_array(tensor)


def _incoming(pg: ProcessGroup, tensor: Any, src: Any, tag: int, group_src: Any) -> tuple[int | None, Array]:
    return _sender(pg, src, tag, group_src), checks.output_array(tensor)


def _sender(pg: ProcessGroup, src: Any, tag: int, group_src: Any) -> int | None:
    pg.mailbox.check_tag(tag)
    return None if src is None and group_src is None else checks.rank_in_group(pg, src, group_src, "src")
