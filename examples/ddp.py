"""DistributedDataParallel over MPI, on the handwritten digits that ship inside scikit-learn.

    mpirun -n 4 python examples/ddp.py

After ``import mpicoll`` torch knows the backend "mpicoll"; all else is torch's own. Each step's batch of 96 images is
cut into one part per rank. Every rank then trains a second network alone, on the whole batches, and the two sets of
weights are compared. The number of ranks must divide 96.

Prints the mean loss of the first and the last step, and the largest difference from the one-process weights on any
rank. The exit status is 1 where it is above 1e-5.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import mpicoll  # noqa: F401  makes the backend known to torch

STEPS, BATCH = 60, 96
LARGEST_DIFFERENCE = 1e-5


def make_model() -> nn.Module:
    """Return the same small network on every rank and in every call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def train(model: nn.Module, part: int, parts: int) -> Tensor:
    """Train on one of so many parts of each batch; return the mean loss of each step on it."""
    bunch = load_digits()
    images, labels = torch.tensor(bunch.data / 16.0).float(), torch.tensor(bunch.target)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(STEPS):
        mine = torch.randint(len(labels), (BATCH,), generator=generator)[part::parts]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
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

    together, alone = DistributedDataParallel(make_model()), make_model()
    losses = train(together, rank, size)
    dist.all_reduce(losses, op=dist.ReduceOp.AVG)

    train(alone, 0, 1)
    pairs = zip(together.module.parameters(), alone.parameters(), strict=True)
    difference = torch.stack([(trained - reference).abs().max() for trained, reference in pairs]).max().detach()
    dist.all_reduce(difference, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(f"{size} ranks: loss {losses[0]:.4f} at first, {losses[-1]:.4f} after {STEPS} steps")
        print(f"largest difference from the one-process weights, over all ranks: {difference:.1e}")
    dist.destroy_process_group()
    return 0 if difference <= LARGEST_DIFFERENCE else 1


if __name__ == "__main__":
    sys.exit(main())
