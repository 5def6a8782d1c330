"""FSDP2 over MPI: each rank holds a part of the weights, the gradients and the optimizer's state.

    mpirun -n 4 python examples/fsdp.py

The weights of a layer are gathered when the layer is needed, and its gradients are added up and cut again. The data is
made up: a network learns what another one answers to random inputs. Every rank then trains the same network alone, on
the whole batches, and the two sets of weights are compared. The number of ranks must divide 96.

Prints how many weights each rank holds, the mean loss of the first and the last step, and the largest difference from
the one-process weights on any rank. The exit status is 1 where it is above 1e-5.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import mpicoll  # noqa: F401  makes the backend known to torch

STEPS, BATCH, WIDTH = 60, 96, 32
LARGEST_DIFFERENCE = 1e-5


def make_model(seed: int) -> nn.Sequential:
    """Return a network that is the same on every rank."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))


def train(model: nn.Module, part: int, parts: int) -> Tensor:
    """Train on one of so many parts of each batch; return the mean loss of each step on it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    teacher, generator = make_model(seed=1), torch.Generator().manual_seed(0)
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, WIDTH, generator=generator)[part::parts]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), teacher(inputs).detach())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def main() -> int:
    torch.set_num_threads(1)  # the network is tiny: one thread per rank beats ranks that compete for the cores
    dist.init_process_group("mpicoll")  # rank and size are MPI's
    rank, size = dist.get_rank(), dist.get_world_size()
    if BATCH % size:
        raise SystemExit(f"run it on a number of ranks that divides {BATCH}, not on {size}")

    mesh, together, alone = init_device_mesh("cpu", (size,)), make_model(seed=0), make_model(seed=0)
    for layer in together:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(together, mesh=mesh)
    losses = train(together, rank, size)
    dist.all_reduce(losses, op=dist.ReduceOp.AVG)

    train(alone, 0, 1)
    held, difference = torch.zeros(size, dtype=torch.int64), torch.zeros(())
    for trained, reference in zip(together.parameters(), alone.parameters(), strict=True):
        assert isinstance(trained, DTensor)
        held[rank] += trained.to_local().numel()
        difference = torch.maximum(difference, (trained.full_tensor() - reference).detach().abs().max())
    dist.all_reduce(held)
    dist.all_reduce(difference, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(f"weights on each rank: {held.tolist()}")
        print(f"{size} ranks: loss {losses[0]:.4f} at first, {losses[-1]:.4f} after {STEPS} steps")
        print(f"largest difference from the one-process weights, over all ranks: {difference:.1e}")
    dist.destroy_process_group()
    return 0 if difference <= LARGEST_DIFFERENCE else 1


if __name__ == "__main__":
    sys.exit(main())
