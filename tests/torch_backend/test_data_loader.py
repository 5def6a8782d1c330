"""A DataLoader whose workers are forked from a rank leaves the process group alone."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from .models import backward, momentum, perceptron, same_weights, whole


def test_an_epoch_with_two_forked_workers_is_that_of_one_process(rank: int, size: int) -> None:
    inputs, targets = whole(0, 6 * size)  # 24 rows for each rank: six batches
    data = TensorDataset(inputs, targets)
    samplers: list[DistributedSampler[int]] = [
        DistributedSampler(data, num_replicas=size, rank=other, seed=3) for other in range(size)
    ]
    together, alone = DistributedDataParallel(perceptron()), perceptron()
    optimizer = momentum(together.parameters())
    loader = DataLoader(data, batch_size=4, sampler=samplers[rank], num_workers=2, multiprocessing_context="fork")
    for batch in loader:
        optimizer.zero_grad()
        backward(together, batch)
        optimizer.step()

    optimizer = momentum(alone.parameters())
    order = torch.tensor([list(sampler) for sampler in samplers])
    for indices in torch.split(order, 4, dim=1):
        optimizer.zero_grad()
        backward(alone, (inputs[indices.flatten()], targets[indices.flatten()]))
        optimizer.step()
    assert order.shape[1] == 24
    same_weights(together.module, alone)


def test_collectives_go_on_while_workers_live(rank: int, size: int) -> None:
    data = TensorDataset(torch.arange(24.0))
    loader = DataLoader(data, batch_size=6, num_workers=2, persistent_workers=True, multiprocessing_context="fork")
    for _ in range(2):  # the workers of the first epoch are there in the second
        sums = []
        for (batch,) in loader:
            work = dist.all_reduce(batch.mul_(rank + 1), async_op=True)
            assert work is not None
            work.wait()
            sums.append(batch.sum().item())
        ranks = sum(range(1, size + 1))
        assert sums == [ranks * sum(range(start, start + 6)) for start in (0, 6, 12, 18)]
