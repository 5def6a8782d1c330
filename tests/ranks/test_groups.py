"""Groups: who is in, who is which rank, how they are made and freed, and the user's communicators on both sides."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

MakeGroup = Callable[..., Any]


@pytest.fixture
def make(dist: ModuleType) -> Iterator[MakeGroup]:
    """Return new_group, and destroy what it made when the test ends."""
    made = []

    def new_group(*args: Any, **kwargs: Any) -> Any:
        made.append(dist.new_group(*args, **kwargs))
        return made[-1]

    yield new_group
    for group in made:
        dist.destroy_process_group(group)


def total(dist: ModuleType, group: Any, value: float) -> float:
    """Return the sum of everybody's value in the group."""
    x = np.array([float(value)])
    dist.all_reduce(x, group=group)
    return float(x[0])


# The world


def test_the_world(dist: ModuleType, rank: int, size: int) -> None:
    world = dist.group.WORLD
    assert dist.is_available()
    assert dist.is_initialized()
    assert world is dist.GroupMember.WORLD
    assert isinstance(world, dist.ProcessGroup)
    assert (
        (dist.get_rank(), dist.get_world_size()) == (dist.get_rank(world), dist.get_world_size(world)) == (rank, size)
    )
    assert (world.rank(), world.size(), list(world.ranks)) == (rank, size, list(range(size)))
    assert dist.get_process_group_ranks(world) == dist.get_process_group_ranks(None) == list(range(size))
    assert dist.get_group_rank(world, size - 1) == dist.get_global_rank(world, size - 1) == size - 1


def test_one_node_is_the_world(dist: ModuleType, rank: int, size: int) -> None:
    assert dist.get_node_local_rank() == rank
    assert dist.get_local_world_size() == size


def test_torchs_backend_names_are_accepted(dist: ModuleType, make: MakeGroup) -> None:
    assert dist.get_backend() == "mpicoll"
    assert dist.get_backend(make(backend="gloo")) == "mpicoll"


# new_group


def test_a_group_of_all(dist: ModuleType, make: MakeGroup, rank: int, size: int) -> None:
    for group in (make(), make(None), make(list(range(size)))):
        assert dist.get_process_group_ranks(group) == list(range(size))
        assert total(dist, group, rank) == sum(range(size))


@pytest.mark.ranks(min=2)
def test_each_rank_alone(dist: ModuleType, make: MakeGroup, rank: int, size: int) -> None:
    groups = [make([r]) for r in range(size)]
    assert [group is dist.GroupMember.NON_GROUP_MEMBER for group in groups] == [r != rank for r in range(size)]
    assert total(dist, groups[rank], rank) == rank


@pytest.mark.ranks(min=2)
def test_ranks_are_sorted(dist: ModuleType, make: MakeGroup, rank: int, size: int) -> None:
    group = make(list(reversed(range(size))))
    assert dist.get_process_group_ranks(group) == list(range(size))
    assert dist.get_rank(group) == rank


@pytest.mark.ranks(min=2)
def test_ranks_keep_their_order_where_asked(dist: ModuleType, make: MakeGroup, rank: int, size: int) -> None:
    group = make(list(reversed(range(size))), sort_ranks=False)
    x = np.array([rank])
    dist.broadcast(x, group_src=0, group=group)
    assert dist.get_process_group_ranks(group) == list(reversed(range(size)))
    assert dist.get_rank(group) == size - 1 - rank
    assert x.tolist() == [size - 1]


@pytest.mark.ranks(min=2)
def test_ranks_translate_both_ways(dist: ModuleType, make: MakeGroup, rank: int, size: int) -> None:
    group = make([0, size - 1])
    if rank in (0, size - 1):
        assert [dist.get_global_rank(group, 0), dist.get_global_rank(group, 1)] == [0, size - 1]
        assert [dist.get_group_rank(group, 0), dist.get_group_rank(group, size - 1)] == [0, 1]
        with pytest.raises(ValueError):
            dist.get_global_rank(group, 2)
        with pytest.raises(ValueError):
            dist.get_group_rank(group, size)


@pytest.mark.ranks(min=3)
def test_translating_a_rank_of_outside_is_refused(dist: ModuleType, make: MakeGroup, rank: int, size: int) -> None:
    group = make([0, size - 1])
    if rank in (0, size - 1):
        with pytest.raises(ValueError, match="1"):
            dist.get_group_rank(group, 1)


