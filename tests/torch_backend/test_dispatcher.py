"""What torch's dispatcher does with collectives: its modes, and tensors that are not just memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C import _distributed_c10d as c10d
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.parallel import DistributedDataParallel

from .backend import BACKEND

ours = pytest.mark.skipif(BACKEND != "mpicoll", reason="what mpicoll's groups do better than gloo's, or in other words")


def coalesced(tensors: list[Tensor]) -> None:
    with _coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)


Make = Callable[..., Tensor]
# On rank 0, which is the root and has another rank to talk to.
CALLS: dict[str, Callable[[Make, int], Any]] = {
    "all_reduce": lambda new, n: dist.all_reduce(new(2)),
    "all_reduce, asynchronous": lambda new, n: dist.all_reduce(new(2), async_op=True).wait(),
    "broadcast": lambda new, n: dist.broadcast(new(2), 0),
    "reduce": lambda new, n: dist.reduce(new(2), 0),
    "all_gather": lambda new, n: dist.all_gather([new(2) for _ in range(n)], new(2)),
    "all_gather_into_tensor": lambda new, n: dist.all_gather_into_tensor(new(2 * n), new(2)),
    "gather": lambda new, n: dist.gather(new(2), [new(2) for _ in range(n)]),
    "scatter": lambda new, n: dist.scatter(new(2), [new(2) for _ in range(n)]),
    "reduce_scatter": lambda new, n: dist.reduce_scatter(new(2), [new(2) for _ in range(n)]),
    "reduce_scatter_tensor": lambda new, n: dist.reduce_scatter_tensor(new(2), new(2 * n)),
    "all_to_all": lambda new, n: dist.all_to_all([new(2) for _ in range(n)], [new(2) for _ in range(n)]),
    "all_to_all_single": lambda new, n: dist.all_to_all_single(new(2 * n), new(2 * n)),
    "send": lambda new, n: dist.send(new(2), 1),
    "recv": lambda new, n: dist.recv(new(2), 1),
    "recv from any": lambda new, n: dist.irecv(new(2)).wait(),  # type: ignore[union-attr]
    "functional": lambda new, n: functional.all_reduce(new(2), "sum", dist.group.WORLD) + 1,
}
if BACKEND == "mpicoll":  # for which gloo has no kernels
    CALLS["several as one"] = lambda new, n: coalesced([new(2), new(3)])


@pytest.fixture
def in_step(size: int) -> Any:
    """Check behind a test that no rank has communicated without the others."""
    yield
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == size


def on_meta(*shape: int) -> Tensor:
    return torch.empty(*shape, device="meta")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["mode", "fake", "meta"])
def test_nothing_is_sent_of_tensors_without_data(call: str, kind: str, rank: int, size: int, in_step: None) -> None:
    if rank != 0:  # who would have to take part
        return
    mode = FakeTensorMode()
    with mode:
        made = {shape: torch.empty(shape) for shape in (2, 3, 2 * size)}
    makes: dict[str, Make] = {"mode": torch.empty, "fake": made.__getitem__, "meta": on_meta}
    with mode if kind == "mode" else nullcontext():
        CALLS[call](makes[kind], size)


@pytest.mark.ranks(2)
def test_a_barrier_under_fake_tensor_mode_waits_for_nobody(rank: int, in_step: None) -> None:
    if rank == 0:
        with FakeTensorMode():
            dist.barrier()


@pytest.mark.ranks(2)
def test_real_tensors_are_refused_under_fake_tensor_mode(rank: int, in_step: None) -> None:
    x = torch.ones(2)
    if rank == 0:
        with FakeTensorMode(), pytest.raises(AssertionError, match="convert all Tensors to FakeTensors"):
            dist.all_reduce(x)


@pytest.mark.ranks(2)
def test_fsdp_under_fake_tensor_mode_has_gradients(rank: int, mesh: DeviceMesh, in_step: None) -> None:
    if rank == 0:
        with FakeTensorMode():
            model = nn.Linear(3, 2)
            fully_shard(model, mesh=mesh)
            model(torch.empty(4, 3)).sum().backward()
        assert model.weight.grad is not None
        assert model.weight.grad.shape == (2, 3)


def test_a_mode_sees_what_is_carried_out(size: int, mesh: DeviceMesh) -> None:
    x, whole = torch.ones(2), torch.zeros(2 * size)
    model, sharded = DistributedDataParallel(nn.Linear(3, 2)), nn.Linear(3, 2)
    fully_shard(sharded, mesh=mesh)
    with CommDebugMode() as seen:  # type: ignore[no-untyped-call]
        dist.all_reduce(x)
        dist.all_gather_into_tensor(whole, x)
        for one in (model, sharded):
            one(torch.ones(1, 3, requires_grad=True)).sum().backward()
    assert x.tolist() == [size] * 2
    assert whole.tolist() == [size] * 2 * size
    ops = torch.ops.c10d
    counts = seen.get_comm_counts()
    assert (counts[ops.allreduce_], counts[ops._allgather_base_], counts[ops._reduce_scatter_base_]) == (2, 2, 1)


def test_what_a_functional_collective_gave_is_waited_for(size: int) -> None:
    x = functional.all_reduce(torch.ones(1 << 20), "sum", dist.group.WORLD)
    dist.all_reduce(x)
    assert x.tolist()[-2:] == [size**2] * 2
    parts = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(parts, functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD))
    assert all(part.tolist() == [size] * 2 for part in parts)


def test_a_tensor_waits_for_what_writes_to_it(size: int) -> None:
    before = c10d._get_work_registry_size()
    with functional.allow_inflight_collective_as_graph_input_ctx():
        x = torch.ones(1 << 20)
        dist.all_reduce(x, async_op=True)
    assert c10d._get_work_registry_size() == before + 1
    functional.wait_tensor(x)  # type: ignore[no-untyped-call]
    assert x.tolist()[-2:] == [size] * 2
    assert c10d._get_work_registry_size() == before


@ours
def test_a_distributed_tensor_is_refused(mesh: DeviceMesh, size: int) -> None:
    x = distribute_tensor(torch.ones(size), mesh, [Shard(0)])
    with pytest.raises(TypeError, match=r"all_reduce\(group=world.*got DTensor.*Pass tensor\.to_local\(\)"):
        dist.all_reduce(x)


@ours
def test_tracing_is_refused(in_step: None) -> None:
    with pytest.raises(ValueError, match=r"all_?reduce\(group=world.*got one that torch\.fx traces"):
        make_fx(lambda x: dist.all_reduce(x + 1))(torch.ones(1))
