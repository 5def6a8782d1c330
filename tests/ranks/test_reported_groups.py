"""Reported cases of groups, roots and communicators. Each test names the case of shared/cases and the report."""

from __future__ import annotations

import warnings
from types import ModuleType

import numpy as np
import pytest


@pytest.mark.ranks(2)
def test_a_group_of_one_holds_nobody_up(dist: ModuleType, rank: int) -> None:
    # T43, pytorch#142095: stuck.
    group = dist.new_group([0])
    dist.barrier()
    assert dist.get_rank(group) == (0 if rank == 0 else -1)
    dist.destroy_process_group(group)


@pytest.mark.ranks(4)
def test_two_groups_made_by_their_members_alone(dist: ModuleType, rank: int) -> None:
    # T44, pytorch#130102: time-outs, or refused by the MPI backend.
    members = [0, 3] if rank in (0, 3) else [1, 2]
    group = dist.new_group(members, use_local_synchronization=True)
    dist.barrier(group)
    x = np.array([float(rank)])
    dist.all_reduce(x, group=group)
    dist.destroy_process_group(group)
    assert x.tolist() == [3.0]


@pytest.mark.ranks(3)
def test_a_non_member_is_told_minus_1_and_left_alone(dist: ModuleType, rank: int) -> None:
    # T45.
    group = dist.new_group([1, 2])
    x = np.array([float(rank)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        returned = dist.all_reduce(x, group=group)
        work = dist.all_reduce(np.ones(1), group=group, async_op=True)
    if rank == 0:
        assert (dist.get_rank(group), dist.get_world_size(group)) == (-1, -1)
        assert work is None
        assert x.tolist() == [0.0]
    else:
        assert (dist.get_rank(group), dist.get_world_size(group)) == (rank - 1, 2)
        assert work.wait()
        assert x.tolist() == [3.0]
        dist.destroy_process_group(group)
    assert returned is None


@pytest.mark.ranks(4)
def test_roots_are_global_or_of_the_group_and_not_both(dist: ModuleType, rank: int) -> None:
    # T47.
    group = dist.new_group([2, 3])
    if rank >= 2:
        x, y = np.array([rank]), np.array([rank])
        dist.broadcast(x, src=2, group=group)
        dist.broadcast(y, group_src=0, group=group)
        with pytest.raises(ValueError, match="not part of group"):
            dist.broadcast(x, src=0, group=group)
        with pytest.raises(ValueError, match=r"(?s)src.*group_src"):
            dist.broadcast(x, src=2, group_src=0, group=group)
        assert (x.tolist(), y.tolist()) == ([2], [2])
        dist.destroy_process_group(group)


@pytest.mark.ranks(2)
@pytest.mark.time_limit(300)  # a busy machine needs milliseconds for each
def test_five_thousand_groups_come_and_go(dist: ModuleType) -> None:
    # T49: MPICH dies after 2,046 communicators that nobody freed.
    x = np.ones(1)
    for _ in range(5000):
        group = dist.new_group([0, 1])
        x[0] = 1.0
        dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
    assert x.tolist() == [2.0]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("user_first", [True, False])
def test_the_users_messages_do_not_meet_ours(dist: ModuleType, rank: int, user_first: bool) -> None:
    # T51: both are messages to rank 1 with tag 0.
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    theirs, ours = np.full(4, 10.0), np.full(4, 20.0)
    if rank == 0:
        if user_first:
            request = world.Isend(theirs, dest=1, tag=0)
            work = dist.isend(ours, dst=1, tag=0)
        else:
            work = dist.isend(ours, dst=1, tag=0)
            request = world.Isend(theirs, dest=1, tag=0)
        work.wait()
        request.Wait()
    else:
        got_theirs, got_ours = np.zeros(4), np.zeros(4)
        dist.recv(got_ours, src=0, tag=0)
        world.Recv(got_theirs, source=0, tag=0)
        assert (got_theirs.tolist(), got_ours.tolist()) == ([10.0] * 4, [20.0] * 4)