def test_members_agree_on_a_name_of_its_own(dist: ModuleType, make: MakeGroup, size: int) -> None:
    names = [make().label, make().label, dist.group.WORLD.label]
    everyones: list[Any] = [None] * size
    dist.all_gather_object(everyones, names)
    assert len(set(names)) == 3
    assert everyones == [names] * size


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(lambda n: [0, 0], id="twice"),
        pytest.param(lambda n: [0, n], id="too_high"),
        pytest.param(lambda n: [-1], id="negative"),
    ],
)
def test_wrong_ranks_are_refused_on_every_rank(dist: ModuleType, ranks: Callable[[int], list[int]], size: int) -> None:
    count = dist.get_pg_count()
    for local in (False, True):
        with pytest.raises(ValueError, match=r"^new_group\("):
            dist.new_group(ranks(size), use_local_synchronization=local)
    assert dist.get_pg_count() == count
    assert total(dist, None, 1) == size


@pytest.mark.ranks(min=2)
def test_disjoint_groups_work_at_the_same_time(dist: ModuleType, make: MakeGroup, rank: int, size: int) -> None:
    halves = [make([r for r in range(size) if r % 2 == parity]) for parity in (0, 1)]
    mine = halves[rank % 2]
    for _ in range(10 * (1 + rank % 2)):  # one half does more than the other
        answer = total(dist, mine, rank)
    assert answer == sum(r for r in range(size) if r % 2 == rank % 2)


@pytest.mark.ranks(min=3)
def test_overlapping_groups(dist: ModuleType, make: MakeGroup, rank: int, size: int) -> None:
    pairs = [make([r, r + 1]) for r in range(size - 1)]
    sums = [total(dist, pair, rank) for pair in pairs if pair is not dist.GroupMember.NON_GROUP_MEMBER]
    assert sums == [2 * r + 1 for r in range(size - 1) if rank in (r, r + 1)]


@pytest.mark.ranks(min=2)
def test_members_alone_make_a_group(dist: ModuleType, make: MakeGroup, rank: int, size: int) -> None:
    if rank == 0:
        return  # and does not call at all
    first = make(list(range(1, size)), use_local_synchronization=True)
    second = make(list(range(1, size)), use_local_synchronization=True)
    assert (dist.get_rank(first), dist.get_world_size(first)) == (rank - 1, size - 1)
    assert first.label != second.label
    assert total(dist, first, rank) == total(dist, second, rank) == sum(range(1, size))


@pytest.mark.ranks(min=2)
def test_collective_and_local_making_mix(dist: ModuleType, make: MakeGroup, rank: int, size: int) -> None:
    # Rank 0 has made fewer groups than the others when the second collective call comes.
    if rank > 0:
        local = make(list(range(1, size)), use_local_synchronization=True)
        assert total(dist, local, 1) == size - 1
    everyone = make()
    names: list[Any] = [None] * size
    dist.all_gather_object(names, everyone.label)
    assert len(set(names)) == 1
    assert total(dist, everyone, 1) == size


# Outside of a group


@pytest.mark.ranks(min=2)
def test_outside_every_operation_returns_none_and_touches_nothing(
    dist: ModuleType, make: MakeGroup, rank: int, size: int
) -> None:
    group = make([0])
    if rank == 0:
        return
    x, rows, objects = np.full(2, 5.0), [np.full(2, 5.0) for _ in range(size)], ["kept"]
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(x, group=group),
        lambda: dist.all_reduce(x, group=group, async_op=True),
        lambda: dist.broadcast(x, 0, group=group),
        lambda: dist.reduce(x, 0, group=group),
        lambda: dist.all_gather(rows, x, group=group),
        lambda: dist.all_gather_into_tensor(x, x, group=group),
        lambda: dist.gather(x, None, 0, group=group),
        lambda: dist.scatter(x, None, 0, group=group),
        lambda: dist.reduce_scatter(x, rows, group=group),
        lambda: dist.all_to_all(rows, rows, group=group),
        lambda: dist.all_to_all_single(x, x, group=group),
        lambda: dist.barrier(group),
        lambda: dist.send(x, 0, group=group),
        lambda: dist.isend(x, 0, group=group),
        lambda: dist.recv(x, 0, group=group),
        lambda: dist.irecv(x, 0, group=group),
        lambda: dist.all_gather_object(objects, 1, group=group),
        lambda: dist.broadcast_object_list(objects, 0, group=group),
        lambda: dist.gather_object(1, None, 0, group=group),
        lambda: dist.scatter_object_list(objects, None, 0, group=group),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [call() for call in calls] == [None] * len(calls)
    assert x.tolist() == [5.0, 5.0]
    assert {value for row in rows for value in row} == {5.0}
    assert objects == ["kept"]


@pytest.mark.ranks(min=2)
def test_outside_a_group_one_warning_is_enough(dist: ModuleType, make: MakeGroup, rank: int) -> None:
    group = make([0])
    if rank == 0:
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # as in a program: once for each line that is to blame
        for _ in range(3):
            dist.all_reduce(np.ones(1), group=group)
    assert len(caught) == 1
    assert "all_reduce" in str(caught[0].message)
    assert caught[0].filename == __file__


