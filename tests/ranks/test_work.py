"""Work handles: what they answer, the order of operations, progress while the program sleeps, time-outs, lost ones."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

Operation = Callable[[ModuleType, int, int, bool], tuple[Any, Any, Any]]


def operations() -> dict[str, Operation]:
    """Return each operation as a function that starts it; it gives what that returned, the output, the right value."""

    def value(r: int) -> Any:
        return np.full(2, r + 1.0)

    def all_reduce(d: ModuleType, r: int, n: int, a: bool) -> tuple[Any, Any, Any]:
        x = value(r)
        return d.all_reduce(x, async_op=a), x, [n * (n + 1) / 2] * 2

    def broadcast(d: ModuleType, r: int, n: int, a: bool) -> tuple[Any, Any, Any]:
        x = value(r)
        return d.broadcast(x, n - 1, async_op=a), x, [float(n)] * 2

    def reduce(d: ModuleType, r: int, n: int, a: bool) -> tuple[Any, Any, Any]:
        x = value(r)
        return d.reduce(x, 0, async_op=a), x, [n * (n + 1) / 2 if r == 0 else r + 1.0] * 2

    def all_gather(d: ModuleType, r: int, n: int, a: bool) -> tuple[Any, Any, Any]:
        out = np.zeros((n, 2))
        return d.all_gather(list(out), value(r), async_op=a), out, [[q + 1.0] * 2 for q in range(n)]

    def all_gather_into_tensor(d: ModuleType, r: int, n: int, a: bool) -> tuple[Any, Any, Any]:
        out = np.zeros((n, 2))
        return d.all_gather_into_tensor(out, value(r)[None], async_op=a), out, [[q + 1.0] * 2 for q in range(n)]

    def gather(d: ModuleType, r: int, n: int, a: bool) -> tuple[Any, Any, Any]:
        out = np.zeros((n, 2))
        returned = d.gather(value(r), list(out) if r == 0 else None, 0, async_op=a)
        return returned, out, [[q + 1.0 if r == 0 else 0.0] * 2 for q in range(n)]

    def scatter(d: ModuleType, r: int, n: int, a: bool) -> tuple[Any, Any, Any]:
        out = np.zeros(2)
        return d.scatter(out, [value(q) for q in range(n)] if r == 0 else None, 0, async_op=a), out, [r + 1.0] * 2

    def reduce_scatter(d: ModuleType, r: int, n: int, a: bool) -> tuple[Any, Any, Any]:
        out = np.zeros(2)
        return d.reduce_scatter(out, [value(q) for q in range(n)], async_op=a), out, [n * (r + 1.0)] * 2

    def reduce_scatter_tensor(d: ModuleType, r: int, n: int, a: bool) -> tuple[Any, Any, Any]:
        out, given = np.zeros(2), np.concatenate([value(q) for q in range(n)])
        return d.reduce_scatter_tensor(out, given, async_op=a), out, [n * (r + 1.0)] * 2

    def all_to_all(d: ModuleType, r: int, n: int, a: bool) -> tuple[Any, Any, Any]:
        out = np.zeros((n, 2))
        return (
            d.all_to_all(list(out), [value(r + 10 * q) for q in range(n)], async_op=a),
            out,
            [[10 * r + q + 1.0] * 2 for q in range(n)],
        )

    def all_to_all_single(d: ModuleType, r: int, n: int, a: bool) -> tuple[Any, Any, Any]:
        out = np.zeros((n, 2))
        given = np.stack([value(r + 10 * q) for q in range(n)])
        return d.all_to_all_single(out, given, async_op=a), out, [[10 * r + q + 1.0] * 2 for q in range(n)]

    def all_reduce_coalesced(d: ModuleType, r: int, n: int, a: bool) -> tuple[Any, Any, Any]:
        out = np.stack([value(r), value(r)])
        return d.all_reduce_coalesced(list(out), async_op=a), out, [[n * (n + 1) / 2] * 2] * 2

    def all_gather_into_tensor_coalesced(d: ModuleType, r: int, n: int, a: bool) -> tuple[Any, Any, Any]:
        out = np.zeros((2, n, 2))
        given = [value(r)[None], -value(r)[None]]
        rows = np.array([[q + 1.0] * 2 for q in range(n)])
        return d.all_gather_into_tensor_coalesced(list(out), given, async_op=a), out, [rows.tolist(), (-rows).tolist()]

    def reduce_scatter_tensor_coalesced(d: ModuleType, r: int, n: int, a: bool) -> tuple[Any, Any, Any]:
        out, given = np.zeros((2, 2)), np.concatenate([value(q) for q in range(n)])
        return d.reduce_scatter_tensor_coalesced(list(out), [given, given], async_op=a), out, [[n * (r + 1.0)] * 2] * 2

    def barrier(d: ModuleType, r: int, n: int, a: bool) -> tuple[Any, Any, Any]:
        return d.barrier(async_op=a), np.zeros(1), [0.0]

    return {name: function for name, function in locals().items() if name != "value"}


OPERATIONS = operations()


@pytest.mark.parametrize("name", OPERATIONS)
def test_synchronous_calls_return_none(dist: ModuleType, rank: int, size: int, name: str) -> None:
    returned, output, expected = OPERATIONS[name](dist, rank, size, False)
    assert returned is None
    assert output.tolist() == expected


@pytest.mark.parametrize("name", OPERATIONS)
def test_asynchronous_calls_return_a_work(dist: ModuleType, rank: int, size: int, name: str) -> None:
    work, output, expected = OPERATIONS[name](dist, rank, size, True)
    assert isinstance(work, dist.Work)
    assert work.wait() is True
    assert output.tolist() == expected
    assert (work.is_completed(), work.is_success(), work.exception(), work.wait()) == (True, True, None, True)
    assert isinstance(work.result(), list)


@pytest.mark.parametrize("name", OPERATIONS)
def test_polling_alone_ends(dist: ModuleType, rank: int, size: int, name: str) -> None:
    work, output, expected = OPERATIONS[name](dist, rank, size, True)
    while not work.is_completed():
        time.sleep(0.001)
    assert output.tolist() == expected


def test_results_and_futures_are_the_outputs(dist: ModuleType, size: int) -> None:
    x = np.ones(3)
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    then = future.then(lambda done: ["returned", done.value()])
    [waited] = future.wait()
    assert waited is x
    assert future.done()
    assert future.value()[0] is x
    assert then.wait()[0] == "returned"
    assert then.wait()[1][0] is x
    assert work.result()[0] is x
    assert x.tolist() == [size] * 3


@pytest.mark.needs_torch
def test_the_future_of_tensors_is_torchs(dist: ModuleType, size: int) -> None:
    import torch

    x, outputs = torch.ones(3), [torch.zeros(3) for _ in range(size)]
    future = dist.all_reduce(x, async_op=True).get_future()
    doubled = (
        dist.all_gather(outputs, torch.ones(3), async_op=True).get_future().then(lambda f: f.value()[size - 1] * 2)
    )
    assert isinstance(future, torch.futures.Future)
    assert future.wait()[0] is x
    assert x.tolist() == [size] * 3
    assert doubled.wait().tolist() == [2] * 3
    assert [tensor.tolist() for tensor in outputs] == [[1] * 3] * size


# Order


def test_operations_of_a_group_follow_the_program(dist: ModuleType, rank: int, size: int) -> None:
    x = np.array([rank + 1.0])
    works = [dist.all_reduce(x, async_op=True) for _ in range(5)]
    works.append(dist.broadcast(x, 0, async_op=True))
    for work in reversed(works):
        work.wait()
    assert x.item() == size * (size + 1) / 2 * size**4


def test_a_synchronous_call_comes_after_what_was_started(dist: ModuleType, rank: int, size: int) -> None:
    x, big = np.array([rank + 1.0]), np.full(500_000, rank + 1.0)
    first = dist.all_reduce(big, async_op=True)
    second = dist.all_reduce(x, async_op=True)
    dist.all_reduce(x)
    assert x.item() == size * (size + 1) / 2 * size
    assert first.wait()
    assert second.wait()
    assert set(big.tolist()) == {size * (size + 1) / 2}


def test_many_operations_at_once(dist: ModuleType, rank: int, size: int) -> None:
    arrays = [np.full(i % 7, float(i + rank)) for i in range(300)]
    works = [dist.all_reduce(x, async_op=True) for x in arrays]
    for i in np.random.default_rng(rank).permutation(300):  # each rank waits in an order of its own
        works[i].wait()
    assert [x.tolist() for x in arrays] == [[size * i + sum(range(size))] * (i % 7) for i in range(300)]


@pytest.mark.ranks(1)  # with others it may be more, where one of them stands still for a while
def test_a_program_that_starts_more_than_mpi_carries_out_is_slowed_down(dist: ModuleType) -> None:
    """Works that are dropped keep their arrays until they are done, so their number is that of the arrays."""
    kept = []
    for _ in range(5):
        arrays = [np.ones(1) for _ in range(1500)]
        alive = [weakref.ref(array) for array in arrays]
        while arrays:
            dist.all_reduce(arrays.pop(), async_op=True)
        kept.append(sum(array() is not None for array in alive))
        dist.barrier()
    assert sorted(kept)[2] < 300, kept


@pytest.mark.ranks(2)
def test_a_full_group_that_stands_still_holds_nothing_up(dist: ModuleType, rank: int, size: int) -> None:
    """Each rank starts what the other waits for after more operations than a group slows a program down for."""
    groups = [dist.new_group(range(size)) for _ in range(2)]
    for group in groups if rank == 0 else reversed(groups):
        works = [dist.all_reduce(np.ones(1), group=group, async_op=True) for _ in range(400)]
    x = np.ones(1)
    dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
    assert works[-1].wait()
    for group in groups:
        dist.destroy_process_group(group)


@pytest.mark.ranks(min=2)
def test_groups_do_not_wait_for_each_other(dist: ModuleType, rank: int, size: int) -> None:
    groups = [dist.new_group() for _ in range(3)]
    arrays = [np.ones(100_000) for _ in groups]
    order = [(i + rank) % 3 for i in range(3)]  # each rank starts and waits in an order of its own
    works = {i: dist.all_reduce(arrays[i], group=groups[i], async_op=True) for i in order}
    for i in order:
        works[i].wait()
    assert [set(x.tolist()) for x in arrays] == [{float(size)}] * 3
    for group in groups:
        dist.destroy_process_group(group)


@pytest.mark.ranks(min=2)
def test_a_synchronous_call_passes_a_stuck_group(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group()
    x, y = np.ones(10), np.ones(10)
    if rank == 0:
        work = dist.all_reduce(x, group=group, async_op=True)  # the others come to it only later
        dist.all_reduce(y)
    else:
        dist.all_reduce(y)
        work = dist.all_reduce(x, group=group, async_op=True)
    work.wait()
    assert (x.tolist(), y.tolist()) == ([size] * 10, [size] * 10)
    dist.destroy_process_group(group)


@pytest.mark.ranks(min=2)
def test_a_pending_receive_lets_everything_pass(dist: ModuleType, rank: int, size: int) -> None:
    got, x, objects = np.zeros(2), np.ones(2), [None] * size
    other = {0: 1, 1: 0}.get(rank)
    pending = None if other is None else dist.irecv(got, other, tag=9)
    dist.all_reduce(x)
    dist.all_gather_object(objects, rank)
    dist.all_reduce(x, async_op=True).wait()
    if pending is not None:
        assert not pending.is_completed()
    dist.barrier()
    if pending is not None:
        dist.send(np.full(2, rank + 1.0), other, tag=9)
        pending.wait()
        assert got.tolist() == [2.0 - rank] * 2
    assert x.tolist() == [size**2] * 2
    assert objects == list(range(size))


# Progress


class Flag:
    """A file that one rank raises and another sees, with no word of MPI."""

    def __init__(self, dist: ModuleType, rank: int) -> None:
        names = [tempfile.mktemp(prefix="mpicoll-flag-") if rank == 0 else None]
        dist.broadcast_object_list(names)
        self.path = Path(str(names[0]))

    def up(self) -> None:
        self.path.touch()

    def seen(self, seconds: float = 30.0) -> bool:
        """Look for it, sleeping between, until it is there or the time has gone."""
        deadline = time.monotonic() + seconds
        while not self.path.exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


@pytest.mark.ranks(2)
@pytest.mark.parametrize("n", [1, 2_000_000])
@pytest.mark.parametrize("operation", ["all_reduce", "send"])
def test_an_operation_moves_on_while_the_program_sleeps(dist: ModuleType, rank: int, n: int, operation: str) -> None:
    """Rank 1's part ends, and rank 1 says so, while rank 0 does nothing but look for the flag."""
    x, flag = np.full(n, rank + 1.0), Flag(dist, rank)
    if rank == 0:
        work = dist.all_reduce(x, async_op=True) if operation == "all_reduce" else dist.isend(x, 1)
        moved = flag.seen()
        work.wait()
    else:
        time.sleep(0.3)  # rank 0 has long started
        if operation == "all_reduce":
            dist.all_reduce(x)
        else:
            dist.recv(x, 0)
        flag.up()
        moved = True
    dist.barrier()
    if rank == 0:
        flag.path.unlink(missing_ok=True)
    assert moved
    assert set(x.tolist()) == {3.0 if operation == "all_reduce" else 1.0}


