"""DDP over mpicoll beside DDP over gloo: `mpirun -n 2 python tests/benchmarks/ddp.py`, or `make bench`.

Prints the steps per second of a network of ten million parameters over either, and their ratio. The steps are taken in
turn, some over the one and then some over the other.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import pairwise

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mpicoll

WIDTHS = (1024, 2048, 3072, 512)  # 10 million parameters
BATCH = 16


def make_model() -> nn.Sequential:
    """The network, the same on every rank."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(WIDTHS):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def steps_a_second(model: nn.Module, steps: int) -> float:
    """Train for some steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(BATCH, WIDTHS[0])
    mpicoll.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    mpicoll.barrier()
    return steps / (time.perf_counter() - start)


def main() -> None:
    """Print the two rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=9, help="how often each is timed")
    parser.add_argument("--steps", type=int, default=5, help="steps of a round")
    options = parser.parse_args()
    mpicoll.init_process_group(torch=True)
    groups = {"mpicoll": torch.distributed.group.WORLD, "gloo": torch.distributed.new_group(backend="gloo")}
    models = {name: DistributedDataParallel(make_model(), process_group=group) for name, group in groups.items()}
    rates: dict[str, list[float]] = {name: [] for name in models}
    for model in models.values():
        steps_a_second(model, 2)
    for _ in range(options.rounds):
        for name, model in models.items():
            rates[name].append(steps_a_second(model, options.steps))
    if mpicoll.get_rank() == 0:
        medians = {name: statistics.median(measured) for name, measured in rates.items()}
        for name, median in medians.items():
            print(f"DDP, 10 million parameters, {name:<8} {median:6.2f} steps/s  {median / medians['gloo']:5.2f}")
    mpicoll.destroy_process_group()


if __name__ == "__main__":
    main()
