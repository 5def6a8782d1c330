"""Reported cases of messages, Work handles and objects. Each test names the case of shared/cases and the report."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")


@pytest.mark.ranks(2)
def test_a_pending_receive_does_not_hold_up_an_all_reduce(dist: ModuleType, rank: int) -> None:
    # T60: a lock that is held while waiting for the receive would hang both ranks.
    t, b = torch.ones(4), torch.zeros(2)
    if rank == 0:
        receive = dist.irecv(b, 1)
        work = dist.all_reduce(t, async_op=True)
        receive.wait()
        work.wait()
        assert b.tolist() == [7, 7]
    else:
        dist.all_reduce(t)
        dist.isend(torch.full((2,), 7.0), 0).wait()
    assert t.tolist() == [2] * 4


@pytest.mark.ranks(3)
def test_a_receive_from_anybody_tells_from_whom(dist: ModuleType, rank: int) -> None:
    # T62.
    b = torch.zeros(1)
    if rank == 0:
        got = {}
        for _ in range(2):
            source = dist.recv(b)
            got[source] = b.item()
        assert got == {1: 10.0, 2: 20.0}
    else:
        dist.send(torch.tensor([10.0 * rank]), dst=0)


@pytest.mark.ranks(3)
def test_a_receive_from_anybody_in_a_group_tells_the_global_rank(dist: ModuleType, rank: int) -> None:
    # T62.
    group = dist.new_group([1, 2])
    b = torch.zeros(1)
    if rank == 1:
        dist.send(torch.tensor([5.0]), dst=2, group=group)
    elif rank == 2:
        assert dist.recv(b, group=group) == 1
        assert b.item() == 5.0
    dist.destroy_process_group(group)


@pytest.mark.ranks(2)
def test_sends_outlive_their_handles_and_tensors(dist: ModuleType, rank: int) -> None:
    # T64, mpi4py#233. tests/faults has it with the end of the program.
    if rank == 0:
        for i in range(4):
            dist.isend(torch.full((200_000,), float(i)), 1)
        junk = [torch.full((200_000,), -1.0) for _ in range(20)]
        dist.barrier()
        assert len(junk) == 20
    else:
        got = [torch.full((200_000,), -2.0) for _ in range(4)]
        for tensor in got:
            dist.recv(tensor, src=0)
        dist.barrier()
        assert [set(tensor.tolist()) for tensor in got] == [{0.0}, {1.0}, {2.0}, {3.0}]


@pytest.mark.ranks(1, 2)
def test_a_work_may_be_asked_again_and_again(dist: ModuleType, size: int) -> None:
    # T66.
    x, y = torch.ones(2), torch.ones(2)
    returned = dist.all_reduce(x)
    work = dist.all_reduce(y, async_op=True)
    answers = [work.wait(), work.wait(), work.is_completed()]
    assert returned is None
    assert answers == [True, True, True]
    [output] = work.get_future().value()
    assert output is y
    assert x.tolist() == y.tolist() == [size] * 2


@pytest.mark.ranks(2)
def test_64_mib_each_way_with_one_side_not_blocking(dist: ModuleType, rank: int) -> None:
    # T67, in the way that is no deadlock; tests/faults has the other.
    x, y = torch.full((16 << 20,), rank + 1.0), torch.zeros(16 << 20)
    work = dist.isend(x, 1 - rank)
    dist.recv(y, 1 - rank)
    work.wait()
    assert (y.min().item(), y.max().item()) == (2.0 - rank, 2.0 - rank)
    assert (x.min().item(), x.max().item()) == (rank + 1.0, rank + 1.0)


@pytest.mark.ranks(3)
def test_objects_of_very_different_sizes(dist: ModuleType, rank: int) -> None:
    # T68.
    got = [None] * 3
    dist.all_gather_object(got, "x" * 10 ** (2 * rank))
    assert got == ["x", "x" * 100, "x" * 10_000]


@pytest.mark.ranks(3)
def test_tensors_in_objects_stay_on_the_cpu(dist: ModuleType, rank: int) -> None:
    # T68.
    got: list[dict[str, torch.Tensor]] = [{}] * 3
    dist.all_gather_object(got, {"t": torch.ones(1) * rank})
    assert [(o["t"].item(), o["t"].device.type) for o in got] == [(0.0, "cpu"), (1.0, "cpu"), (2.0, "cpu")]
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