@pytest.mark.ranks(min=2)
def test_a_barrier_holds_until_the_last_has_come(dist: ModuleType, rank: int) -> None:
    flag = Flag(dist, rank)
    if rank == 0:
        work = dist.barrier(async_op=True)
        early = []
        for _ in range(20):
            early.append(work.is_completed())
            time.sleep(0.005)
        flag.up()
    else:
        assert flag.seen()
        early = []
        work = dist.barrier(async_op=True)
    work.wait()
    dist.barrier()
    if rank == 0:
        flag.path.unlink()
    assert not any(early)


@pytest.mark.ranks(min=2)
def test_asking_does_not_wait(dist: ModuleType, rank: int) -> None:
    got = np.zeros(1)
    if rank == 0:
        work = dist.irecv(got, 1)
        assert not work.is_completed()
        assert not work.is_success()
        dist.barrier()
        work.wait()
        assert work.is_success()
    else:
        dist.barrier()
        if rank == 1:
            dist.send(np.ones(1), 0)


# Time-outs


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("timeout", [0.2, timedelta(seconds=0.2)], ids=["seconds", "timedelta"])
@pytest.mark.parametrize("operation", ["irecv", "all_reduce"])
def test_a_wait_that_takes_too_long_raises_and_may_be_repeated(
    dist: ModuleType, rank: int, size: int, operation: str, timeout: float | timedelta
) -> None:
    # From the reported case T40: MPI itself knows no time-out.
    group = dist.new_group()
    x = np.ones(2)
    if rank == 0:
        work = dist.irecv(x, 1) if operation == "irecv" else dist.all_reduce(x, group=group, async_op=True)
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(dist.CollectiveTimeoutError, match=rf"^{operation}\(.*0\.2"):
                work.wait(timeout)
            assert time.monotonic() - began >= 0.2
        dist.barrier()
        assert work.wait(timeout=60)
        assert x.tolist() == ([5.0, 5.0] if operation == "irecv" else [size] * 2)
    else:
        dist.barrier()
        if operation == "all_reduce":
            dist.all_reduce(x, group=group)
        elif rank == 1:
            dist.send(np.full(2, 5.0), 0)
    dist.destroy_process_group(group)


