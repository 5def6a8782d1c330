"""all_reduce at either door, beside mpi4py's Allreduce and gloo's.

Run as `mpirun -n 2 python tests/benchmarks/all_reduce.py`, or by `make bench`.

Prints for each size the median time of a call and its ratio to mpi4py on the numpy array. The calls are timed in turn,
so that what else the machine does meets all of them alike; absolute times are only good for comparison within a run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed
from mpi4py import MPI

import mpicoll as dist

ELEMENTS = {4: 1, 1 << 16: 1 << 14, 1 << 20: 1 << 18}  # bytes -> float32 elements


def seconds_a_call(call: Callable[[], Any], calls: int) -> float:
    """Time some calls in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def measure(elements: int, rounds: int, budget: float, gloo: Any) -> dict[str, float]:
    """Time each of the ways, in turn; return the medians in seconds."""
    comm = MPI.COMM_WORLD
    array, other, tensor = np.ones(elements, np.float32), np.ones(elements, np.float32), torch.ones(elements)
    ways: dict[str, Callable[[], Any]] = {
        "mpi4py, numpy": lambda: comm.Allreduce(MPI.IN_PLACE, array),
        "mpi4py, tensor.numpy()": lambda: comm.Allreduce(MPI.IN_PLACE, tensor.numpy()),
        "mpicoll, torch": lambda: dist.all_reduce(tensor),
        "mpicoll, numpy": lambda: dist.all_reduce(other),
        "torch.distributed": lambda: torch.distributed.all_reduce(tensor),
        "torch.distributed, gloo": lambda: torch.distributed.all_reduce(tensor, group=gloo),
    }
    calls = {}
    for name, call in ways.items():
        seconds_a_call(call, 20)  # the first calls of all load and look up what the others find
        one = comm.allreduce(seconds_a_call(call, 20), op=MPI.MAX)
        calls[name] = max(5, min(2000, int(budget / one)))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            for values in (array, other):
                values[:] = 0
            tensor.zero_()
            comm.Barrier()
            times[name].append(seconds_a_call(call, calls[name]))
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=31, help="how often each way is timed")
    parser.add_argument("--budget", type=float, default=0.02, help="seconds that the calls of a round may take")
    options = parser.parse_args()
    dist.init_process_group()
    gloo = torch.distributed.new_group(backend="gloo")
    for nbytes, elements in ELEMENTS.items():
        medians = measure(elements, options.rounds, options.budget, gloo)
        if dist.get_rank() == 0:
            base = medians["mpi4py, numpy"]
            for name, median in medians.items():
                print(f"{nbytes:>8} B  {name:<24} {median * 1e6:9.2f} us  {median / base:6.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
