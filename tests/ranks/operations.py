"""What every operation's call looks like, and what the model says of it.

Each function makes the call on this rank, on arrays from the desk, which notes what they must hold afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ranks.arrays import Shape, show
from tests.ranks.calls import Call, Desk, Pending, Team
from tests.reference import collectives
from tests.reference.dtypes import DType, Raw, value_bytes


def start(team: Team, call: Call) -> Pending:
    """Make the call on this member of the team."""
    desk = Desk(team, call)
    try:
        OPERATIONS[call.op](team.dist, desk)
    except team.dist.MpicollError as error:
        desk.pending.checks.clear()
        desk.pending.complaints.append(f"{type(error).__name__}: {error}")
    return desk.pending


def run(team: Team, call: Call) -> list[str]:
    """Make the call and wait for it."""
    return start(team, call).finish()


def _broadcast(dist: Any, desk: Desk) -> None:
    parts = desk.parts(0, desk.shape(0))
    at_root = desk.team.me == desk.root
    expected = None if at_root else collectives.broadcast(parts, desk.root)[desk.team.me]
    desk.run(dist.broadcast, desk.in_place(parts[desk.team.me], expected), **desk.rooted("src"))


def _all_reduce(dist: Any, desk: Desk) -> None:
    parts = desk.parts(0, desk.shape(0))
    expected = collectives.all_reduce(parts, desk.dtype, desk.call.reduce)[desk.team.me]
    desk.run(dist.all_reduce, desk.in_place(parts[desk.team.me], expected), op=desk.op)


def _reduce(dist: Any, desk: Desk) -> None:
    parts = desk.parts(0, desk.shape(0))
    expected = collectives.reduce(parts, desk.root, desk.dtype, desk.call.reduce)[desk.team.me]
    desk.run(dist.reduce, desk.in_place(parts[desk.team.me], expected), op=desk.op, **desk.rooted("dst"))


def _own_shapes(desk: Desk) -> list[Raw]:
    """One part for each rank, of that rank's shape."""
    return [desk.part(rank, 0, desk.shape(rank)) for rank in range(desk.team.size)]


def _all_gather(dist: Any, desk: Desk) -> None:
    parts = _own_shapes(desk)
    outputs = [desk.result(part) for part in collectives.all_gather(parts)[desk.team.me]]
    desk.run(dist.all_gather, outputs, desk.given(parts[desk.team.me]))


def _gather(dist: Any, desk: Desk) -> None:
    parts = _own_shapes(desk)
    gathered = collectives.gather(parts, desk.root)[desk.team.me]
    outputs = gathered and [desk.result(part) for part in gathered]
    desk.run(dist.gather, desk.given(parts[desk.team.me]), outputs, **desk.rooted("dst"))


def _scatter(dist: Any, desk: Desk) -> None:
    entries = [desk.part(desk.root, rank, desk.shape(rank)) for rank in range(desk.team.size)]
    output = desk.result(collectives.scatter(entries)[desk.team.me])
    inputs = [desk.given(entry) for entry in entries] if desk.team.me == desk.root else None
    desk.run(dist.scatter, output, inputs, **desk.rooted("src"))


def _lists(desk: Desk, shape: Callable[[int, int], Shape]) -> list[list[Raw]]:
    """What every rank has for every other rank."""
    ranks = range(desk.team.size)
    return [[desk.part(rank, entry, shape(rank, entry)) for entry in ranks] for rank in ranks]


def _reduce_scatter(dist: Any, desk: Desk) -> None:
    lists = _lists(desk, lambda _, entry: desk.shape(entry))
    output = desk.result(collectives.reduce_scatter(lists, desk.dtype, desk.call.reduce)[desk.team.me])
    desk.run(dist.reduce_scatter, output, [desk.given(entry) for entry in lists[desk.team.me]], op=desk.op)


def _all_to_all(dist: Any, desk: Desk) -> None:
    lists = _lists(desk, lambda rank, entry: desk.shape(rank + 2 * entry))
    outputs = [desk.result(part) for part in collectives.all_to_all(lists)[desk.team.me]]
    desk.run(dist.all_to_all, outputs, [desk.given(entry) for entry in lists[desk.team.me]])


def _whole(desk: Desk, shape: Shape) -> Shape:
    """The shape of all parts in one array: along the first dimension, or with a dimension for the rank."""
    joins = desk.call.variant & 2 and shape
    return (desk.team.size * shape[0], *shape[1:]) if joins else (desk.team.size, *shape)


