"""Several collectives, or several messages, handed over as one."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager


def of(rank: int, length: int) -> Tensor:
    """Return one rank's tensor of so many elements."""
    return torch.arange(float(length)) + 100 * rank


def total(size: int, length: int) -> Tensor:
    return torch.stack([of(rank, length) for rank in range(size)]).sum(dim=0)


@pytest.mark.parametrize("async_ops", [False, True])
def test_coalesced_all_reduces(rank: int, size: int, async_ops: bool) -> None:
    tensors = [of(rank, length) for length in (1, 5, 64)]
    with _coalescing_manager(async_ops=async_ops) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    if async_ops:
        manager.wait()
    for tensor in tensors:
        assert torch.equal(tensor, total(size, len(tensor)))


def test_coalesced_all_reduces_keep_their_operation(rank: int, size: int) -> None:
    tensors = [of(rank, 3), of(rank, 4)]
    with _coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    for tensor in tensors:
        assert torch.equal(tensor, of(size - 1, len(tensor)))


@pytest.mark.parametrize("async_ops", [False, True])
def test_coalesced_all_gathers(rank: int, size: int, async_ops: bool) -> None:
    lengths = [1, 5, 64]
    outputs = [torch.empty(size * length) for length in lengths]
    with _coalescing_manager(async_ops=async_ops) as manager:
        for output, length in zip(outputs, lengths, strict=True):
            dist.all_gather_into_tensor(output, of(rank, length))
    if async_ops:
        manager.wait()
    for output, length in zip(outputs, lengths, strict=True):
        assert torch.equal(output, torch.cat([of(other, length) for other in range(size)]))


@pytest.mark.parametrize("async_ops", [False, True])
def test_coalesced_reduce_scatters(rank: int, size: int, async_ops: bool) -> None:
    lengths = [1, 5, 64]
    outputs = [torch.empty(length) for length in lengths]
    with _coalescing_manager(async_ops=async_ops) as manager:
        for output, length in zip(outputs, lengths, strict=True):
            dist.reduce_scatter_tensor(output, of(rank, size * length))
    if async_ops:
        manager.wait()
    for output, length in zip(outputs, lengths, strict=True):
        assert torch.equal(output, total(size, size * length)[rank * length : (rank + 1) * length])


def test_operations_after_a_coalesced_one_see_its_results(rank: int, size: int) -> None:
    tensor = of(rank, 3)
    with _coalescing_manager():
        dist.all_reduce(tensor)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, size * total(size, 3))


@pytest.mark.ranks(min=2)
def test_a_ring_as_a_batch_of_messages(rank: int, size: int) -> None:
    received = torch.empty(7)
    operations = [
        dist.P2POp(dist.isend, of(rank, 7), (rank + 1) % size),
        dist.P2POp(dist.irecv, received, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert torch.equal(received, of((rank - 1) % size, 7))


@pytest.mark.ranks(min=2)
def test_a_batch_between_every_two_ranks_with_many_lengths(rank: int, size: int) -> None:
    others = [other for other in range(size) if other != rank]
    received = {other: torch.empty(other + 2 * rank + 1) for other in others}
    operations = [dist.P2POp(dist.irecv, tensor, other) for other, tensor in received.items()]
    operations += [dist.P2POp(dist.isend, of(rank, rank + 2 * other + 1), other) for other in others]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for other, tensor in received.items():
        assert torch.equal(tensor, of(other, len(tensor)))


def test_outputs_of_several_gathers_that_share_memory_are_refused(rank: int, size: int) -> None:
    # Each gather's own outputs are apart; the second gather would overwrite what the first has brought.
    shared = [torch.zeros(3) for _ in range(size)]
    with pytest.raises(ValueError, match=r"got output_lists\[0\] and output_lists\[1\] which share some"):
        dist.all_gather_coalesced([[shared[r], shared[r]] for r in range(size)], [of(rank, 3), of(rank, 3)])

    def gather_twice(whole: Tensor) -> None:
        with _coalescing_manager():
            dist.all_gather_into_tensor(whole, of(rank, 3))
            dist.all_gather_into_tensor(whole, of(rank, 3))

    with pytest.raises(ValueError, match=r"got output_tensors\[0\] and output_tensors\[1\]"):
        gather_twice(torch.zeros(3 * size))
    tensor = of(rank, 3)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, total(size, 3))
