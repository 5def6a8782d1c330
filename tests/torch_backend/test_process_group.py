"""What torch expects of the process group itself: forms of calls, names, numbers, the profiler's ranges."""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group
from torch.profiler import profile

import mpicoll

from .backend import BACKEND

pytestmark = pytest.mark.skipif(BACKEND != "mpicoll", reason="what mpicoll's groups add to torch's")


def test_a_group_of_one_door_serves_at_the_other(size: int) -> None:
    groups: list[Any] = [dist.new_group(), mpicoll.new_group(), mpicoll.group.WORLD]
    for group in groups:
        for door in (dist, mpicoll):
            x = torch.ones(2)
            door.all_reduce(x, group=group)
            assert x.tolist() == [size] * 2
            assert door.get_world_size(group) == size
            assert door.get_process_group_ranks(group) == list(range(size))
        assert isinstance(group, mpicoll.ProcessGroup)
        assert isinstance(group, dist.ProcessGroup)
        assert group.comm.Get_size() == size


def test_parts_of_the_first_door_serve_ddp(rank: int, size: int) -> None:
    part = mpicoll.split_group(split_ranks=[[r] for r in range(size)])
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False), process_group=part)
    model(torch.full((1, 1), float(rank))).sum().backward()
    assert model.module.weight.grad == rank
    mpicoll.destroy_process_group(part)


def test_a_group_destroyed_at_one_door_is_gone_at_both() -> None:
    for make in (mpicoll.new_group, dist.new_group):
        for destroy in (mpicoll.destroy_process_group, dist.destroy_process_group):
            group = make()
            destroy(group)
            with pytest.raises(ValueError, match="has been destroyed"):
                mpicoll.all_reduce(torch.ones(1), group=group)
            assert group not in dist.distributed_c10d._world.pg_map


def test_outside_a_group_of_the_first_door_torch_does_nothing(rank: int) -> None:
    group = mpicoll.new_group([0])
    x = torch.full((2,), float(rank))
    if rank == 0:
        dist.all_reduce(x, group=group)
    else:
        with pytest.warns(UserWarning, match="does not belong"):
            dist.all_reduce(x, group=group)
    assert x.tolist() == [rank] * 2


def sum_of(tensors: list[Tensor]) -> list[list[float]]:
    return [tensor.tolist() for tensor in tensors]


