"""A tour of mpicoll: every function once, on torch tensors and on numpy arrays, with what each rank got.

    mpirun -n 4 python examples/tour.py

Prints one line per call: what was called, then the value on each rank (``0: ..  1: ..``), or once where all ranks got
the same. Each rank compares its value with the right one, and the tour ends with an error at the first that is wrong.
At the end it reads its own source, to make sure that no function of ``mpicoll.__all__`` was forgotten.

Runs on any number of ranks; point to point needs two.
"""

from __future__ import annotations

import ast
import inspect
import math
import operator
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor

import mpicoll as dist

ArrayMaker = Callable[[Any], Any]  # torch.tensor or numpy.array


def plain(value: Any) -> Any:
    """Return a value with its arrays made lists, so that it can be compared and printed."""
    if isinstance(value, (Tensor, np.ndarray)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def show(call: str, got: Any, right: Any) -> None:
    """Check what this rank got from a call; print on rank 0 what every rank got."""
    got, right = plain(got), plain(right)
    if got != right:
        raise AssertionError(f"{call} on rank {dist.get_rank()}: expected {right}, got {got}")
    everyone: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(got, everyone, dst=0)
    if everyone is None:
        return
    texts = [f"{rank}: {value}" for rank, value in enumerate(everyone)]
    if all(value == everyone[0] for value in everyone):
        texts = [str(everyone[0])]
    fits = sum(map(len, texts)) < 80
    print(f"  {call:<36} " + ("  " if fits else "\n" + 39 * " ").join(texts))


def heading(text: str) -> None:
    if dist.get_rank() == 0:
        print(f"\n{text}")


def world() -> None:
    before = dist.is_initialized()
    dist.init_process_group()
    node = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)

    heading("the world")
    show("is_available", dist.is_available(), True)
    show("is_initialized, before and after", [before, dist.is_initialized()], [False, True])
    show("get_backend", dist.get_backend(), "mpicoll")
    show("get_rank", dist.get_rank(), MPI.COMM_WORLD.rank)
    show("get_world_size", dist.get_world_size(), MPI.COMM_WORLD.size)
    show("get_node_local_rank", dist.get_node_local_rank(), node.rank)
    show("get_local_world_size", dist.get_local_world_size(), node.size)
    show("get_pg_count", dist.get_pg_count(), 1)
    show("local_device", dist.local_device().type, "cuda" if torch.cuda.is_available() else "cpu")
    node.Free()


