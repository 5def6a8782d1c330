"""Pipeline stages, which send activations and gradients from rank to rank, give the values of one process."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from .models import WIDTH, gradients, same

MICRO = 6
ROWS = 2 * MICRO


def blocks(count: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)])


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("schedule", [Schedule1F1B, ScheduleGPipe])
def test_gradients_and_loss_are_those_of_one_process(
    rank: int, size: int, schedule: type[PipelineScheduleSingle]
) -> None:
    alone, mine = blocks(size), blocks(size)[rank]
    stage = PipelineStage(mine, stage_index=rank, num_stages=size, device=torch.device("cpu"))
    pipeline = schedule(stage, n_microbatches=MICRO, loss_fn=nn.functional.mse_loss)
    last = rank == size - 1
    pairs: list[tuple[Tensor, Tensor]] = []  # what came, and what was wanted
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (mine, alone)]
    for step in range(3):
        inputs, targets = torch.randn(2, ROWS, WIDTH, generator=torch.Generator().manual_seed(step))
        losses: list[Tensor] = []
        outputs = pipeline.step(
            *([inputs] if rank == 0 else []), target=targets if last else None, losses=losses if last else None
        )
        wanted = alone(inputs)
        loss = nn.functional.mse_loss(wanted, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if last:
            pairs += [(outputs, wanted), (torch.stack(losses).mean(), loss)]
        references = gradients(alone[rank])
        pairs += [(gradient, references[name]) for name, gradient in gradients(mine).items()]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    # After the last step, in which ranks met: a rank that fails leaves no other one waiting.
    for came, reference in pairs:
        same(came, reference)
    assert len(pairs) == 3 * (4 if last else 2)
