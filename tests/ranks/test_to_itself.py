"""Messages of a rank to itself: either end first, tags, blocking calls that have their other end, and that have not."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

# Below and above what goes in one MPI message, and above what MPI sends before there is a receive.
SIZES = (0, 3, 100_000)


def filled(count: int, value: float) -> Any:
    return np.full(count, float(value))


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("receive_first", [True, False])
def test_either_end_may_come_first(dist: ModuleType, rank: int, count: int, receive_first: bool) -> None:
    mine, got = filled(count, rank + 0.5), filled(count, -1)
    starts = [lambda: dist.irecv(got, rank), lambda: dist.isend(mine, rank)]
    works = [start() for start in (starts if receive_first else reversed(starts))]
    for work in works:
        work.wait()
    assert got.tolist() == mine.tolist()


@pytest.mark.parametrize("count", SIZES)
def test_a_blocking_send_passes_where_a_receive_is_posted(dist: ModuleType, rank: int, count: int) -> None:
    got = filled(count, -1)
    work = dist.irecv(got, rank, tag=3)
    assert dist.send(filled(count, 7), rank, tag=3) is None
    work.wait()
    assert got.tolist() == [7] * count
    assert work.source_rank() == rank


@pytest.mark.parametrize("count", SIZES)
def test_a_blocking_receive_passes_where_a_message_is_sent(dist: ModuleType, rank: int, count: int) -> None:
    got = filled(count, -1)
    work = dist.isend(filled(count, 7), rank, tag=3)
    assert dist.recv(got, rank, tag=3) == rank
    work.wait()
    assert got.tolist() == [7] * count


def test_a_receive_from_anybody_takes_it(dist: ModuleType, rank: int) -> None:
    got = filled(2, -1)
    work = dist.irecv(got, tag=4)
    dist.send(filled(2, 7), rank, tag=4)
    work.wait()
    assert (work.source_rank(), got.tolist()) == (rank, [7, 7])


def test_recv_tensor_takes_it(dist: ModuleType, rank: int) -> None:
    work = dist.isend(np.arange(6, dtype=np.int16).reshape(2, 3), rank)
    got = dist.recv_tensor(rank)
    work.wait()
    assert (got.dtype, got.tolist()) == (np.int16, [[0, 1, 2], [3, 4, 5]])


def test_tags_choose_the_message(dist: ModuleType, rank: int) -> None:
    got = {tag: filled(2, -1) for tag in (5, 6, 7)}
    works = [dist.irecv(got[6], rank, tag=6), *(dist.isend(filled(2, tag), rank, tag=tag) for tag in (7, 5, 6))]
    works += [dist.irecv(got[tag], rank, tag=tag) for tag in (5, 7)]
    for work in works:
        work.wait()
    assert {tag: x.tolist() for tag, x in got.items()} == {tag: [tag, tag] for tag in got}


def test_messages_of_one_tag_keep_their_order(dist: ModuleType, rank: int) -> None:
    sizes = [1, 100_000, 0, 3]
    works = [dist.isend(filled(n, i), rank) for i, n in enumerate(sizes)]
    got = [filled(n, -1) for n in sizes]
    works += [dist.irecv(x, rank) for x in got]
    for work in works:
        work.wait()
    assert [x.tolist() for x in got] == [[float(i)] * n for i, n in enumerate(sizes)]


def test_a_receive_of_another_tag_is_not_the_other_end(dist: ModuleType, rank: int) -> None:
    got = filled(2, -1)
    work = dist.irecv(got, rank, tag=8)
    with pytest.raises(dist.ArgumentError, match=r"^send\(.*dst: .*itself, which awaits none"):
        dist.send(filled(2, 1), rank, tag=9)
    dist.send(filled(2, 7), rank, tag=8)
    work.wait()
    assert got.tolist() == [7, 7]


def test_one_receive_is_the_other_end_of_one_message(dist: ModuleType, rank: int) -> None:
    got = filled(2, -1)
    work = dist.irecv(got, rank)
    dist.send(filled(2, 7), rank)
    with pytest.raises(dist.ArgumentError, match="itself, which awaits none"):
        dist.send(filled(2, 8), rank)
    work.wait()
    assert got.tolist() == [7, 7]


@pytest.mark.ranks(min=2)
def test_a_receive_from_anybody_that_took_another_message_is_not_the_other_end(
    dist: ModuleType, rank: int, size: int
) -> None:
    left, right = (rank - 1) % size, (rank + 1) % size
    got = filled(2, -1)
    work = dist.irecv(got)
    dist.isend(filled(2, rank), right).wait()
    work.wait()
    assert got.tolist() == [left, left]
    with pytest.raises(dist.ArgumentError, match="itself, which awaits none"):
        dist.send(filled(2, 8), rank)


@pytest.mark.ranks(1)
def test_a_rank_alone_awaits_nobody_else(dist: ModuleType) -> None:
    with pytest.raises(dist.ArgumentError, match="itself, which has sent none"):
        dist.recv(filled(2, 1))
    with pytest.raises(dist.ArgumentError, match="itself, which has sent none"):
        dist.recv_object_list([None])
    dist.isend(filled(2, 7), 0)
    got = filled(2, -1)
    assert dist.recv(got) == 0
    assert got.tolist() == [7, 7]


def test_in_a_group_by_the_rank_in_it(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group([size - 1])
    if rank == size - 1:
        got = filled(2, -1)
        operations = [
            dist.P2POp(dist.isend, filled(2, 7), rank, group=group),
            dist.P2POp(dist.irecv, got, group=group, group_peer=0),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert got.tolist() == [7, 7]
        dist.destroy_process_group(group)