FORMS: dict[str, Callable[[Any, Tensor, Tensor, int], Any]] = {
    "allreduce, one tensor": lambda pg, x, whole, n: pg.allreduce(x),
    "allreduce, a list": lambda pg, x, whole, n: pg.allreduce([x]),
    "allreduce, an operation": lambda pg, x, whole, n: pg.allreduce(x, dist.ReduceOp.SUM),
    "allreduce, named": lambda pg, x, whole, n: pg.allreduce([x], op=dist.ReduceOp.SUM, timeout=timedelta(seconds=30)),
    "allreduce, options": lambda pg, x, whole, n: pg.allreduce([x], dist.AllreduceOptions()),
    "allreduce_coalesced": lambda pg, x, whole, n: pg.allreduce_coalesced([x], dist.AllreduceCoalescedOptions()),
    "reduce_scatter": lambda pg, x, whole, n: pg.reduce_scatter(x, [torch.ones(2)] * n),
    "reduce_scatter, options": lambda pg, x, whole, n: pg.reduce_scatter(
        [x], [[torch.ones(2)] * n], dist.ReduceScatterOptions()
    ),
    "_reduce_scatter_base": lambda pg, x, whole, n: pg._reduce_scatter_base(x, torch.ones(2 * n)),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_call(form: str, size: int, world: Any) -> None:
    x, whole = torch.ones(2), torch.zeros(2 * size)
    work = FORMS[form](world, x, whole, size)
    assert work.wait()
    assert x.tolist() == [size] * 2


def test_broadcast_from_a_root(rank: int, world: Any) -> None:
    for call in (lambda x: world.broadcast(x, 0), lambda x: world.broadcast([x]), lambda x: world.broadcast(x, root=0)):
        x = torch.full((2,), float(rank + 1))
        call(x).wait()  # type: ignore[no-untyped-call]
        assert x.tolist() == [1, 1]


def test_gathering_forms(rank: int, size: int, world: Any) -> None:
    wanted = [[float(r)] for r in range(size)]
    mine = torch.full((1,), float(rank))
    outputs = [torch.zeros(1) for _ in range(size)]
    world.allgather([outputs], [mine]).wait()
    assert sum_of(outputs) == wanted
    outputs = [torch.zeros(1) for _ in range(size)]
    world.allgather(outputs, mine).wait()
    assert sum_of(outputs) == wanted
    outputs = [torch.zeros(1) for _ in range(size)] if rank == 0 else []
    world.gather(outputs, mine, 0).wait()
    assert sum_of(outputs) == (wanted if rank == 0 else [])
    whole = torch.zeros(size)
    world._allgather_base(whole, mine).wait()
    assert whole.tolist() == list(range(size))


def test_a_synchronous_call_gives_no_work_and_is_done(size: int, world: Any) -> None:
    options = dist.AllreduceOptions()
    options.asyncOp = False
    x = torch.ones(1)
    assert world.allreduce([x], options) is None
    assert x.item() == size


def test_sequence_numbers_count_collectives(world: Any) -> None:
    before = world._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    with pytest.raises(ValueError, match="length of tensor_list"):
        dist.all_gather([], torch.ones(1))
    assert world._get_sequence_number_for_group() == before + 2


def test_names(world: Any) -> None:
    group: Any = dist.new_group(group_desc="a description")
    assert (world.name(), group.group_desc) == ("mpicoll", "a description")
    assert _resolve_process_group(group.group_name) is group
    with pytest.raises(ValueError, match=r"all_reduce\(group=a description"):
        mpicoll.all_reduce(torch.ones(1), op="no such operation", group=group)


def test_the_same_mistake_has_the_same_text_at_both_doors(size: int) -> None:
    texts = []
    for door in (dist, mpicoll):
        with pytest.raises(ValueError, match="length of tensor_list") as raised:
            door.all_gather([torch.zeros(1)] * (size + 1), torch.zeros(1))
        texts.append(str(raised.value))
    assert texts[0] == texts[1]


def test_split_group_divides_a_group(rank: int, size: int, world: Any) -> None:
    part = world.split_group([0], group_name="first alone", group_desc="alone")
    assert (part is None) == (rank != 0)
    if part is not None:
        assert (part.size(), part.group_name, part.group_desc) == (1, "first alone", "alone")
        part.allreduce([torch.ones(1)]).wait()
        part.shutdown()


def test_set_timeout_holds_for_later_works(world: Any) -> None:
    before = timedelta(seconds=world.timeout)
    group: Any = dist.new_group()
    group.set_timeout(timedelta(seconds=7))
    assert (group.timeout, timedelta(seconds=world.timeout)) == (7, before)


@pytest.mark.ranks(min=2)
def test_a_call_has_a_time_out_of_its_own(rank: int, size: int) -> None:
    group: Any = dist.new_group()
    x, late = torch.zeros(1), timedelta(seconds=0.1)
    if rank == 0:
        work = group.allreduce([x], timeout=late)
        with pytest.raises(RuntimeError, match=r"not done after 0\.1 s"):
            work.wait()
    dist.barrier()
    if rank != 0:
        group.allreduce([x]).wait()
    else:
        work.wait(timedelta(seconds=30))
    dist.destroy_process_group(group)


def test_sparse_tensors_are_added(rank: int, size: int) -> None:
    for async_op in (False, True):
        places = torch.tensor([[rank, 0], [0, 1]])
        x = torch.sparse_coo_tensor(places, torch.tensor([1.0, 2.0]), (size, 2), check_invariants=True)
        work = dist.all_reduce(x, async_op=async_op)
        if work is not None:
            work.wait()
        wanted = torch.zeros(size, 2)
        wanted[:, 0] = 1
        wanted[0, 1] = 2 * size
        assert x.to_dense().tolist() == wanted.tolist()


def test_other_reductions_of_sparse_tensors_are_refused() -> None:
    x = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1.0]), (2,), check_invariants=True)
    with pytest.raises(ValueError, match=r"all_reduce\(group=world.*SUM"):
        dist.all_reduce(x, dist.ReduceOp.MAX)


def test_the_profiler_shows_ranges_with_shapes() -> None:
    with profile(record_shapes=True) as seen:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        assert work is not None
        work.wait()
        work.get_future().wait()
        dist.all_gather([torch.zeros(2) for _ in range(dist.get_world_size())], torch.ones(2))
    ranges = {event.name: event for event in seen.events() if event.name.startswith("mpicoll:")}
    assert ranges["mpicoll:all_reduce"].is_async  # until it is done, on another thread
    assert ranges["mpicoll:all_reduce"].input_shapes == [[3]]
    assert not ranges["mpicoll:all_gather"].is_async
    assert ranges["mpicoll:all_gather"].input_shapes == [[2]]


@pytest.mark.ranks(min=2)
def test_an_aborted_group_gives_up_what_is_under_way(rank: int) -> None:
    group: Any = dist.new_group()
    works = [group.allreduce([torch.ones(1)]) for _ in range(2 if rank == 0 else 1)]
    works[0].wait()
    if rank == 0:
        group.abort()
        with pytest.raises(RuntimeError, match="has been aborted"):
            works[1].wait()
        with pytest.raises(ValueError, match="has been aborted"):
            mpicoll.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    if rank != 0:
        group.allreduce([torch.ones(1)]).wait()  # so that what rank 0 gave up comes to an end


@pytest.mark.parametrize("door", [mpicoll, dist], ids=["mpicoll", "torch"])
def test_groups_that_are_destroyed_leave_nothing_behind(size: int, door: ModuleType) -> None:
    def make(times: int) -> int:
        for _ in range(times):
            group = door.new_group(list(range(size)))
            dist.all_reduce(torch.ones(1), group=group)
            door.destroy_process_group(group)
        gc.collect()
        return len(gc.get_objects())

    before = make(10)  # what is kept from the first is not counted
    assert make(20) - before < 10
