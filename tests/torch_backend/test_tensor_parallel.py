"""Tensor parallelism through DTensor, alone and across FSDP2, gives the values of one process."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from .models import part, perceptron, same, same_gradients, same_weights, train, whole

STEPS = 5


def split_over(mesh: DeviceMesh) -> nn.Module:
    """Return the perceptron with its inner units split over the ranks of a mesh."""
    return parallelize_module(perceptron(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


@pytest.mark.ranks(1, 2, 4)  # which divide the inner units; torch wants that
def test_training_with_split_layers_is_that_of_one_process(mesh: DeviceMesh, rank: int, size: int) -> None:
    together, alone = split_over(mesh), perceptron()
    batches = [whole(step, size) for step in range(STEPS)]  # every rank sees all of the batch
    losses = train(together, batches)
    for got, wanted in zip(losses, train(alone, batches), strict=True):
        same(got, wanted)
    same_weights(together, alone)
    weight = together.get_parameter("0.weight")
    assert isinstance(weight, DTensor)
    assert weight.to_local().shape == (16 // size, 8)


@pytest.mark.ranks(1, 2, 4)
def test_sequence_parallel_norm_gives_the_same_gradients(mesh: DeviceMesh, size: int) -> None:
    """The norm sees a part of each sequence, the layers around it see all: all_gather in, reduce_scatter out."""

    def normed() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8))

    inputs = torch.randn(2, 4 * size, 8, generator=torch.Generator().manual_seed(1))
    together, alone = normed(), normed()
    whole_sequence = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    plan = {"0": SequenceParallel(), "1": whole_sequence, "2": RowwiseParallel(output_layouts=Replicate())}
    parallelize_module(together, mesh, plan)
    parallelize_module(together[1], mesh, ColwiseParallel())
    for model in (together, alone):
        model(inputs).square().mean().backward()
    same_gradients(together, alone)


@pytest.mark.ranks(4)
def test_two_by_two_with_fsdp_is_one_process(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    together, alone = split_over(mesh["tensor"]), perceptron()
    fully_shard(together, mesh=mesh["data"])
    train(together, [part(step, rank // 2, 2) for step in range(STEPS)])
    train(alone, [whole(step, 2) for step in range(STEPS)])
    same_weights(together, alone)


def test_redistribution_moves_the_right_elements(mesh: DeviceMesh, size: int) -> None:
    tensor = torch.arange(float(6 * size * size)).reshape(2 * size, 3 * size)
    by_rows = distribute_tensor(tensor, mesh, [Shard(0)])
    by_columns = by_rows.redistribute(mesh, [Shard(1)])
    got = by_columns.full_tensor()
    assert torch.equal(got, tensor)
    assert torch.equal(by_columns.to_local(), tensor.chunk(size, dim=1)[mesh.get_local_rank()])


def test_distribute_tensor_hands_out_rank_0s_values(mesh: DeviceMesh, rank: int, size: int) -> None:
    # one row more than ranks: the parts differ in size
    tensor = torch.arange(float(2 * size + 2)).reshape(size + 1, 2)
    held = distribute_tensor(tensor if rank == 0 else torch.zeros_like(tensor), mesh, [Shard(0)])
    assert torch.equal(held.full_tensor(), tensor)