def _gathered_pair(desk: Desk, index: int) -> tuple[Any, Any]:
    shape = desk.shape(index)
    parts = desk.parts(index, shape)
    return desk.result(collectives.joined(parts, _whole(desk, shape))), desk.given(parts[desk.team.me])


def _scattered_pair(desk: Desk, index: int) -> tuple[Any, Any]:
    shape, size = desk.shape(index), desk.team.size
    lists = [[desk.part(rank, index * size + entry, shape) for entry in range(size)] for rank in range(size)]
    output = desk.result(collectives.reduce_scatter(lists, desk.dtype, desk.call.reduce)[desk.team.me])
    whole = collectives.joined(lists[desk.team.me], _whole(desk, shape))
    if "expanded" in desk.call.layouts:  # then the whole input does not repeat one row
        return output, desk.in_place(whole, None)
    return output, desk.given(whole)


def _all_gather_into_tensor(dist: Any, desk: Desk) -> None:
    desk.run(dist.all_gather_into_tensor, *_gathered_pair(desk, 0))


def _reduce_scatter_tensor(dist: Any, desk: Desk) -> None:
    desk.run(dist.reduce_scatter_tensor, *_scattered_pair(desk, 0), op=desk.op)


def _all_to_all_single(dist: Any, desk: Desk) -> None:
    me = desk.team.me
    rest = desk.shape(0)[1:]

    def block(rank: int, entry: int) -> Shape:
        return (*desk.shape(rank + 2 * entry)[:1], *rest)

    lists = _lists(desk, block)
    received = collectives.all_to_all(lists)[me]
    rows_in, rows_out = ([part.shape[0] if part.shape else 1 for part in parts] for parts in (lists[me], received))
    output = desk.result(collectives.joined(received, (sum(rows_out), *rest)))
    whole = collectives.joined(lists[me], (sum(rows_in), *rest))
    given = desk.in_place(whole, None) if "expanded" in desk.call.layouts else desk.given(whole)
    if len(desk.call.shapes) == 1 and desk.call.variant & 2:
        rows_in = rows_out = []
    desk.run(dist.all_to_all_single, output, given, rows_out or None, rows_in or None)


def _all_reduce_coalesced(dist: Any, desk: Desk) -> None:
    tensors = []
    for index in range(len(desk.call.shapes)):
        parts = desk.parts(index, desk.shape(index))
        total = collectives.all_reduce(parts, desk.dtype, desk.call.reduce)[desk.team.me]
        tensors.append(desk.in_place(parts[desk.team.me], total))
    desk.run(dist.all_reduce_coalesced, tensors, op=desk.op)


def _all_gather_coalesced(dist: Any, desk: Desk) -> None:
    pairs = [_gathered_pair(desk, index) for index in range(len(desk.call.shapes))]
    desk.run(dist.all_gather_into_tensor_coalesced, [pair[0] for pair in pairs], [pair[1] for pair in pairs])


def _reduce_scatter_coalesced(dist: Any, desk: Desk) -> None:
    pairs = [_scattered_pair(desk, index) for index in range(len(desk.call.shapes))]
    desk.run(dist.reduce_scatter_tensor_coalesced, [p[0] for p in pairs], [p[1] for p in pairs], op=desk.op)


