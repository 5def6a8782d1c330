"""The collectives of Python objects. Only objects of ranks that are trusted: unpickling can run any code.

What is sent is a pickle; the memory of numpy arrays and CPU tensors inside an object travels beside it and is not
copied into it. Arrays that arrive have memory of their own, at multiples of 64 bytes. If an object of one rank cannot
be pickled, every rank that takes part raises an ObjectError that names it; if it cannot be unpickled, those ranks do
where that fails. The group stays usable.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from mpicoll.api.entry import Group, entry
from mpicoll.data import objects
from mpicoll.errors import ArgumentError, ObjectError, mismatch
from mpicoll.groups.world import resolve
from mpicoll.guard import checks
from mpicoll.transport.parcels import describe_error, pack


@entry
def all_gather_object(object_list: list[Any], obj: Any, group: Group = None) -> None:
    """Gather every rank's object in a list, on all ranks.

    Collective.

    Args:
        object_list: Of length n; its entries are replaced.
        obj: This rank's object.
        group: The group of n ranks; None is the default group.

    Raises:
        ArgumentError: Wrong length of the list.
        ObjectError: A rank's object cannot be pickled, on every rank; or not unpickled, where that fails.

    Example:
        >>> import mpicoll as dist
        >>> names = [None] * dist.get_world_size()
        >>> dist.all_gather_object(names, f"rank {dist.get_rank()}")
        >>> names[:2]
        ['rank 0', 'rank 1']
    """
    pg = resolve(group)
    _check_list(object_list, "object_list", pg.size())
    parcel, error = pack(partial(objects.dump, obj))
    with _cause(error):
        parcels = pg.parcels.all_gather(parcel)
    object_list[:] = _load_all(parcels)


@entry
def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group = None,
    group_dst: int | None = None,
) -> None:
    """Gather every rank's object in a list, on one rank.

    Collective.

    Args:
        obj: This rank's object.
        object_gather_list: Of length n on the destination, where its entries are replaced; elsewhere None.
        dst: The destination's global rank; rank 0 if neither it nor `group_dst` is given.
        group: The group of n ranks; None is the default group.
        group_dst: The destination's rank in the group, instead of `dst`.

    Raises:
        ArgumentError: A list where none belongs, or none where one does; its length.
        ObjectError: A rank's object cannot be pickled, on every rank; or not unpickled, where that fails.

    Example:
        >>> import mpicoll as dist
        >>> names = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        >>> dist.gather_object(f"rank {dist.get_rank()}", names)
        >>> (names or ["rank 0"])[0]
        'rank 0'
    """
    pg = resolve(group)
    root = checks.rank_in_group(pg, dst, group_dst, "dst", default=0)
    checks.only_on_root(object_gather_list, "object_gather_list", pg, root, "destination")
    if object_gather_list is not None and pg.rank() == root:
        _check_list(object_gather_list, "object_gather_list", pg.size())
    parcel, error = pack(partial(objects.dump, obj))
    with _cause(error):
        parcels = pg.parcels.gather(parcel, root)
    if object_gather_list is not None and pg.rank() == root:
        object_gather_list[:] = _load_all(parcels)


@entry
def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """Replace a list's objects by those of one rank's list.

    Collective.

    Args:
        object_list: Of the same length on every rank.
        src: The source's global rank; rank 0 if neither it nor `group_src` is given.
        group: The group; None is the default group.
        device: Taken for the sake of torch's signature; of no use here.
        group_src: The source's rank in the group, instead of `src`.

    Raises:
        ArgumentError: Not a list; on a rank whose list has another length than the source's.
        ObjectError: The objects cannot be pickled, on every rank; or not unpickled, where that fails.

    Example:
        >>> import mpicoll as dist
        >>> x = ["from rank 0", {"n": 1}] if dist.get_rank() == 0 else [None, None]
        >>> dist.broadcast_object_list(x)
        >>> x
        ['from rank 0', {'n': 1}]
    """
    pg = resolve(group)
    root = checks.rank_in_group(pg, src, group_src, "src", default=0)
    _check_list(object_list, "object_list", None)
    if pg.rank() == root:
        parcel, error = pack(partial(objects.dump, object_list))
        with _cause(error):
            pg.parcels.broadcast(parcel, root)
    else:
        _replace(object_list, _load(pg.parcels.broadcast(None, root), root))


@entry
def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Group = None,
    group_src: int | None = None,
) -> None:
    """Give each rank an object of one rank's list.

    Collective.

    Args:
        scatter_object_output_list: Of length 1 at least; its first entry is replaced.
        scatter_object_input_list: Of length n on the source; elsewhere it is not looked at.
        src: The source's global rank; rank 0 if neither it nor `group_src` is given.
        group: The group of n ranks; None is the default group.
        group_src: The source's rank in the group, instead of `src`.

    Raises:
        ArgumentError: Wrong length of a list, or none on the source.
        ObjectError: An object cannot be pickled, on every rank; or not unpickled, where that fails.

    Example:
        >>> import mpicoll as dist
        >>> mine = [None]
        >>> dist.scatter_object_list(mine, [f"for rank {i}" for i in range(dist.get_world_size())])
        >>> mine[0] == f"for rank {dist.get_rank()}"
        True
    """
    pg = resolve(group)
    root = checks.rank_in_group(pg, src, group_src, "src", default=0)
    _check_list(scatter_object_output_list, "scatter_object_output_list", None)
    if not scatter_object_output_list:
        raise ArgumentError(mismatch("length of scatter_object_output_list", "at least 1", 0))
    if pg.rank() == root:
        inputs = _check_list(scatter_object_input_list, "scatter_object_input_list", pg.size())
        packed = [pack(partial(objects.dump, value)) for value in inputs]
        with _cause(next((error for _, error in packed if error is not None), None)):
            frames = pg.parcels.scatter([parcel for parcel, _ in packed], root)
    else:
        frames = pg.parcels.scatter(None, root)
    scatter_object_output_list[0] = _load(frames, root)


@entry
def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Group = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """Send a list of objects to one rank, which calls `recv_object_list`.

    Args:
        object_list: The objects.
        dst: The destination's global rank.
        group: The group; None is the default group.
        device: Taken for the sake of torch's signature; of no use here.
        group_dst: The destination's rank in the group, instead of `dst`.
        use_batch: Taken for the sake of torch's signature.

    Raises:
        ArgumentError: No destination, two, one outside the group, or this rank itself.
        ObjectError: The objects cannot be pickled; on both ranks.

    Example:
        >>> import mpicoll as dist
        >>> x = [None]
        >>> if dist.get_rank() == 0:
        ...     dist.send_object_list(["hello"], dst=1)
        ... elif dist.get_rank() == 1:
        ...     source = dist.recv_object_list(x, src=0)
    """
    pg = resolve(group, collective=False)
    peer = checks.peer(pg, dst, group_dst, "dst")
    _check_list(object_list, "object_list", None)
    parcel, error = pack(partial(objects.dump, object_list))
    pg.parcels.send(parcel, peer)
    if error is not None:
        raise ObjectError(f"object_list: expected objects that can be pickled, got {describe_error(error)}") from error


@entry
def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> int:
    """Replace a list's objects by those that another rank sends with `send_object_list`.

    Args:
        object_list: Of the length of the sender's list.
        src: The sender's global rank; any rank if neither it nor `group_src` is given.
        group: The group; None is the default group.
        device: Taken for the sake of torch's signature; of no use here.
        group_src: The sender's rank in the group, instead of `src`.
        use_batch: Taken for the sake of torch's signature.

    Returns:
        The sender's global rank.

    Raises:
        ArgumentError: A sender outside the group, or this rank itself; a list of another length than the sender's.
        ObjectError: The sender's objects cannot be pickled, on both ranks; or not unpickled, on this one.

    Example: see `send_object_list`.
    """
    pg = resolve(group, collective=False)
    peer = None if src is None and group_src is None else checks.peer(pg, src, group_src, "src")
    _check_list(object_list, "object_list", None)
    frames, source = pg.parcels.receive(peer)
    _replace(object_list, _load(frames, source))
    return pg.ranks[source]


def _check_list(values: Any, name: str, length: int | None) -> list[Any]:
    if not isinstance(values, list):
        raise ArgumentError(mismatch(name, "a list", type(values).__qualname__))
    if length is not None and len(values) != length:
        raise ArgumentError(mismatch(f"length of {name}", f"{length}, one object for each rank", len(values)))
    return values


def _load(frames: list[objects.Frame], rank: int) -> Any:
    try:
        return objects.load(frames)
    except Exception as error:
        text = f"object of group rank {rank}: expected one that can be unpickled here, got {describe_error(error)}"
        raise ObjectError(text) from error


def _load_all(parcels: list[list[objects.Frame]]) -> list[Any]:
    return [_load(frames, rank) for rank, frames in enumerate(parcels)]


def _replace(values: list[Any], received: list[Any]) -> None:
    if len(values) != len(received):
        raise ArgumentError(mismatch("length of object_list", f"{len(received)} as on the source", len(values)))
    values[:] = received


class _cause:
    """Give an ObjectError the error of this rank's own pickling as its cause."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: Any, raised: BaseException | None, trace: Any) -> None:
        if isinstance(raised, ObjectError) and self._error is not None:
            raise raised from self._error
