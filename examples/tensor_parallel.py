"""Tensor parallelism over MPI: two layers cut through the middle, each rank with its part of the inner units.

    mpirun -n 4 python examples/tensor_parallel.py

All ranks see every batch. The first layer is cut by columns and needs no communication; the second one, cut by rows,
ends in an all_reduce of what the ranks contribute. The data is made up: the sums of neighbouring inputs. Every rank
then trains a whole network alone, and the two sets of weights are compared. The number of ranks must divide 64.

Prints the inner units of each rank, the loss of the first and the last step, and the largest difference from the
one-process weights on any rank. The exit status is 1 where it is above 1e-5.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import mpicoll  # noqa: F401  makes the backend known to torch

STEPS, BATCH, WIDTH, INNER = 60, 96, 16, 64
LARGEST_DIFFERENCE = 1e-5


def make_model() -> nn.Sequential:
    """Return the same network on every rank and in every call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, INNER), nn.Tanh(), nn.Linear(INNER, WIDTH))


def train(model: nn.Module) -> Tensor:
    """Train on whole batches; return the loss of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, WIDTH, generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs + inputs.roll(1, dims=1))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def main() -> int:
    torch.set_num_threads(1)  # the network is tiny: one thread per rank beats ranks that compete for the cores
    dist.init_process_group("mpicoll")  # rank and size are MPI's
    rank, size = dist.get_rank(), dist.get_world_size()
    if INNER % size:
        raise SystemExit(f"run it on a number of ranks that divides {INNER}, not on {size}")

    mesh, together, alone = init_device_mesh("cpu", (size,)), make_model(), make_model()
    parallelize_module(together, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    losses = train(together)

    train(alone)
    units, difference = torch.zeros(size, dtype=torch.int64), torch.zeros(())
    for name, reference in alone.named_parameters():
        trained = together.get_parameter(name)
        whole = trained.full_tensor() if isinstance(trained, DTensor) else trained
        difference = torch.maximum(difference, (whole - reference).detach().abs().max())
        if name == "0.weight":
            assert isinstance(trained, DTensor)
            units[rank] = len(trained.to_local())
    dist.all_reduce(units)
    dist.all_reduce(difference, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(f"inner units on each rank: {units.tolist()}")
        print(f"{size} ranks: loss {losses[0]:.4f} at first, {losses[-1]:.4f} after {STEPS} steps")
        print(f"largest difference from the one-process weights, over all ranks: {difference:.1e}")
    dist.destroy_process_group()
    return 0 if difference <= LARGEST_DIFFERENCE else 1


if __name__ == "__main__":
    sys.exit(main())
