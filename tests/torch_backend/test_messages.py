"""Point to point, and who sent it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.ranks(min=2)


def test_recv_from_any_source_returns_the_sender(rank: int, size: int) -> None:
    if rank == 0:
        came: dict[int, float] = {}
        for _ in range(size - 1):
            tensor = torch.empty(3)
            source = dist.recv(tensor)
            came[source] = tensor.sum().item()
        assert came == {other: 3.0 * other for other in range(1, size)}
    else:
        dist.send(torch.full((3,), float(rank)), dst=0)


@pytest.mark.ranks(min=3)
def test_recv_from_any_source_in_a_group_returns_the_global_rank(rank: int, size: int) -> None:
    members = list(range(1, size))
    group = dist.new_group(members)
    if rank == 1:
        came = set()
        for _ in members[1:]:
            tensor = torch.empty(1)
            came.add((dist.recv(tensor, group=group), tensor.item()))
        assert came == {(other, float(other)) for other in members[1:]}
    elif rank > 1:
        dist.send(torch.full((1,), float(rank)), dst=1, group=group)


def test_recv_from_a_named_source_returns_it(rank: int, size: int) -> None:
    if rank == size - 1:
        tensor = torch.empty(2)
        assert dist.recv(tensor, src=0) == 0
        assert tensor.tolist() == [4.0, 5.0]
    elif rank == 0:
        dist.send(torch.tensor([4.0, 5.0]), dst=size - 1)


def test_tags_tell_messages_apart(rank: int) -> None:
    if rank == 0:
        works = [dist.isend(torch.full((2,), float(tag)), dst=1, tag=tag) for tag in (1, 2)]
        for work in works:
            assert work is not None
            work.wait()
    elif rank == 1:
        first, second = torch.empty(2), torch.empty(2)
        works = [dist.irecv(second, src=0, tag=2), dist.irecv(first, src=0, tag=1)]
        for work in works:
            assert work is not None
            work.wait()
        assert (first.tolist(), second.tolist()) == ([1.0, 1.0], [2.0, 2.0])


def test_messages_of_one_tag_keep_their_order(rank: int) -> None:
    if rank == 0:
        for value in range(5):
            dist.send(torch.tensor([value]), dst=1)
    elif rank == 1:
        tensor = torch.empty(1, dtype=torch.int64)
        came = []
        for _ in range(5):
            dist.recv(tensor, src=0)
            came.append(tensor.item())
        assert came == [0, 1, 2, 3, 4]


def test_a_posted_irecv_does_not_hold_up_collectives(rank: int, size: int) -> None:
    tensor, total = torch.empty(1), torch.ones(1)
    posted = dist.irecv(tensor, src=0) if rank == 1 else None
    dist.all_reduce(total)
    if rank == 0:
        dist.send(torch.tensor([7.0]), dst=1)
    if posted is not None:
        posted.wait()
        assert tensor.item() == 7.0
    assert total.item() == size


def test_messages_to_oneself_in_either_order(rank: int) -> None:
    mine, first, second = torch.arange(6.0).view(2, 3).t() + rank, torch.empty(3, 2), torch.empty(3, 2)
    works = [
        dist.isend(mine, dst=rank),
        dist.irecv(first, src=rank),
        dist.irecv(second, src=rank),
        dist.isend(mine + 1, dst=rank),
    ]
    for work in works:
        assert work is not None
        work.wait()
    assert torch.equal(first, mine)
    assert torch.equal(second, mine + 1)


def test_a_batch_to_oneself_and_to_others(rank: int, size: int) -> None:
    left, right = (rank - 1) % size, (rank + 1) % size
    own, others = torch.empty(100_000), torch.empty(3)
    operations = [
        dist.P2POp(dist.irecv, own, rank),
        dist.P2POp(dist.isend, torch.full((3,), float(rank)), right),
        dist.P2POp(dist.irecv, others, left),
        dist.P2POp(dist.isend, torch.full((100_000,), 7.0), rank),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert set(own.tolist()) == {7.0}
    assert set(others.tolist()) == {float(left)}