@pytest.mark.ranks(min=2)
def test_outside_a_group_destroying_it_is_nothing(dist: ModuleType, rank: int) -> None:
    """As in torch's own example, which destroys every subgroup of a list on every rank."""
    group = dist.new_group([0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dist.destroy_process_group(group)
    assert dist.is_initialized()


# The end of a group


def test_a_destroyed_group_is_refused(dist: ModuleType, size: int) -> None:
    group = dist.new_group()
    dist.destroy_process_group(group)
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(np.ones(1), group=group),
        lambda: dist.all_reduce(np.ones(1), group=group, async_op=True),
        lambda: dist.get_rank(group),
        lambda: dist.barrier(group),
        lambda: dist.destroy_process_group(group),
    ]
    for call in calls:
        with pytest.raises(dist.MpicollError):
            call()
    assert total(dist, None, 1) == size


def test_destroying_a_group_finishes_what_is_under_way(dist: ModuleType, size: int) -> None:
    group, x = dist.new_group(), np.ones(200_000)
    work = dist.all_reduce(x, group=group, async_op=True)
    dist.destroy_process_group(group)
    assert work.is_completed()
    assert set(x.tolist()) == {float(size)}


def test_groups_that_are_destroyed_leave_nothing_behind(dist: ModuleType, size: int) -> None:
    def make(times: int) -> int:
        for _ in range(times):
            group = dist.new_group(range(size))
            total(dist, group, 1)
            dist.destroy_process_group(group)
        gc.collect()
        return len(gc.get_objects())

    before = make(10)  # what is kept from the first is not counted
    assert make(20) - before < 10


def test_groups_are_counted(dist: ModuleType) -> None:
    before = dist.get_pg_count()
    group = dist.new_group()
    assert dist.get_pg_count() == before + 1
    dist.destroy_process_group(group)


@pytest.mark.parametrize("wrong", ["world", 7, object()], ids=["text", "number", "object"])
def test_what_is_no_group_is_refused(dist: ModuleType, wrong: object, size: int) -> None:
    with pytest.raises(dist.MpicollError, match=r"^all_reduce\("):
        dist.all_reduce(np.ones(1), group=wrong)
    assert total(dist, None, 1) == size


# Relatives of new_group


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("in_one_call", [True, False])
def test_subgroups_of_two(dist: ModuleType, rank: int, size: int, in_one_call: bool) -> None:
    if in_one_call:
        mine, groups = dist.new_subgroups(group_size=2)
    else:
        mine, groups = dist.new_subgroups_by_enumeration([[r, r + 1] for r in range(0, size, 2)])
    neighbours = [rank - rank % 2, rank - rank % 2 + 1]
    assert dist.get_process_group_ranks(mine) == neighbours
    assert len(groups) == size // 2
    assert groups[rank // 2] is mine
    assert total(dist, mine, rank) == sum(neighbours)
    for group in groups:
        dist.destroy_process_group(group)


@pytest.mark.ranks(3)
def test_subgroups_that_do_not_divide_are_refused_with_both_numbers(dist: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"(?s)3.*2|2.*3"):
        dist.new_subgroups(group_size=2)


@pytest.mark.parametrize("wrong", [0, -1, 9])
def test_subgroups_of_an_impossible_size_are_refused(dist: ModuleType, wrong: int) -> None:
    with pytest.raises(ValueError, match=str(wrong)):
        dist.new_subgroups(group_size=wrong)


@pytest.mark.ranks(min=3)
def test_enumerated_subgroups_may_leave_ranks_out_and_may_not_overlap(dist: ModuleType, rank: int, size: int) -> None:
    mine, groups = dist.new_subgroups_by_enumeration([[2], [0]])
    if rank in (0, 2):
        assert dist.get_process_group_ranks(mine) == [rank]
    else:
        assert mine in (None, dist.GroupMember.NON_GROUP_MEMBER)
    with pytest.raises(ValueError, match="1"):
        dist.new_subgroups_by_enumeration([[0, 1], [1, 2]])
    for group in groups:
        dist.destroy_process_group(group)
    assert total(dist, None, 1) == size


@pytest.mark.ranks(4)
def test_split_group(dist: ModuleType, make: MakeGroup, rank: int) -> None:
    mine = dist.split_group(split_ranks=[[0, 3], [2]])
    if rank == 1:
        assert mine in (None, dist.GroupMember.NON_GROUP_MEMBER)
    else:
        members = {0: [0, 3], 3: [0, 3], 2: [2]}[rank]
        assert dist.get_process_group_ranks(mine) == members
        assert total(dist, mine, rank) == sum(members)
        dist.destroy_process_group(mine)


@pytest.mark.ranks(4)
def test_split_group_counts_ranks_in_the_parent(dist: ModuleType, make: MakeGroup, rank: int) -> None:
    parent = make([1, 2, 3])
    if rank > 0:
        mine = dist.split_group(parent, [[0, 2], [1]])
        assert dist.get_process_group_ranks(mine) == ([2] if rank == 2 else [1, 3])
        assert total(dist, mine, rank) == (2 if rank == 2 else 4)
        dist.destroy_process_group(mine)


@pytest.mark.parametrize("splits", [None, [], [[0], [0]], [[0, 0]], [[99]], [[]]], ids=str)
def test_impossible_splits_are_refused(dist: ModuleType, splits: Any, size: int) -> None:
    with pytest.raises(ValueError, match=r"^split_group\("):
        dist.split_group(split_ranks=splits)
    assert total(dist, None, 1) == size


# Communicators of the user


def test_a_users_communicator_becomes_a_group(dist: ModuleType, rank: int, size: int) -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Split(0, -MPI.COMM_WORLD.rank)  # the ranks turned round
    group = dist.new_group(comm=comm)
    x = np.array([rank])
    dist.broadcast(x, group_src=0, group=group)
    y = np.array([rank])
    dist.broadcast(y, src=0, group=group)
    assert dist.get_process_group_ranks(group) == list(reversed(range(size)))
    assert dist.get_rank(group) == comm.rank == size - 1 - rank
    assert (x.tolist(), y.tolist()) == ([size - 1], [0])
    dist.destroy_process_group(group)
    assert comm.allreduce(1) == size  # still the user's
    comm.Free()


@pytest.mark.ranks(min=2)
def test_parts_of_a_users_split_become_groups(dist: ModuleType, rank: int, size: int) -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Split(rank % 2, rank)
    group = dist.new_group(comm=comm)
    members = [r for r in range(size) if r % 2 == rank % 2]
    assert dist.get_process_group_ranks(group) == members
    assert total(dist, group, rank) == sum(members)
    comm.Free()
    assert total(dist, group, rank) == sum(members)  # it has a duplicate
    dist.destroy_process_group(group)


def test_comm_self_becomes_a_group(dist: ModuleType, rank: int) -> None:
    from mpi4py import MPI

    group = dist.new_group(comm=MPI.COMM_SELF)
    assert dist.get_process_group_ranks(group) == [rank]
    assert total(dist, group, rank) == rank
    dist.destroy_process_group(group)


@pytest.mark.ranks(min=2)
def test_a_split_that_leaves_a_rank_out_gives_it_no_group(dist: ModuleType, rank: int, size: int) -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Split(MPI.UNDEFINED if rank == 0 else 0, rank)
    group = dist.new_group(comm=comm)
    if rank == 0:
        assert group is dist.GroupMember.NON_GROUP_MEMBER
    else:
        assert total(dist, group, rank) == sum(range(1, size))
        dist.destroy_process_group(group)
        comm.Free()


@pytest.mark.ranks(min=2)
def test_a_groups_communicator_is_the_users_to_use(dist: ModuleType, make: MakeGroup, rank: int, size: int) -> None:
    group = make(list(range(1, size)))
    if rank == 0:
        return
    comm = group.comm
    work = dist.all_reduce(np.ones(100_000), group=group, async_op=True)
    theirs = comm.allreduce(rank)  # between two of ours, which it must not meet
    mine = total(dist, group, 1)
    work.wait()
    assert (comm.rank, comm.size) == (rank - 1, size - 1)
    assert theirs == sum(range(1, size))
    assert mine == size - 1


def test_the_worlds_communicator_is_the_users_to_use(dist: ModuleType, rank: int, size: int) -> None:
    assert dist.group.WORLD.comm.allgather(rank) == list(range(size))


def test_a_description_that_another_group_would_get_as_its_name(dist: ModuleType) -> None:
    first = dist.new_group()
    number = int(first.label.rpartition("-")[2])
    second = dist.new_group(group_desc=f"group-{number + 2}")
    third = dist.new_group()
    assert len({first.label, second.label, third.label}) == 3
    for group in (first, second, third):
        dist.destroy_process_group(group)


def test_rank_and_size_in_a_communicator_that_nothing_has_used(dist: ModuleType, rank: int, size: int) -> None:
    comm = dist.group.WORLD.comm.Split(0, -rank)
    assert (dist.get_rank(comm), dist.get_world_size(comm)) == (size - 1 - rank, size)
    comm.Free()
