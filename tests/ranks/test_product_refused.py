"""Wrong calls: refused on the rank that makes them, with both values in the text, before anything is sent.

Each is made by one rank alone, and then by all; after either the group must still add up right, which it would not if
anything of the wrong call had been sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.ranks.wrong import Job, expanded, lists, ones, read_only, refused, still_works, windows

# Name -> (the call, texts that the message must have, given the number of ranks).
Wrong = tuple[Callable[[Job], Any], Callable[[int], Iterable[object]]]
WRONG: dict[str, Wrong] = {
    # lists of the wrong length
    "all_gather: list too long": (lambda j: j.dist.all_gather(lists(j.size + 1), ones(3)), lambda n: (n, n + 1)),
    "all_gather: list too short": (lambda j: j.dist.all_gather(lists(j.size - 1), ones(3)), lambda n: (n, n - 1)),
    "reduce_scatter: list too long": (
        lambda j: j.dist.reduce_scatter(ones(3), lists(j.size + 2)),
        lambda n: (n, n + 2),
    ),
    "reduce_scatter: empty list": (lambda j: j.dist.reduce_scatter(ones(3), []), lambda n: (n, 0)),
    "all_to_all: outputs too many": (
        lambda j: j.dist.all_to_all(lists(j.size + 1), lists(j.size)),
        lambda n: (n, n + 1),
    ),
    "all_to_all: inputs too few": (lambda j: j.dist.all_to_all(lists(j.size), lists(j.size - 1)), lambda n: (n, n - 1)),
    "gather: list too long": (lambda j: j.dist.gather(ones(3), lists(j.size + 1), dst=j.rank), lambda n: (n, n + 1)),
    "scatter: list too long": (lambda j: j.dist.scatter(ones(3), lists(j.size + 1), src=j.rank), lambda n: (n, n + 1)),
    "coalesced: lists differ": (
        lambda j: j.dist.all_gather_into_tensor_coalesced([ones(j.size, 3)], [ones(3), ones(3)]),
        lambda n: (1, 2),
    ),
    "coalesced: outputs and inputs differ": (
        lambda j: j.dist.reduce_scatter_tensor_coalesced([ones(3), ones(3)], [ones(j.size, 3)]),
        lambda n: (1, 2),
    ),
    # the list on the wrong rank, or on none
    "gather: no list at the destination": (lambda j: j.dist.gather(ones(3), None, dst=j.rank), lambda n: (n,)),
    "scatter: no list at the source": (lambda j: j.dist.scatter(ones(3), None, src=j.rank), lambda n: (n,)),
    # sizes that do not fit each other
    "all_gather: own output of another size": (
        lambda j: j.dist.all_gather([ones(2) if r == j.rank else ones(3) for r in range(j.size)], ones(3)),
        lambda n: (2, 3),
    ),
    "gather: own output of another size": (
        lambda j: j.dist.gather(ones(3), [ones(2) if r == j.rank else ones(3) for r in range(j.size)], dst=j.rank),
        lambda n: (2, 3),
    ),
    "scatter: own input of another size": (
        lambda j: j.dist.scatter(ones(3), [ones(2) if r == j.rank else ones(3) for r in range(j.size)], src=j.rank),
        lambda n: (2, 3),
    ),
    "reduce_scatter: own input of another size": (
        lambda j: j.dist.reduce_scatter(ones(3), [ones(2) if r == j.rank else ones(3) for r in range(j.size)]),
        lambda n: (2, 3),
    ),
    "all_to_all: own entries differ": (
        lambda j: j.dist.all_to_all([ones(2 + (r == j.rank)) for r in range(j.size)], lists(j.size, 2)),
        lambda n: (2, 3),
    ),
    "all_gather_into_tensor: output too large": (
        lambda j: j.dist.all_gather_into_tensor(ones(3 * j.size + 1), ones(3)),
        lambda n: (3 * n, 3 * n + 1),
    ),
    "all_gather_into_tensor: output of the input's size": (
        lambda j: j.dist.all_gather_into_tensor(ones(7), ones(7 * j.size + 1)),
        lambda n: (7, 7 * n + 1),
    ),
    "reduce_scatter_tensor: input indivisible": (
        lambda j: j.dist.reduce_scatter_tensor(ones(5), ones(5 * j.size + 1)),
        lambda n: (5 * n, 5 * n + 1),
    ),
    "reduce_scatter_tensor: output too large": (
        lambda j: j.dist.reduce_scatter_tensor(ones(6), ones(5 * j.size)),
        lambda n: (5 * n, 6 * n),
    ),
    # splits
    "all_to_all_single: outputs and inputs differ": (
        lambda j: j.dist.all_to_all_single(ones(3 * j.size), ones(4 * j.size)),
        lambda n: (3, 4),
    ),
    "all_to_all_single: input splits do not add up": (
        lambda j: j.dist.all_to_all_single(ones(2 * j.size), ones(2 * j.size + 1), [2] * j.size, [2] * j.size),
        lambda n: (2 * n, 2 * n + 1),
    ),
    "all_to_all_single: output splits do not add up": (
        lambda j: j.dist.all_to_all_single(ones(2 * j.size), ones(2 * j.size), [3] * j.size, [2] * j.size),
        lambda n: (2 * n, 3 * n),
    ),
    "all_to_all_single: too many splits": (
        lambda j: j.dist.all_to_all_single(ones(2 * j.size), ones(2 * j.size), None, [2] * (j.size - 1) + [1, 1]),
        lambda n: (n, n + 1),
    ),
    "all_to_all_single: own block differs": (
        lambda j: j.dist.all_to_all_single(ones(2 * j.size), ones(5 * j.size), [2] * j.size, [5] * j.size),
        lambda n: (2, 5),
    ),
    "all_to_all_single: negative split": (
        lambda j: j.dist.all_to_all_single(
            ones(j.size), ones(j.size), None, [-1] + [1] * (j.size - 2) + [3][: j.size - 1]
        ),
        lambda n: (-1,),
    ),
    # outputs that share memory
    "all_gather: an output twice": (
        lambda j: j.dist.all_gather([ones(3)] * j.size, ones(3)),
        lambda n: ("tensor_list[0] and tensor_list[1]",),
    ),
    "all_gather: outputs overlap": (
        lambda j: j.dist.all_gather(list(np.lib.stride_tricks.as_strided(ones(20), (j.size, 3), (8, 4))), ones(3)),
        lambda n: (),
    ),
    "gather: an output twice": (
        lambda j: j.dist.gather(ones(3), [ones(3)] * j.size, dst=j.rank),
        lambda n: ("gather_list[0] and gather_list[1]",),
    ),
    "gather: a column twice": (
        lambda j: j.dist.gather(
            ones(3), [*ones(3, 2).T, *ones(3, 2).T, *[ones(3, 3)[:, 1]] * 2][-j.size :], dst=j.rank
        ),
        lambda n: (f"gather_list[{n - 2}] and gather_list[{n - 1}]",),
    ),
    "all_to_all: an output twice": (
        lambda j: j.dist.all_to_all([ones(3)] * j.size, lists(j.size)),
        lambda n: ("output_tensor_list[0] and output_tensor_list[1]",),
    ),
    "coalesced: a tensor twice": (
        lambda j: j.dist.all_reduce_coalesced([ones(3)] * 2),
        lambda n: ("tensors[0] and tensors[1]",),
    ),
    "coalesced: an output twice": (
        lambda j: j.dist.all_gather_into_tensor_coalesced([ones(3 * j.size)] * 2, lists(2)),
        lambda n: ("output_tensors[0] and output_tensors[1]",),
    ),
    "coalesced: an output is another's input": (
        lambda j: j.dist.reduce_scatter_tensor_coalesced([ones(3), (x := ones(9 * j.size))[:3]], [x[: 3 * j.size]] * 2),
        lambda n: ("outputs[1] and inputs[0]",),
    ),
    "batch_isend_irecv: a tensor for two messages": (
        lambda j: j.dist.batch_isend_irecv([j.dist.P2POp(j.dist.irecv, x, j.other) for x in [ones(3)] * 2]),
        lambda n: ("p2p_op_list[0] and p2p_op_list[1]",),
    ),
    "batch_isend_irecv: a part received into what is sent": (
        lambda j: j.dist.batch_isend_irecv(
            [j.dist.P2POp(j.dist.isend, x := ones(3), j.other), j.dist.P2POp(j.dist.irecv, x[1:], j.other)]
        ),
        lambda n: ("p2p_op_list[1] and p2p_op_list[0]",),
    ),
    "all_reduce: elements share memory": (lambda j: j.dist.all_reduce(windows()), lambda n: ()),
    "all_reduce: expanded": (lambda j: j.dist.all_reduce(expanded()), lambda n: ()),
    "all_gather_into_tensor: output windows": (
        lambda j: j.dist.all_gather_into_tensor(
            np.lib.stride_tricks.as_strided(ones(20), (j.size, 3), (4, 4)), ones(3)
        ),
        lambda n: (),
    ),
    "irecv: expanded": (lambda j: j.dist.irecv(expanded(), src=j.other), lambda n: ()),
    # outputs that cannot be written
    "all_reduce: read-only": (lambda j: j.dist.all_reduce(read_only(3)), lambda n: ()),
    "broadcast: read-only": (lambda j: j.dist.broadcast(read_only(3), src=j.other), lambda n: ()),
    "reduce: read-only at the destination": (lambda j: j.dist.reduce(read_only(3), dst=j.rank), lambda n: ()),
    "all_gather: read-only output": (
        lambda j: j.dist.all_gather([read_only(3) for _ in range(j.size)], ones(3)),
        lambda n: (),
    ),
    "reduce_scatter_tensor: read-only": (
        lambda j: j.dist.reduce_scatter_tensor(read_only(3), ones(j.size, 3)),
        lambda n: (),
    ),
    "recv: read-only": (lambda j: j.dist.recv(read_only(3), src=j.other), lambda n: ()),
    "broadcast: read-only bytes": (
        lambda j: j.dist.broadcast(np.frombuffer(b"abcd", np.uint8), src=j.other),
        lambda n: (),
    ),
    # dtypes that do not fit each other
    "all_gather: outputs of another dtype": (
        lambda j: j.dist.all_gather([ones(3, dtype="f8") for _ in range(j.size)], ones(3)),
        lambda n: ("float32", "float64"),
    ),
    "all_gather_into_tensor: output of another dtype": (
        lambda j: j.dist.all_gather_into_tensor(ones(j.size, 3, dtype="i4"), ones(3)),
        lambda n: ("float32", "int32"),
    ),
    "reduce_scatter_tensor: output of another dtype": (
        lambda j: j.dist.reduce_scatter_tensor(ones(3, dtype="u1"), ones(j.size, 3, dtype="i1")),
        lambda n: ("uint8", "int8"),
    ),
    "scatter: inputs of another dtype": (
        lambda j: j.dist.scatter(ones(3), [ones(3, dtype="i8") for _ in range(j.size)], src=j.rank),
        lambda n: ("float32", "int64"),
    ),
    "all_to_all: one input of another dtype": (
        lambda j: j.dist.all_to_all(lists(j.size), [*lists(j.size - 1), ones(3, dtype="f2")]),
        lambda n: ("float32", "float16"),
    ),
    "all_to_all_single: dtypes differ": (
        lambda j: j.dist.all_to_all_single(ones(j.size, dtype="c8"), ones(j.size, dtype="f8")),
        lambda n: ("complex64", "float64"),
    ),
    # roots and peers
    "broadcast: no such source": (lambda j: j.dist.broadcast(ones(3), src=j.size), lambda n: (n,)),
    "broadcast: negative source": (lambda j: j.dist.broadcast(ones(3), src=-1), lambda n: (-1,)),
    "broadcast: no source": (lambda j: j.dist.broadcast(ones(3)), lambda n: ("src",)),
    "broadcast: source named twice": (
        lambda j: j.dist.broadcast(ones(3), src=0, group_src=0),
        lambda n: ("src", "group_src"),
    ),
    "reduce: no destination": (lambda j: j.dist.reduce(ones(3)), lambda n: ("dst",)),
    "reduce: no such destination": (lambda j: j.dist.reduce(ones(3), dst=j.size + 7), lambda n: (n + 7,)),
    "gather: no such destination": (lambda j: j.dist.gather(ones(3), None, group_dst=j.size), lambda n: (n,)),
    "send: no such destination": (lambda j: j.dist.send(ones(3), dst=j.size), lambda n: (n,)),
    "send: to itself, with no receive posted": (
        lambda j: j.dist.send(ones(3), dst=j.rank),
        lambda n: ("itself", "awaits none"),
    ),
    "recv: from itself, with nothing sent": (
        lambda j: j.dist.recv(ones(3), src=j.rank),
        lambda n: ("itself", "sent none"),
    ),
    "recv_tensor: from itself, with nothing sent": (
        lambda j: j.dist.recv_tensor(src=j.rank),
        lambda n: ("itself", "sent none"),
    ),
    "send_object_list: to itself": (lambda j: j.dist.send_object_list([1], dst=j.rank), lambda n: ("itself",)),
    "irecv: no such source": (lambda j: j.dist.irecv(ones(3), src=j.size), lambda n: (n,)),
    "send: negative tag": (lambda j: j.dist.send(ones(3), dst=j.other, tag=-3), lambda n: (-3,)),
    "batch_isend_irecv: no operations": (lambda j: j.dist.batch_isend_irecv([]), lambda n: ()),
    "batch_isend_irecv: something else": (lambda j: j.dist.batch_isend_irecv([ones(3)]), lambda n: ()),
    "P2POp: not isend or irecv": (lambda j: j.dist.P2POp(j.dist.broadcast, ones(3), j.other), lambda n: ()),
    # operations
    "all_reduce: no operation": (lambda j: j.dist.all_reduce(ones(3), op="sum"), lambda n: ("sum",)),
    "all_reduce: PREMUL_SUM without its factor": (
        lambda j: j.dist.all_reduce(ones(3), op=j.dist.ReduceOp.PREMUL_SUM),
        lambda n: ("PREMUL_SUM",),
    ),
    "reduce: no operation": (lambda j: j.dist.reduce(ones(3), dst=0, op=None), lambda n: ("None",)),
}
# On one rank these are right, or something else is wrong with them first.
NEED_OTHERS = (
    "all_gather: an output twice",
    "all_gather: outputs overlap",
    "all_gather_into_tensor: output windows",
    "gather: an output twice",
    "gather: a column twice",
    "batch_isend_irecv: a tensor for two messages",
    "batch_isend_irecv: a part received into what is sent",
    "all_to_all: an output twice",
    "all_to_all_single: negative split",
    "broadcast: read-only",
    "broadcast: read-only bytes",
    "recv: read-only",
    "irecv: expanded",
    "send: negative tag",
    "P2POp: not isend or irecv",
)


NAMES = [pytest.param(name, marks=pytest.mark.ranks(min=2) if name in NEED_OTHERS else ()) for name in WRONG]


@pytest.mark.parametrize("name", NAMES)
def test_wrong_call(dist: ModuleType, rank: int, size: int, name: str) -> None:
    call, texts = WRONG[name]
    refused(dist, rank, size, call, (dist.ArgumentError, dist.DTypeError), texts(size))


@pytest.mark.ranks(min=2)
def test_list_on_a_rank_that_is_not_the_root(dist: ModuleType, rank: int, size: int) -> None:
    """Everybody but the root would be wrong to bring a list."""

    def gather(job: Job) -> None:
        job.dist.gather(ones(3), lists(job.size), dst=job.other)

    def scatter(job: Job) -> None:
        job.dist.scatter(ones(3), lists(job.size), src=job.other)

    for call in (gather, scatter):
        refused(dist, rank, size, call, (dist.ArgumentError,), (rank, (rank + 1) % size))


@pytest.mark.ranks(min=3)
def test_root_that_is_not_in_the_group(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group([0, 2])
    if rank in (0, 2):
        calls: list[Callable[[], Any]] = [
            lambda: dist.broadcast(ones(3), src=1, group=group),
            lambda: dist.reduce(ones(3), dst=1, group=group),
            lambda: dist.gather(ones(3), None, dst=1, group=group),
            lambda: dist.scatter(ones(3), None, src=1, group=group),
            lambda: dist.send(ones(3), dst=1, group=group),
            lambda: dist.recv(ones(3), src=1, group=group),
        ]
        for call in calls:
            with pytest.raises(dist.ArgumentError, match=r"\b1\b"):
                call()
        array = ones(3)
        dist.all_reduce(array, group=group)
        assert array.tolist() == [2, 2, 2]
        dist.destroy_process_group(group)
    still_works(dist, rank, size)


def test_message_has_the_operation_the_group_and_the_rank(dist: ModuleType, rank: int, size: int) -> None:
    with pytest.raises(dist.ArgumentError) as caught:
        dist.all_gather(lists(size + 1), ones(3))
    text = str(caught.value)
    assert text.startswith("all_gather(group=")
    assert f"rank {rank} of {size})" in text
    assert "expected" in text
    assert "got" in text
