"""What the layers above rely on in a single collective: dtypes, futures, order, the barrier."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from .backend import BACKEND

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.complex64]


def of(rank: int, dtype: torch.dtype) -> Tensor:
    """Return one rank's tensor; four of them add up without rounding in every dtype."""
    if dtype == torch.bool:
        return torch.arange(5) == rank
    tensor = torch.arange(1, 6).to(dtype) + rank
    return tensor * (1 + 2j) if dtype.is_complex else tensor


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_reduce_adds(rank: int, size: int, dtype: torch.dtype) -> None:
    tensor = of(rank, dtype)
    dist.all_reduce(tensor)
    wanted = torch.stack([of(other, dtype) for other in range(size)]).sum(dim=0).to(dtype)
    assert torch.equal(tensor, wanted)


@pytest.mark.skipif(BACKEND == "gloo", reason="gloo refuses AVG of integers, which nccl has")
@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_an_average_of_integers_is_rounded_toward_zero(
    rank: int, size: int, dtype: torch.dtype, async_op: bool
) -> None:
    # lightning averages the number of rows so, in every `log(..., sync_dist=True)`.
    shares = [[30, 7 - 3 * other, -other, 1 - 4 * other] for other in range(size)]
    average = [int(sum(column) / size) for column in zip(*shares, strict=True)]  # int() cuts off
    everywhere, at_the_last = torch.tensor(shares[rank], dtype=dtype), torch.tensor(shares[rank], dtype=dtype)
    mine = torch.empty(4, dtype=dtype)
    works = [
        dist.all_reduce(everywhere, dist.ReduceOp.AVG, async_op=async_op),
        dist.reduce(at_the_last, size - 1, dist.ReduceOp.AVG, async_op=async_op),
        dist.reduce_scatter_tensor(
            mine, torch.tensor(shares[rank], dtype=dtype).repeat(size), dist.ReduceOp.AVG, async_op=async_op
        ),
    ]
    for work in works:
        assert work is None or work.wait()
    assert everywhere.tolist() == mine.tolist() == average
    assert at_the_last.tolist() == (average if rank == size - 1 else shares[rank])


@pytest.mark.parametrize("op", [dist.ReduceOp.MAX, dist.ReduceOp.SUM], ids=["max", "sum"])
def test_all_reduce_of_bools_is_or(rank: int, size: int, op: dist.ReduceOp.RedOpType) -> None:
    tensor = of(rank, torch.bool) | of(0, torch.bool)  # the first one is True on all ranks
    dist.all_reduce(tensor, op=op)
    # By their truth and not their bytes: gloo's sum of two Trues is a byte of 2, which torch.equal tells from 1.
    assert tensor.tolist() == [index < size for index in range(5)]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool], ids=str)
def test_all_gather_moves(rank: int, size: int, dtype: torch.dtype) -> None:
    got = [torch.empty(5, dtype=dtype) for _ in range(size)]
    dist.all_gather(got, of(rank, dtype))
    for other, tensor in enumerate(got):
        assert torch.equal(tensor, of(other, dtype))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool], ids=str)
def test_all_gather_into_tensor_concatenates(rank: int, size: int, dtype: torch.dtype) -> None:
    got = torch.empty(size * 5, dtype=dtype)
    dist.all_gather_into_tensor(got, of(rank, dtype))
    assert torch.equal(got, torch.cat([of(other, dtype) for other in range(size)]))


@pytest.mark.skipif(BACKEND == "gloo", reason="gloo refuses this form, which torch documents beside the other")
def test_all_gather_into_tensor_stacks(rank: int, size: int) -> None:
    got = torch.empty(size, 5)
    dist.all_gather_into_tensor(got, of(rank, torch.float32))
    assert torch.equal(got, torch.stack([of(other, torch.float32) for other in range(size)]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool], ids=str)
def test_broadcast_moves(rank: int, size: int, dtype: torch.dtype) -> None:
    tensor = of(rank, dtype)
    dist.broadcast(tensor, src=size - 1)
    assert torch.equal(tensor, of(size - 1, dtype))


def test_a_future_hands_its_value_on(rank: int, size: int) -> None:
    tensor = torch.tensor([rank + 1.0])
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    doubled = work.get_future().then(lambda future: 2 * future.value()[0])
    ranks = sum(range(1, size + 1))
    assert doubled.wait().item() == 2 * ranks
    assert tensor.item() == ranks


def test_a_future_is_the_result_of_its_own_operation(rank: int, size: int) -> None:
    """Several are under way; each callback sees its own tensor, complete."""
    tensors = [torch.full((1000,), float(rank + index)) for index in range(8)]
    futures = []
    for tensor in tensors:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        futures.append(work.get_future().then(lambda future: future.value()[0].sum().item()))
    ranks = sum(range(size))
    assert [future.wait() for future in futures] == [1000.0 * (ranks + size * index) for index in range(8)]


def test_a_work_is_completed_after_its_wait(rank: int, size: int) -> None:
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    assert work.is_completed()
    assert tensor.tolist() == [float(size)] * 3


def test_asynchronous_operations_end_in_any_order_of_waiting(rank: int, size: int) -> None:
    gathered = torch.empty(size)
    gather = dist.all_gather_into_tensor(gathered, torch.tensor([float(rank)]), async_op=True)
    total = torch.tensor([rank])
    reduction = dist.all_reduce(total, async_op=True)
    assert reduction is not None
    assert gather is not None
    reduction.wait()
    gather.wait()
    assert total.item() == sum(range(size))
    assert gathered.tolist() == list(range(size))


def test_nobody_leaves_a_barrier_before_all_have_come(rank: int, size: int, shared_path: Path) -> None:
    if rank == size - 1:
        time.sleep(0.3)
    (shared_path / str(rank)).touch()
    dist.barrier()
    seen = sorted(path.name for path in shared_path.iterdir())
    assert seen == [str(other) for other in range(size)]


def test_all_to_all_single_with_blocks_of_many_sizes(rank: int, size: int) -> None:
    sent = torch.cat([torch.full((other + 1,), 10 * rank + other) for other in range(size)])
    got = torch.empty(size * (rank + 1), dtype=torch.int64)
    dist.all_to_all_single(got, sent, [rank + 1] * size, [other + 1 for other in range(size)])
    assert got.tolist() == [10 * other + rank for other in range(size) for _ in range(rank + 1)]


def test_reduce_scatter_tensor_keeps_this_ranks_part(rank: int, size: int) -> None:
    got = torch.empty(3)
    dist.reduce_scatter_tensor(got, torch.arange(3.0 * size) + rank)
    wanted = size * torch.arange(3.0 * size) + sum(range(size))
    assert torch.equal(got, wanted[3 * rank : 3 * rank + 3])