# Lost handles, other threads


def test_a_lost_work_keeps_its_arrays(dist: ModuleType, rank: int, size: int) -> None:
    results = []
    for _ in range(20):
        whole = np.full((2000, 2), rank + 1.0)
        results.append(whole)
        dist.all_reduce(whole[:, 0], async_op=True)  # the view and the handle are gone at once
        del whole
        gc.collect()
    dist.barrier()
    dist.all_reduce(np.ones(1), async_op=True).wait()
    expected = size * (size + 1) / 2
    assert all(set(x[:, 0].tolist()) == {expected} and set(x[:, 1].tolist()) == {rank + 1.0} for x in results)


def test_another_thread_may_wait(dist: ModuleType, size: int) -> None:
    x = np.ones(100_000)
    work = dist.all_reduce(x, async_op=True)
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(work.wait())) for _ in range(3)]
    for thread in threads:
        thread.start()
    answers.append(work.wait())
    for thread in threads:
        thread.join()
    assert answers == [True] * 4
    assert set(x.tolist()) == {float(size)}


def test_helper_threads_are_few(dist: ModuleType, size: int) -> None:
    """Groups come and go without leaving a thread each."""

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    def come_and_go() -> None:
        group = dist.new_group()
        dist.all_reduce(np.ones(1), group=group, async_op=True).wait()
        dist.destroy_process_group(group)

    come_and_go()  # whatever stays for good has started
    before = threads()
    for _ in range(8):
        come_and_go()
    deadline = time.monotonic() + 10
    while threads() > before and time.monotonic() < deadline:  # one that is just ending counts too
        time.sleep(0.05)
    assert threads() <= before


def test_an_operation_started_in_a_callback_runs(dist: ModuleType, size: int) -> None:
    first, second, third = np.ones(2), np.ones(2), np.ones(2)
    works: list[Any] = []
    future = dist.all_reduce(first, async_op=True).get_future()
    future.add_done_callback(lambda f: works.append(dist.all_reduce(second, async_op=True)))
    future.wait()
    while not works:  # this thread's next operation must come behind the callback's on every rank
        time.sleep(0.001)
    works[0].wait()
    dist.all_reduce(third)
    assert first.tolist() == second.tolist() == third.tolist() == [size] * 2


def test_synchronous_operations_keep_their_place_among_asynchronous_ones(dist: ModuleType, size: int) -> None:
    x = np.ones(1)
    works = []
    for _ in range(5):
        works.append(dist.all_reduce(x, async_op=True))
        dist.all_reduce(x)
    assert all(work.is_completed() for work in works)
    assert x[0] == float(size) ** 10
