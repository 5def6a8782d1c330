"""ZeroRedundancyOptimizer, whose state is cut over the ranks, takes the steps of the whole optimizer."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam

from .models import backward, part, perceptron, same, same_weights, whole

STEPS = 5


def test_zero_redundancy_optimizer_is_adam(rank: int, size: int) -> None:
    together, alone = DistributedDataParallel(perceptron()), perceptron()
    cut = ZeroRedundancyOptimizer(together.parameters(), optimizer_class=Adam, lr=0.001)
    adam = Adam(alone.parameters(), lr=0.001)
    for step in range(STEPS):
        cut.zero_grad()
        adam.zero_grad()
        backward(together, part(step, rank, size))
        backward(alone, whole(step, size))
        cut.step()
        adam.step()
    same_weights(together.module, alone)
    held = sum(len(cut.optim.state[p]) > 0 for group in cut.optim.param_groups for p in group["params"])
    assert held < 4 or size == 1, "this rank holds the whole state"


@pytest.mark.parametrize("receiver", ["first", "last"])
def test_consolidated_state_is_that_of_adam(rank: int, size: int, receiver: str) -> None:
    to = 0 if receiver == "first" else size - 1
    together, alone = DistributedDataParallel(perceptron()), perceptron()
    cut = ZeroRedundancyOptimizer(together.parameters(), optimizer_class=Adam, lr=0.001)
    adam = Adam(alone.parameters(), lr=0.001)
    backward(together, part(0, rank, size))
    backward(alone, whole(0, size))
    cut.step()
    adam.step()
    cut.consolidate_state_dict(to=to)
    if rank == to:
        got, wanted = cut.state_dict()["state"], adam.state_dict()["state"]
        assert sorted(got) == sorted(wanted)
        for index, state in wanted.items():
            for name, value in state.items():
                same(torch.as_tensor(got[index][name]), value)