def groups(r: int, n: int) -> None:
    heading("groups")
    even, odd = list(range(0, n, 2)), list(range(1, n, 2))
    mine = odd if r % 2 else even
    halves = [ranks for ranks in (even, odd) if ranks]

    group = dist.new_group(even)
    member = group is not dist.GroupMember.NON_GROUP_MEMBER
    show("new_group of the even ranks: member", member, r % 2 == 0)
    show("get_rank in it", dist.get_rank(group), r // 2 if member else -1)
    if member:
        dist.destroy_process_group(group)

    group = dist.new_group(mine, use_local_synchronization=True)
    show("get_process_group_ranks", dist.get_process_group_ranks(group), mine)
    show("get_group_rank of me", dist.get_group_rank(group, r), r // 2)
    show("get_global_rank of my group's rank 0", dist.get_global_rank(group, 0), mine[0])
    dist.destroy_process_group(group)

    group = dist.split_group(split_ranks=halves)
    show("split_group in halves", group.ranks, mine)
    dist.destroy_process_group(group)

    group, _ = dist.new_subgroups_by_enumeration(halves)
    show("new_subgroups_by_enumeration", group.ranks, mine)

    width = 2 if n % 2 == 0 else n
    group, subgroups = dist.new_subgroups(width)
    first = r - r % width
    show(f"new_subgroups of {width}", group.ranks, list(range(first, first + width)))
    show("how many", len(subgroups), n // width)
    x = torch.tensor([r])
    dist.broadcast(x, group_src=0, group=group)
    show("broadcast from each group's rank 0", x, [first])


def reductions(r: int, n: int) -> None:
    heading("the nine reductions: rank r has r + 1")
    values, total = list(range(1, n + 1)), n * (n + 1) // 2
    for op, whole, right in (
        (dist.ReduceOp.SUM, True, total),
        (dist.ReduceOp.AVG, False, total / n),
        (dist.ReduceOp.PRODUCT, True, math.factorial(n)),
        (dist.ReduceOp.MIN, True, 1),
        (dist.ReduceOp.MAX, True, n),
        (dist.ReduceOp.BAND, True, reduce(operator.and_, values)),
        (dist.ReduceOp.BOR, True, reduce(operator.or_, values)),
        (dist.ReduceOp.BXOR, True, reduce(operator.xor, values)),
        (dist.ReduceOp.PREMUL_SUM(0.5), False, total / 2),
    ):
        x = torch.tensor(r + 1, dtype=torch.int64 if whole else torch.float64)
        dist.all_reduce(x, op=op)
        show(f"all_reduce {op}", x, right)


def collectives(array: ArrayMaker, r: int, n: int) -> None:
    ranks, total = range(n), n * (n + 1) // 2

    x = array([10 * r, 10 * r + 1])
    dist.broadcast(x, src=0)
    show("broadcast from 0", x, [0, 1])

    x = array([r + 1, 1])
    dist.all_reduce(x)
    show("all_reduce", x, [total, n])

    x = array([[0, r + 1], [0, r + 1]])
    dist.all_reduce(x[:, 1])
    show("all_reduce of a column", x, [[0, total], [0, total]])

    x = array([r + 1])
    dist.reduce(x, dst=0)
    show("reduce to 0", x, [total] if r == 0 else [r + 1])

    parts = [array([0] * (k + 1)) for k in ranks]
    dist.all_gather(parts, array([r] * (r + 1)))
    show("all_gather of uneven parts", parts, [[k] * (k + 1) for k in ranks])

    for name, all_gather in (
        ("all_gather_into_tensor", dist.all_gather_into_tensor),
        ("all_gather_single, the same", dist.all_gather_single),
    ):
        out = array([0] * n)
        all_gather(out, array([10 * r]))
        show(name, out, [10 * k for k in ranks])

    gathered = [array([0]) for _ in ranks] if r == 0 else None
    dist.gather(array([r]), gathered, dst=0)
    show("gather to 0", gathered, [[k] for k in ranks] if r == 0 else None)

    x = array([-1])
    dist.scatter(x, [array([10 * k]) for k in ranks] if r == 0 else None, src=0)
    show("scatter from 0", x, [10 * r])

    x = array([0])
    dist.reduce_scatter(x, [array([(r + 1) * 10**k]) for k in ranks])
    show("reduce_scatter", x, [total * 10**r])

    for name, reduce_scatter in (
        ("reduce_scatter_tensor", dist.reduce_scatter_tensor),
        ("reduce_scatter_single, the same", dist.reduce_scatter_single),
    ):
        x = array([0])
        reduce_scatter(x, array([(r + 1) * 10**k for k in ranks]))
        show(name, x, [total * 10**r])

    parts = [array([0]) for _ in ranks]
    dist.all_to_all(parts, [array([10 * r + k]) for k in ranks])
    show("all_to_all", parts, [[10 * k + r] for k in ranks])

    out = array([0] * (n * (r + 1)))  # rank r gets r + 1 elements from everyone
    data = [10 * r + k for k in ranks for _ in range(k + 1)]
    dist.all_to_all_single(out, array(data), [r + 1] * n, [k + 1 for k in ranks])
    show("all_to_all_single, uneven", out, [10 * k + r for k in ranks for _ in range(r + 1)])

    xs = [array([r + 1]), array([0.5, 1.5])]
    dist.all_reduce_coalesced(xs)
    show("all_reduce_coalesced", xs, [[total], [0.5 * n, 1.5 * n]])

    outs = [array([0] * n), array([0.0] * n)]
    dist.all_gather_into_tensor_coalesced(outs, [array([r]), array([r / 2])])
    show("all_gather_into_tensor_coalesced", outs, [list(ranks), [k / 2 for k in ranks]])

    outs = [array([0]), array([0.0])]
    dist.reduce_scatter_tensor_coalesced(outs, [array(list(ranks)), array([0.5] * n)])
    show("reduce_scatter_tensor_coalesced", outs, [[n * r], [0.5 * n]])

    show("barrier", dist.barrier(), None)
    show("monitored_barrier, which names who has not come", dist.monitored_barrier(timeout=60), None)


def point_to_point(array: ArrayMaker, r: int, n: int) -> None:
    left, right = (r - 1) % n, (r + 1) % n

    x = array([0])
    source = dist.recv(x, src=r - 1) if r > 0 else None
    if r + 1 < n:
        dist.send(x + 1, dst=r + 1)
    show("send, recv along a chain", [x, source], [[r], r - 1 if r > 0 else None])

    arrived = []
    if r > 0:
        dist.send(array([10 * r]), dst=0, tag=1)
    else:
        for _ in range(1, n):
            source = dist.recv(x, tag=1)
            arrived.append([source, plain(x)])
    show("recv from anyone", sorted(arrived), [] if r > 0 else [[k, [10 * k]] for k in range(1, n)])

    x = array([-1])
    works = [dist.irecv(x, src=left), dist.isend(array([r]), dst=right)]
    for work in works:
        work.wait()
    show("isend, irecv round a ring", x, [left])
    show("Work.source_rank of the irecv", works[0].source_rank(), left)

    x = array([-1])
    receive, send = dist.P2POp(dist.irecv, x, peer=right), dist.P2POp(dist.isend, array([r]), peer=left)
    for work in dist.batch_isend_irecv([receive, send]):
        work.wait()
    show("batch_isend_irecv, the other way", x, [right])

    work = dist.isend(array([[r] * (r + 1)]), dst=right)
    x = dist.recv_tensor(src=left)
    work.wait()
    show("recv_tensor, size unknown", x, [[left] * (left + 1)])


def objects(r: int, n: int) -> None:
    heading("objects")
    everyone: list[Any] = [None] * n
    dist.all_gather_object(everyone, {"rank": r})
    show("all_gather_object", everyone, [{"rank": k} for k in range(n)])

    gathered: list[Any] | None = [None] * n if r == 0 else None
    dist.gather_object("x" * r, gathered, dst=0)
    show("gather_object to 0", gathered, ["x" * k for k in range(n)] if r == 0 else None)

    pair: list[Any] = ["from 0", torch.ones(2)] if r == 0 else [None, None]
    dist.broadcast_object_list(pair, src=0)
    show("broadcast_object_list from 0", pair, ["from 0", [1.0, 1.0]])

    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [f"for {k}" for k in range(n)] if r == 0 else None, src=0)
    show("scatter_object_list from 0", mine, [f"for {r}"])

    if n > 1:
        parcel: list[Any] = ["left by", 0] if r == 0 else [None, None]
        if r == 0:
            dist.send_object_list(parcel, dst=1)
        elif r == 1:
            dist.recv_object_list(parcel, src=0)
        show("send_object_list, recv_object_list", parcel, ["left by", 0] if r <= 1 else [None, None])


def asynchronous(r: int, n: int) -> None:
    heading("asynchronous: a Work stands for what is under way")
    x = torch.tensor([1.0])
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    show("wait", work.wait(timeout=timedelta(seconds=60)), True)
    show("is_completed, is_success", [work.is_completed(), work.is_success()], [True, True])
    show("exception", work.exception(), None)
    show("result", work.result(), [[n]])
    show("get_future().value()", work.get_future().value(), [[n]])


def differentiable(r: int, n: int) -> None:
    heading("differentiable: value, and gradient of (rank + 1) x sum of the value")
    d, total = dist.differentiable, n * (n + 1) / 2
    ranks, ones, weights = range(n), [1.0] * n, [k + 1.0 for k in range(n)]

    def check(call: str, function: Callable[[Tensor], Any], x: Sequence[float], value: Any, gradient: Any) -> None:
        leaf = torch.tensor(x, requires_grad=True)
        outcome = function(leaf)
        parts = [outcome] if isinstance(outcome, Tensor) else list(outcome)
        ((r + 1) * torch.cat(parts).sum()).backward()  # type: ignore[no-untyped-call]
        show(call, [outcome, leaf.grad], [value, gradient])

    def pieces(x: Tensor) -> list[Tensor]:
        return list(torch.split(x, 1))

    one, mine = torch.zeros(1), [r + 1.0]
    check("all_reduce", lambda x: d.all_reduce(x), mine, [total], [total])
    check("broadcast", lambda x: d.broadcast(x, 0), mine, [1.0], [total if r == 0 else 0.0])
    check("reduce", lambda x: d.reduce(x, 0), mine, [total] if r == 0 else mine, [1.0])
    check("all_gather", lambda x: d.all_gather(x), mine, [[w] for w in weights], [total])
    check("all_gather_into_tensor", lambda x: d.all_gather_into_tensor(torch.zeros(n), x), mine, weights, [total])
    check("gather", lambda x: d.gather(x, 0), mine, [[w if r == 0 else 0.0] for w in weights], [1.0])
    check("scatter", lambda x: d.scatter(pieces(x), 0), ones, [1.0], weights if r == 0 else [0.0] * n)
    check("reduce_scatter", lambda x: d.reduce_scatter(one, pieces(x)), ones, [n], weights)
    check("reduce_scatter_tensor", lambda x: d.reduce_scatter_tensor(one, x), ones, [n], weights)
    sent, received = [10.0 * r + k for k in ranks], [10.0 * k + r for k in ranks]
    singly = [[value] for value in received]
    check("all_to_all", lambda x: d.all_to_all(pieces(torch.zeros(n)), pieces(x)), sent, singly, weights)
    check("all_to_all_single", lambda x: d.all_to_all_single(torch.zeros(n), x), sent, received, weights)


def communicators(r: int, n: int) -> None:
    heading("communicators shared with mpi4py")
    world_group = dist.group.WORLD
    assert world_group is not None
    show("group.WORLD.comm.allreduce(1)", world_group.comm.allreduce(1), n)

    comm = MPI.COMM_WORLD.Split(color=r % 2, key=r)
    group = dist.new_group(comm=comm)
    x = np.array([r])
    dist.all_reduce(x, group=group)
    show("new_group(comm=), all_reduce", x, [sum(range(r % 2, n, 2))])
    comm.Free()

    dist.destroy_process_group()
    backwards = MPI.COMM_WORLD.Split(key=-r)
    dist.init_process_group(comm=backwards)
    show("init_process_group(comm=): world rank", MPI.COMM_WORLD.rank, n - 1 - dist.get_rank())
    backwards.Free()


def forgotten() -> list[str]:
    """Return the functions of mpicoll and of mpicoll.differentiable that this file does not name."""
    nodes = ast.walk(ast.parse(Path(__file__).read_text()))
    used = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    d = dist.differentiable
    functions = [f"dist.{name}" for name in dist.__all__ if inspect.isroutine(getattr(dist, name))]
    functions += [f"d.{name}" for name in d.__all__ if inspect.isroutine(getattr(d, name))]
    return [name for name in functions if name not in used]


def main() -> None:
    world()
    r, n = dist.get_rank(), dist.get_world_size()
    groups(r, n)
    reductions(r, n)
    makers: list[tuple[str, ArrayMaker]] = [("torch tensors", torch.tensor), ("numpy arrays", np.array)]
    for kind, array in makers:
        heading(f"collectives on {kind}")
        collectives(array, r, n)
    for kind, array in makers if n > 1 else []:
        heading(f"point to point with {kind}")
        point_to_point(array, r, n)
    objects(r, n)
    asynchronous(r, n)
    differentiable(r, n)
    communicators(r, n)

    heading("done")
    show("functions that the tour forgot", forgotten(), [])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
