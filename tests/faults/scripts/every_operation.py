"""Every operation on arrays of 2503 elements, and on uneven parts, against what a rank can compute by itself.

2503 is prime: no size of piece divides it. Prints what differs, the collective calls that were given more than the
bound, and, at the end, "all compared".
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import mpicoll as dist

N = 2503
F4 = np.float32


def say(text: str) -> None:
    os.write(1, (text + "\n").encode())


def made(r: int, n: int = N, dtype: Any = F4) -> Any:
    """Return what rank r sends."""
    return ((np.arange(n) * (r + 3) + r) % 101).astype(dtype)


def check(name: str, got: Any, expected: Any) -> None:
    got, expected = np.asarray(got), np.asarray(expected)
    if got.dtype != expected.dtype or not np.array_equal(got, expected):
        say(f"WRONG {name} on {rank}: {got} where {expected} is right")


def check_parts(name: str, got: Any, expected: Any) -> None:
    check(name, [len(part) for part in got], [len(part) for part in expected])
    check(name, np.concatenate(got), np.concatenate(expected))


def reductions() -> None:
    x = made(rank)
    dist.all_reduce(x)
    check("all_reduce", x, total)
    x = made(rank)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    work.wait()
    check("asynchronous all_reduce", x, total)
    x = made(rank)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    check("average", x, total / F4(size))
    for dtype in ("i8", "u1", "f2", "c8", "i2"):
        x = made(rank, dtype=dtype)
        dist.all_reduce(x)
        check(f"all_reduce of {dtype}", x, sum(made(r, dtype=dtype) for r in range(size)))
    x = made(rank) > 50
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    check("all_reduce of bool", x, np.any([everyone > 50 for everyone in everyones], axis=0))
    wide = np.zeros((N, 3), F4)
    wide[:, 1] = made(rank)
    dist.all_reduce(wide[:, 1])
    check("all_reduce of a column", wide, np.stack([0 * total, total, 0 * total], axis=1))
    x = made(rank)
    dist.reduce(x, 0)
    check("reduce", x, total if rank == 0 else everyones[rank])
    xs = [made(rank), made(rank, 1201)]
    dist.all_reduce_coalesced(xs)
    check_parts("all_reduce_coalesced", xs, [total, sum(made(r, 1201) for r in range(size))])


def reduce_scatters() -> None:
    for shorter in (0, 500):
        x = np.zeros(N - shorter * rank, F4)
        dist.reduce_scatter(x, [made(rank + 5 * j, N - shorter * j) for j in range(size)])
        check(f"reduce_scatter {shorter}", x, sum(made(r + 5 * rank, N - shorter * rank) for r in range(size)))
    x, y = np.zeros(N, F4), np.zeros(N, F4)
    given = np.concatenate([made(rank + 5 * j) for j in range(size)])
    dist.reduce_scatter_tensor(x, given)
    check("reduce_scatter_tensor", x, sum(made(r + 5 * rank) for r in range(size)))
    dist.reduce_scatter_tensor_coalesced([x, y], [given, given])
    check_parts("reduce_scatter_tensor_coalesced", [x, y], [sum(made(r + 5 * rank) for r in range(size))] * 2)


def one_to_all_and_back() -> None:
    x = made(rank)
    dist.broadcast(x, size - 1)
    check("broadcast", x, everyones[-1])
    x = made(rank, dtype="M8[s]")
    dist.broadcast(x, 0)
    check("broadcast of times", x, made(0, dtype="M8[s]"))
    for shorter in (0, 500):
        parts = [made(r, N - shorter * r) for r in range(size)]
        out = [np.zeros_like(part) for part in parts]
        dist.gather(parts[rank], out if rank == 1 else None, dst=1)
        check_parts(f"gather {shorter}", out, parts if rank == 1 else [0 * part for part in parts])
        x = np.zeros_like(parts[rank])
        dist.scatter(x, parts if rank == 1 else None, src=1)
        check(f"scatter {shorter}", x, parts[rank])
        out = [np.zeros_like(part) for part in parts]
        dist.all_gather(out, parts[rank])
        check_parts(f"all_gather {shorter}", out, parts)
    x, y = np.zeros(size * N, F4), np.zeros(size * N, F4)
    dist.all_gather_into_tensor(x, made(rank))
    check("all_gather_into_tensor", x, np.concatenate(everyones))
    dist.all_gather_into_tensor_coalesced([x, y], [made(rank), 2 * made(rank)])
    check(
        "all_gather_into_tensor_coalesced", np.stack([x, y]), np.outer(np.array([1, 2], F4), np.concatenate(everyones))
    )


def all_to_alls() -> None:
    def split(a: int, b: int) -> int:
        return 900 + 700 * a + 401 * b  # elements from rank a to rank b

    x = np.zeros(size * N, F4)
    dist.all_to_all_single(x, np.concatenate([made(rank + 5 * j) for j in range(size)]))
    check("all_to_all_single", x, np.concatenate([made(j + 5 * rank) for j in range(size)]))
    parts = [made(rank + 5 * j, split(rank, j)) for j in range(size)]
    expected = [made(j + 5 * rank, split(j, rank)) for j in range(size)]
    out = [np.zeros_like(part) for part in expected]
    dist.all_to_all(out, parts)
    check_parts("all_to_all", out, expected)
    x = np.zeros(sum(map(len, expected)), F4)
    dist.all_to_all_single(x, np.concatenate(parts), list(map(len, expected)), list(map(len, parts)))
    check("all_to_all_single with splits", x, np.concatenate(expected))


def messages() -> None:
    left, right = (rank - 1) % size, (rank + 1) % size
    x = np.zeros(N, F4)
    work = dist.isend(made(rank), right)
    dist.recv(x, left)
    work.wait()
    check("recv", x, everyones[left])
    work = dist.isend(made(rank), right, tag=2)
    check("recv_tensor", dist.recv_tensor(left, tag=2), everyones[left])
    work.wait()
    x = np.zeros(N, F4)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, left), dist.P2POp(dist.isend, made(rank), right)]):
        work.wait()
    check("batch_isend_irecv", x, everyones[left])
    x = np.zeros(N, F4)
    for work in [dist.isend(made(rank), rank), dist.irecv(x, rank)]:
        work.wait()
    check("a message to itself", x, everyones[rank])


def many_arrays() -> None:
    """Objects of so many arrays that the table of their sizes is beyond the bound, too."""
    many = [np.array([i + rank]) for i in range(1100)]
    got: list[Any] = [None] * size
    dist.all_gather_object(got, many)
    check("all_gather_object of many arrays", np.array(got)[:, :, 0], np.add.outer(np.arange(size), np.arange(1100)))
    got = [many if rank == 1 else None]
    dist.broadcast_object_list(got, 1)
    check("broadcast_object_list of many arrays", np.concatenate(got[0]), np.arange(1100) + 1)
    got = [None]
    dist.scatter_object_list(got, [many] * size if rank == 0 else None, 0)
    check("scatter_object_list of many arrays", np.concatenate(got[0]), np.arange(1100))


def objects() -> None:
    got: list[Any] = [None] * size
    dist.all_gather_object(got, {"array": made(rank, N + rank), "text": "x" * (N * rank)})
    check_parts("all_gather_object", [item["array"] for item in got], [made(r, N + r) for r in range(size)])
    check("text of all_gather_object", [len(item["text"]) for item in got], [N * r for r in range(size)])
    got = [made(1, 5 * N)] if rank == 1 else [None]
    dist.broadcast_object_list(got, 1)
    check("broadcast_object_list", got[0], made(1, 5 * N))
    got = [None]
    dist.scatter_object_list(got, [made(r, N + r) for r in range(size)] if rank == 0 else None, 0)
    check("scatter_object_list", got[0], made(rank, N + rank))
    got = [None] * size
    dist.gather_object(made(rank, N * (rank + 1)), got if rank == 0 else None, 0)
    if rank == 0:
        check_parts("gather_object", got, [made(r, N * (r + 1)) for r in range(size)])
    got = [made(0, 3 * N)] if rank == 0 else [None]
    if rank == 0:
        dist.send_object_list(got, 1)
    elif rank == 1:
        dist.recv_object_list(got, 0)
        check("recv_object_list", got[0], made(0, 3 * N))


class Counted:
    """A communicator that tells of calls with more than the bound."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._comm, name)

        def call(*arguments: Any) -> Any:
            for spec in arguments:
                if isinstance(spec, list) and int(np.sum(spec[1])) > BOUND:
                    say(f"WRONG {name} of {spec[1]} on {rank}")
            return method(*arguments)

        return call


BOUND = int(os.environ["MPICOLL_MAX_COUNT"])
dist.init_process_group()
engine: Any = dist.group.WORLD.engine  # type: ignore[union-attr]
engine.comm = Counted(engine.comm)
rank, size = dist.get_rank(), dist.get_world_size()
everyones = [made(r) for r in range(size)]
total = sum(everyones)
for part in (reductions, reduce_scatters, one_to_all_and_back, all_to_alls, messages, objects, many_arrays):
    part()
say("all compared")
