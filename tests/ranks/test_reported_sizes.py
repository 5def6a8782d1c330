"""Reported cases of reduce, gather, all_to_all and of empty, 0-dim and uneven sizes. Each names its case and report."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")


@pytest.mark.ranks(2)
def test_reduce_leaves_the_other_rank_as_it_was(dist: ModuleType, rank: int) -> None:
    # T52, pytorch#76527: rank 1 became [[4, 5], [9, 11]].
    x = torch.tensor([[[1, 2], [3, 4]], [[4, 5], [6, 7]]][rank])
    dist.reduce(x, dst=0)
    assert x.tolist() == ([[5, 7], [9, 11]] if rank == 0 else [[4, 5], [6, 7]])


@pytest.mark.ranks(4)
def test_all_gather_of_nothing(dist: ModuleType) -> None:
    # T54, pytorch#85234: a floating-point exception.
    got = [torch.ones(1, 0, 2) for _ in range(4)]
    dist.all_gather(got, torch.ones(1, 0, 2))
    assert [tuple(tensor.shape) for tensor in got] == [(1, 0, 2)] * 4


@pytest.mark.ranks(4)
def test_every_operation_takes_nothing(dist: ModuleType, rank: int) -> None:
    # T54. The all_reduce at the end shows that the ranks are still in step.
    x = torch.ones(1, 0, 2)
    dist.all_reduce(x)
    dist.broadcast(x, src=1)
    dist.reduce(x, dst=2)
    if rank == 0:
        dist.send(x, dst=3)
    if rank == 3:
        dist.recv(x, src=0)
    dist.reduce_scatter_tensor(torch.ones(0, 2), torch.ones(0, 2))
    dist.all_to_all_single(torch.ones(0, 2), torch.ones(0, 2), [0] * 4, [0] * 4)
    dist.all_gather_into_tensor(torch.ones(0, 2), torch.ones(0, 2))
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert tuple(x.shape) == (1, 0, 2)
    assert ones.item() == 4


@pytest.mark.ranks(2)
def test_0_dim_tensors_are_gathered_and_scattered(dist: ModuleType, rank: int) -> None:
    # T55: gloo raises.
    got = [torch.tensor(-1.0) for _ in range(2)]
    dist.all_gather(got, torch.tensor(float(rank)))
    into = torch.zeros(2)
    dist.all_gather_into_tensor(into, torch.tensor(float(rank)))
    part = torch.tensor(0.0)
    dist.reduce_scatter_tensor(part, torch.arange(2.0))
    assert [(tensor.shape, tensor.item()) for tensor in got] == [((), 0.0), ((), 1.0)]
    assert into.tolist() == [0, 1]
    assert (part.shape, part.item()) == ((), [0.0, 2.0][rank])


@pytest.mark.ranks(3)
def test_all_gather_of_different_lengths(dist: ModuleType, rank: int) -> None:
    # T56, pytorch#156627: gloo raises, xla hangs.
    got = [torch.full((r + 1,), -1.0) for r in range(3)]
    dist.all_gather(got, torch.full((rank + 1,), float(rank)))
    assert [tensor.tolist() for tensor in got] == [[0], [1, 1], [2, 2, 2]]


@pytest.mark.ranks(4)
def test_all_to_all_of_different_lengths(dist: ModuleType, rank: int) -> None:
    # T58, sizes from pytorch#32361.
    sent = [[2, 2, 1, 1], [3, 2, 2, 2], [2, 1, 1, 1], [2, 2, 2, 1]]
    received = [row[rank] for row in sent]
    out = torch.full((sum(received),), -1)
    dist.all_to_all_single(out, torch.arange(sum(sent[rank])) + 10 * rank, received, sent[rank])
    assert out.tolist() == [
        [0, 1, 10, 11, 12, 20, 21, 30, 31],
        [2, 3, 13, 14, 22, 32, 33],
        [4, 15, 16, 23, 34, 35],
        [5, 17, 18, 24, 36],
    ][rank]  # fmt: skip
