"""DistributedDataParallel takes the steps that one process takes on the concatenated batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from .models import (
    WIDTH,
    backward,
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


def parallel(model: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, **options)


def test_plain_training_is_that_of_one_process(rank: int, size: int) -> None:
    together, alone = parallel(perceptron(seed=rank)), perceptron(seed=0)  # all start from rank 0's weights
    train(together, [part(step, rank, size) for step in range(STEPS)])
    train(alone, [whole(step, size) for step in range(STEPS)])
    same_weights(together.module, alone)


def test_many_small_buckets_reduce_to_the_same_gradients(rank: int, size: int) -> None:
    # 64 bytes a bucket: the reductions of one backward are several, and asynchronous
    together, alone = parallel(perceptron(), bucket_cap_mb=64 / 2**20), perceptron()
    train(together, [part(step, rank, size) for step in range(STEPS)])
    train(alone, [whole(step, size) for step in range(STEPS)])
    same_weights(together.module, alone)


class Masked(nn.Module):
    """A layer that sees the inputs that a bool buffer lets through, and counts its calls in an integer one."""

    mask: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(WIDTH, 4)
        self.register_buffer("mask", torch.arange(WIDTH) % 3 == 0)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        output: Tensor = self.linear(inputs * self.mask)
        return output


def test_buffers_are_those_of_rank_0_in_every_forward(rank: int, size: int) -> None:
    together, alone = parallel(Masked()), Masked()  # broadcast_buffers is True
    mask = alone.mask.clone()
    for step in range(3):
        together.module.mask.copy_(mask if rank == 0 else ~mask)
        together.module.calls += 10 * rank
        backward(together, part(step, rank, size))
        backward(alone, whole(step, size))
    same_weights(together.module, alone)
    same_gradients(together.module, alone)
    assert together.module.calls.item() == 3


class Branches(nn.Module):
    """Two layers of which a call uses one, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ways = nn.ModuleList([nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)])
        self.never = nn.Linear(3, 3)

    def forward(self, inputs: Tensor, way: int) -> Tensor:
        output: Tensor = self.ways[way](inputs)
        return output


def test_unused_parameters_count_as_zero_gradients(rank: int, size: int) -> None:
    together, alone = parallel(Branches(), find_unused_parameters=True), Branches()
    for step in range(2):
        backward(partial(together, way=rank % 2), part(step, rank, size))
        for other in range(size):
            backward(partial(alone, way=other % 2), part(step, other, size), parts=size)
    assert together.module.never.weight.grad is None
    used = {name: parameter.grad for name, parameter in alone.named_parameters() if parameter.grad is not None}
    assert len(used) == (4 if size > 1 else 2)
    for name, wanted in used.items():
        got = together.module.get_parameter(name).grad
        assert got is not None
        same(got, wanted)


def test_bf16_compress_hook_averages_in_bf16(rank: int, size: int) -> None:
    together = parallel(perceptron())
    # By its name DDP refuses the hook where torch was built without CUDA, whatever the backend can do.
    together.register_comm_hook(None, lambda state, bucket: bf16_compress_hook(state, bucket))
    backward(together, part(0, rank, size))
    got = gradients(together.module)

    rounded: list[dict[str, Tensor]] = []
    for other in range(size):
        alone = perceptron()
        backward(alone, part(0, other, size))
        rounded.append({name: grad.bfloat16() / size for name, grad in gradients(alone).items()})
    for name, grad in got.items():
        shares = torch.stack([one[name].float() for one in rounded])
        same_but_for_bf16(grad, shares, roundings=size)
        assert torch.equal(grad, grad.bfloat16().float()), f"{name} was not sent as bf16"


def test_no_sync_keeps_the_gradients_until_the_next_backward(rank: int, size: int) -> None:
    together, alone = parallel(perceptron()), perceptron()
    with together.no_sync():
        backward(together, part(0, rank, size))
    own = gradients(together.module)
    backward(together, part(1, rank, size))
    backward(alone, whole(0, size))
    backward(alone, whole(1, size))
    same_gradients(together.module, alone)

    mine = perceptron()
    backward(mine, part(0, rank, size))
    for name, gradient in gradients(mine).items():
        same(own[name], gradient)


@pytest.mark.ranks(min=2)
def test_join_lets_ranks_run_out_of_inputs(rank: int, size: int) -> None:
    def steps(which: int) -> int:
        return 2 + which

    together, alone = parallel(perceptron()), perceptron()
    optimizer = SGD(together.parameters(), lr=0.1)
    with Join([together]):
        for step in range(steps(rank)):
            optimizer.zero_grad()
            backward(together, part(step, rank, size))
            optimizer.step()

    optimizer = SGD(alone.parameters(), lr=0.1)
    for step in range(steps(size - 1)):
        optimizer.zero_grad()
        for other in [other for other in range(size) if step < steps(other)]:
            # a rank without inputs counts as one whose gradients are zero
            backward(alone, part(step, other, size), parts=size)
        optimizer.step()
    same_weights(together.module, alone)
