"""Groups of some of the ranks, and meshes made of them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def members_seen_by(group: dist.ProcessGroup | None) -> list[int]:
    """Return the world ranks of a group's members, in its order, as a gather over it finds them."""
    got = [torch.empty(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(got, torch.tensor([dist.get_rank()]), group=group)
    return [int(tensor) for tensor in got]


def test_new_group_of_the_even_ranks(rank: int, size: int) -> None:
    even = list(range(0, size, 2))
    group = dist.new_group(even)
    if rank in even:
        assert members_seen_by(group) == even
        assert dist.get_rank(group) == even.index(rank)
        assert dist.get_process_group_ranks(group) == even
    else:
        assert group == dist.GroupMember.NON_GROUP_MEMBER
        assert dist.get_rank(group) == -1


def test_groups_that_overlap_reduce_apart(rank: int, size: int) -> None:
    pairs = [dist.new_group([rank, (rank + 1) % size] if size > 1 else [0]) for rank in range(size)]
    works, totals = [], {}
    for first, pair in enumerate(pairs):
        if rank in (first, (first + 1) % size):
            totals[first] = torch.tensor([10.0**rank])
            works.append(dist.all_reduce(totals[first], group=pair, async_op=True))
    for work in works:
        assert work is not None
        work.wait()
    for first, total in totals.items():
        assert total.item() == sum({10.0**first, 10.0 ** ((first + 1) % size)})


def test_a_root_is_named_by_its_world_rank(rank: int, size: int) -> None:
    last = size - 1
    group = dist.new_group([last])
    tensor = torch.tensor([float(rank)])
    if rank == last:
        dist.broadcast(tensor, src=last, group=group)
        dist.reduce(tensor, dst=last, group=group)
    assert tensor.item() == rank


def test_a_destroyed_group_leaves_the_others(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    assert members_seen_by(group) == list(range(size))
    dist.destroy_process_group(group)
    assert members_seen_by(None) == list(range(size))


@pytest.mark.ranks(2, 4)
def test_new_subgroups_of_neighbours(rank: int) -> None:
    mine, groups = dist.new_subgroups(group_size=2)  # type: ignore[no-untyped-call]
    assert members_seen_by(mine) == [rank - rank % 2, rank - rank % 2 + 1]
    assert len(groups) == dist.get_world_size() // 2


@pytest.mark.ranks(2, 4)
def test_new_subgroups_by_enumeration(rank: int, size: int) -> None:
    plan = [[0, 2], [1, 3]] if size == 4 else [[0], [1]]
    mine, groups = dist.new_subgroups_by_enumeration(plan)  # type: ignore[no-untyped-call]
    assert members_seen_by(mine) == plan[rank % 2]
    assert len(groups) == 2


@pytest.mark.ranks(2, 4)
def test_mesh_of_two_dimensions(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("row", "column"))
    row, column = divmod(rank, 2)
    assert tuple(mesh.get_coordinate() or ()) == (row, column)
    assert members_seen_by(mesh.get_group("column")) == [2 * row, 2 * row + 1]
    assert members_seen_by(mesh.get_group("row")) == [2 * other + column for other in range(size // 2)]
    assert mesh["row"].get_local_rank() == row


@pytest.mark.ranks(4)
def test_a_mesh_flattens_into_one_group(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    flat = mesh["row", "column"]._flatten("all")
    assert members_seen_by(flat.get_group()) == [0, 1, 2, 3]
