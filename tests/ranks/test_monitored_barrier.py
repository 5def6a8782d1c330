"""The barrier with a clock."""

from __future__ import annotations

import time
from datetime import timedelta
from types import ModuleType

import pytest

pytestmark = pytest.mark.ranks(min=2)


@pytest.mark.parametrize("timeout", [None, 30, timedelta(seconds=30)])
def test_it_passes_where_all_come(dist: ModuleType, timeout: timedelta | float | None) -> None:
    for _ in range(3):
        assert dist.monitored_barrier(timeout=timeout) is None


def test_nobody_leaves_before_the_last_has_come(dist: ModuleType, rank: int, size: int) -> None:
    if rank == size - 1:
        time.sleep(0.3)
    came = time.time()
    dist.monitored_barrier()
    times: list[tuple[float, float]] = [(0.0, 0.0)] * size
    dist.all_gather_object(times, (came, time.time()))
    assert min(left for _, left in times) >= max(came for came, _ in times)


@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_rank_0_names_who_has_not_come(dist: ModuleType, rank: int, size: int, wait_all_ranks: bool) -> None:
    if rank == 0:
        names = f"Ranks {', '.join(str(r) for r in range(1, size))} " if wait_all_ranks else "Rank 1 "
        with pytest.raises(
            dist.CollectiveTimeoutError, match=f"{names}failed to pass monitoredBarrier.*got 1 of {size}"
        ):
            dist.monitored_barrier(timeout=0.1, wait_all_ranks=wait_all_ranks)
    dist.barrier()
    dist.monitored_barrier(timeout=30)


def test_a_rank_that_waits_for_rank_0_says_so(dist: ModuleType, rank: int) -> None:
    if rank != 0:
        with pytest.raises(RuntimeError, match=f"Rank {rank} successfully reached.*from rank 0"):
            dist.monitored_barrier(timeout=0.1)
    dist.barrier()
    dist.monitored_barrier(timeout=30)  # what was left of the one before does not count in this one
    if rank == 0:
        with pytest.raises(TimeoutError, match="Rank 1 failed"):
            dist.monitored_barrier(timeout=0.1)
    dist.barrier()


def test_it_does_nothing_outside_its_group(dist: ModuleType, rank: int) -> None:
    alone = dist.new_group([0])
    if rank == 0:
        dist.monitored_barrier(alone, timeout=10)
        dist.destroy_process_group(alone)
    else:
        with pytest.warns(UserWarning, match="monitored_barrier does nothing"):
            assert dist.monitored_barrier(alone, timeout=10) is None


def test_what_a_freed_group_left_behind_does_not_count(dist: ModuleType, rank: int) -> None:
    # MPI may give the next communicator the number of a freed one, and with it the messages that nobody received.
    for _ in range(3):
        group = dist.new_group()
        if rank != 0:
            with pytest.raises(dist.CollectiveTimeoutError):
                dist.monitored_barrier(group, timeout=0.01)
        dist.barrier()
        if rank == 0:
            with pytest.raises(dist.CollectiveTimeoutError, match="Rank 1 failed"):
                dist.monitored_barrier(group, timeout=0.01)
        dist.destroy_process_group(group)
        dist.barrier()
        other = dist.new_group()
        dist.monitored_barrier(other, timeout=30)
        dist.destroy_process_group(other)


def test_who_came_too_early_is_not_the_one_who_is_missing(dist: ModuleType, rank: int, size: int) -> None:
    if size < 3:
        return
    if rank == 1:
        with pytest.raises(dist.CollectiveTimeoutError):
            dist.monitored_barrier(timeout=0.4)
    elif rank == 0:
        time.sleep(0.2)
        with pytest.raises(dist.CollectiveTimeoutError, match="Rank 2 failed"):
            dist.monitored_barrier(timeout=0.4)
    dist.barrier()
    dist.monitored_barrier(timeout=30)
