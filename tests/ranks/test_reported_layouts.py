"""Reported cases of strides, offsets and memory formats. Each test names the case of shared/cases and the report."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")


def with_99_beside(value: float) -> torch.Tensor:
    """Return a 2 x 2 matrix whose first column is `value`; the second must survive what is done to the first."""
    matrix = torch.full((2, 2), float(value))
    matrix[:, 1] = 99
    return matrix


@pytest.mark.ranks(2)
def test_broadcast_of_a_column_spares_its_neighbour(dist: ModuleType, rank: int) -> None:
    # T19, pytorch#192920: [[0, 99], [1, 99]] on rank 1.
    b = with_99_beside(rank)
    dist.broadcast(b[:, 0], src=0)
    assert b.tolist() == [[0, 99], [0, 99]]


@pytest.mark.ranks(2)
def test_all_reduce_of_a_column_spares_its_neighbour(dist: ModuleType, rank: int) -> None:
    # T20: [[3, 198], [1, 99]] on rank 0.
    b = with_99_beside(rank + 1)
    dist.all_reduce(b[:, 0])
    assert b.tolist() == [[3, 99], [3, 99]]


@pytest.mark.ranks(2)
def test_reduce_of_a_column_spares_its_neighbour(dist: ModuleType, rank: int) -> None:
    # T21: [[3, 198], [1, 99]] on rank 0.
    b = with_99_beside(rank + 1)
    dist.reduce(b[:, 0], dst=0)
    assert b.tolist() == [[3 if rank == 0 else 2, 99]] * 2


@pytest.mark.ranks(2)
def test_gather_of_a_column(dist: ModuleType, rank: int) -> None:
    # T23, pytorch#159548.
    got = [torch.full((2,), -1) for _ in range(2)] if rank == 0 else None
    dist.gather(torch.tensor([[0, 0], [1, 1]])[:, 0], got, dst=0)
    if got is not None:
        assert [tensor.tolist() for tensor in got] == [[0, 1], [0, 1]]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("operation", ["all_reduce", "broadcast"])
def test_channels_last_meets_contiguous(dist: ModuleType, rank: int, operation: str) -> None:
    # T25: scrambled, as 0, 12, 1, 13 ...
    v = torch.arange(24.0).reshape(1, 2, 3, 4) + 100 * rank
    v = v.to(memory_format=torch.channels_last) if rank == 0 else v
    strides = v.stride()
    if operation == "all_reduce":
        dist.all_reduce(v)
        expected = 2 * torch.arange(24.0) + 100
    else:
        dist.broadcast(v, src=0)
        expected = torch.arange(24.0)
    assert torch.equal(v, expected.reshape(1, 2, 3, 4))
    assert v.stride() == strides


@pytest.mark.ranks(2)
@pytest.mark.parametrize("shape", [(1, 2, 2), (1, 1), (3, 1, 1), (1,)], ids=str)
def test_lengths_of_1_have_strides_that_mean_nothing(dist: ModuleType, rank: int, shape: tuple[int, ...]) -> None:
    # T27, mpi4py#274: refused as not contiguous.
    x = torch.full(shape, rank + 1.0)
    dist.broadcast(x, src=0)
    assert torch.equal(x, torch.ones(shape))


@pytest.mark.ranks(2)
def test_a_slice_through_lengths_of_1(dist: ModuleType, rank: int) -> None:
    # T27.
    x = torch.full((3, 1, 1), rank + 1.0)
    dist.broadcast(x[:, :, 0], src=1)
    assert x.flatten().tolist() == [2, 2, 2]


@pytest.mark.ranks(2)
def test_an_expanded_tensor_can_be_sent(dist: ModuleType, rank: int) -> None:
    # T28, pytorch#73515: the gradient of a sum is an expanded tensor.
    got = [torch.full((3,), -1.0) for _ in range(2)]
    dist.all_gather(got, torch.tensor([float(rank)]).expand(3))
    assert [tensor.tolist() for tensor in got] == [[0, 0, 0], [1, 1, 1]]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("operation", ["all_reduce", "broadcast", "recv", "all_gather", "reduce"])
def test_an_expanded_tensor_can_not_be_written(dist: ModuleType, rank: int, operation: str) -> None:
    # T28. Every rank raises before anything is sent.
    base = torch.tensor([rank + 1.0])
    x = base.expand(3)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, src=1 - rank),
        "recv": lambda: dist.recv(x, src=1 - rank),
        "all_gather": lambda: dist.all_gather([x, torch.zeros(3)], torch.zeros(3)),
        "reduce": lambda: dist.reduce(x, dst=rank),
    }
    with pytest.raises(ValueError, match=rf"^{operation}\("):
        calls[operation]()
    assert base.tolist() == [rank + 1.0]


@pytest.mark.ranks(2)
def test_a_storage_offset_counts_once(dist: ModuleType, rank: int) -> None:
    # T30, heat PR#785: the offset was added twice.
    whole = torch.arange(10.0) if rank == 0 else torch.full((10,), -1.0)
    dist.broadcast(whole[3:7], src=0)
    assert whole.tolist() == (list(range(10)) if rank == 0 else [-1, -1, -1, 3, 4, 5, 6, -1, -1, -1])
