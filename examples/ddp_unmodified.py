"""Plain DistributedDataParallel on gloo, found by environment variables: nothing in here knows of MPI.

    torchrun --nproc-per-node 2 examples/ddp_unmodified.py

A network learns what another one answers to random inputs. Each step's batch of 96 is cut into one part per process,
so that the losses are the same at any number of processes that divides 96, but for rounding.

Prints the mean loss of each step.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, WIDTH = 10, 96, 16


def make_model(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 4))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()

    model, teacher = DistributedDataParallel(make_model(seed=0)), make_model(seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        inputs = torch.randn(BATCH, WIDTH, generator=generator)[rank::size]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), teacher(inputs).detach())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

        mean = loss.detach() / size
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: loss {mean:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
