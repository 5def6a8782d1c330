"""FSDP2 (`fully_shard`) takes the steps that one process takes on the concatenated batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from .models import (
    backward,
    full,
    gradients,
    part,
    perceptron,
    same,
    same_but_for_bf16,
    same_gradients,
    same_weights,
    train,
    whole,
)

STEPS = 5


def sharded(mesh: DeviceMesh, policy: MixedPrecisionPolicy | None = None) -> nn.Module:
    """Return the perceptron with each layer in a group of its own, so that several collectives are under way."""
    model, policy = perceptron(), policy or MixedPrecisionPolicy()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, mp_policy=replace(policy, output_dtype=None))
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def test_plain_training_is_that_of_one_process(mesh: DeviceMesh, rank: int, size: int) -> None:
    together, alone = sharded(mesh), perceptron()
    train(together, [part(step, rank, size) for step in range(STEPS)])
    train(alone, [whole(step, size) for step in range(STEPS)])
    same_weights(together, alone)


def test_each_rank_holds_its_part_of_the_weights(mesh: DeviceMesh, rank: int, size: int) -> None:
    together = sharded(mesh)
    for name, parameter in perceptron().named_parameters():
        held = together.get_parameter(name)
        assert isinstance(held, DTensor)
        parts = parameter.chunk(size)
        assert torch.equal(held.to_local(), parts[rank] if rank < len(parts) else parameter[:0])


def test_weights_that_do_not_divide_by_the_ranks(mesh: DeviceMesh, rank: int, size: int) -> None:
    def odd() -> nn.Sequential:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 4))

    together, alone = odd(), odd()
    fully_shard(together, mesh=mesh)
    train(together, [part(step, rank, size) for step in range(STEPS)])
    train(alone, [whole(step, size) for step in range(STEPS)])
    same_weights(together, alone)


def test_accumulated_gradients_are_those_of_both_batches(mesh: DeviceMesh, rank: int, size: int) -> None:
    together, alone = sharded(mesh), perceptron()
    assert isinstance(together, FSDPModule)
    together.set_requires_gradient_sync(False)
    backward(together, part(0, rank, size))
    assert all(parameter.grad is None for parameter in together.parameters()), "reduced before its time"
    together.set_requires_gradient_sync(True)
    backward(together, part(1, rank, size))

    backward(alone, whole(0, size))
    backward(alone, whole(1, size))
    same_gradients(together, alone)


class ToFloat32(nn.Module):
    """What `output_dtype=torch.float32` stands for."""

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs.float()


@pytest.mark.parametrize("reduced_in", [torch.float32, torch.bfloat16])
def test_mixed_precision_computes_in_bf16(mesh: DeviceMesh, rank: int, size: int, reduced_in: torch.dtype) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced_in, output_dtype=torch.float32)
    together = sharded(mesh, policy)
    backward(together, part(0, rank, size))
    got = gradients(together)

    rounded = []
    for other in range(size):
        alone = perceptron().bfloat16()
        inputs, targets = part(0, other, size)
        backward(nn.Sequential(alone, ToFloat32()), (inputs.bfloat16(), targets))
        rounded.append(gradients(alone))
    for name, gradient in got.items():
        assert gradient.dtype == torch.float32
        shares = torch.stack([one[name].float() / size for one in rounded])
        if reduced_in == torch.float32:
            same(gradient, shares.sum(dim=0))
        else:
            same_but_for_bf16(gradient, shares, roundings=size)  # additions, and the division by n


def test_a_second_forward_uses_the_stepped_weights(mesh: DeviceMesh, rank: int, size: int) -> None:
    together, alone = sharded(mesh), perceptron()
    train(together, [part(0, rank, size)])
    train(alone, [whole(0, size)])
    inputs, _ = part(1, rank, size)
    same(full(together(inputs)), alone(inputs))