def _ends(desk: Desk) -> tuple[int, int]:
    """The group ranks of sender and receiver of a message."""
    size = desk.team.size
    return desk.root, (desk.root + 1 + desk.call.variant // 2 % (size - 1)) % size


def _spelled(desk: Desk, word: str, rank: int) -> dict[str, Any]:
    named = {f"group_{word}": rank} if desk.call.variant & 1 else {word: desk.team.ranks[rank]}
    return named | {"group": desk.team.group, "tag": desk.call.seed % 30000}


def _send(dist: Any, desk: Desk, source: int, target: int) -> None:
    sent = desk.given(desk.part(source, 0, desk.shape(0)))
    options = _spelled(desk, "dst", target)
    if desk.call.async_op:
        desk.pending.works.append(dist.isend(sent, **options))
    elif (returned := dist.send(sent, **options)) is not None:
        desk.pending.complaints.append(f"expected send to return None, got {returned!r}")


def _message(dist: Any, desk: Desk) -> None:
    if desk.team.size == 1:  # nobody to send to
        return
    source, target = _ends(desk)
    if desk.team.me == source:
        _send(dist, desk, source, target)
    elif desk.team.me == target:
        output = desk.result(desk.part(source, 0, desk.shape(0)))
        options = _spelled(desk, "src", source)
        if desk.call.variant & 4:  # from whoever sends with this tag
            options = {"group": desk.team.group, "tag": options["tag"]}
        sender = desk.team.ranks[source]
        if desk.call.async_op:
            desk.pending.works.append(dist.irecv(output, **options))
        elif (returned := dist.recv(output, **options)) != sender:
            desk.pending.complaints.append(f"recv: expected the sender {sender}, got {returned!r}")


def _recv_tensor(dist: Any, desk: Desk) -> None:
    if desk.team.size == 1:
        return
    source, target = _ends(desk)
    if desk.team.me == source:
        _send(dist, desk, source, target)
    elif desk.team.me == target:
        expected = desk.part(source, 0, desk.shape(0))
        received = dist.recv_tensor(**_spelled(desk, "src", source))
        kind = desk.call.kinds[source % len(desk.call.kinds)]
        desk.pending.checks.append(lambda: compare_new(received, expected, desk.dtype, kind))


def compare_new(array: Any, expected: Raw, dtype: DType, kind: str) -> str | None:
    """Compare an array that the library made: a tensor if one was sent, else numpy's where numpy knows the dtype."""
    is_torch = hasattr(array, "numel")
    if is_torch != (kind == "torch") and dtype.numpy is not None:
        return f"sent as {kind}, received as {type(array)}"
    if is_torch:
        import torch

        wanted: Any = dtype.torch_dtype()
        data = array.reshape(-1).view(torch.uint8).numpy().tobytes() if array.numel() else b""
    else:
        wanted = dtype.numpy_dtype() if dtype.numpy is not None else dtype.name
        data = array.tobytes()
    if (array.dtype, tuple(array.shape)) != (wanted, expected.shape):
        return f"expected dtype and shape {wanted}, {expected.shape}, got {array.dtype}, {array.shape}"
    got = np.frombuffer(data, dtype.raw).reshape(expected.shape)
    same = value_bytes(got, dtype) == value_bytes(expected, dtype)
    return None if same else f"expected {show(expected, dtype)}, got {show(got, dtype)}"


def _neighbours(desk: Desk) -> tuple[int, int]:
    return (desk.team.me + 1) % desk.team.size, (desk.team.me - 1) % desk.team.size


def _ring(dist: Any, desk: Desk) -> None:
    """Everybody to the right, as many messages as there are shapes, all with one tag; to itself where it is alone."""
    right, left = _neighbours(desk)
    count = range(len(desk.call.shapes))
    receives = [
        (dist.irecv, desk.result(desk.part(left, j, desk.shape(j))), _spelled(desk, "src", left)) for j in count
    ]
    sends = [
        (dist.isend, desk.given(desk.part(desk.team.me, j, desk.shape(j))), _spelled(desk, "dst", right)) for j in count
    ]
    for function, array, options in receives + sends if desk.call.variant & 2 else sends + receives:
        desk.pending.works.append(function(array, **options))


def _batch(dist: Any, desk: Desk) -> None:
    """The same by batch_isend_irecv, with messages of every rank to itself among them."""
    right, left = _neighbours(desk)
    me, count = desk.team.me, len(desk.call.shapes)
    operations = []
    for j in range(2 * count):
        target, source = (right, left) if j < count else (me, me)
        sent = desk.given(desk.part(me, j, desk.shape(j)))
        received = desk.result(desk.part(source, j, desk.shape(j)))
        for function, array, peer in ((dist.isend, sent, target), (dist.irecv, received, source)):
            named = {"group_peer": peer} if desk.call.variant & 1 else {"peer": desk.team.ranks[peer]}
            operations.append(dist.P2POp(function, array, group=desk.team.group, tag=desk.call.seed % 30000, **named))
    desk.pending.works.extend(dist.batch_isend_irecv(operations))


MOVES: dict[str, Callable[[Any, Desk], None]] = {
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_gather_into_tensor_coalesced": _all_gather_coalesced,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
}
REDUCTIONS: dict[str, Callable[[Any, Desk], None]] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter_tensor_coalesced": _reduce_scatter_coalesced,
}
MESSAGES: dict[str, Callable[[Any, Desk], None]] = {
    "message": _message,
    "recv_tensor": _recv_tensor,
    "ring": _ring,
    "batch": _batch,
}
OPERATIONS = MOVES | REDUCTIONS | MESSAGES
