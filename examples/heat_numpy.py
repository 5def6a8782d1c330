"""The heat equation in two dimensions, on numpy arrays, with halo exchange between the blocks of a grid of ranks.

    mpirun -n 4 python examples/heat_numpy.py [--rows 32] [--columns 96] [--steps 500]

A plate is hot along its upper edge and cold along the others. Rank 0 cuts it into a grid of blocks and scatters them.
In each step every rank trades the edges of its block with its neighbours, by ``isend`` and ``irecv`` in the group of
its grid row and the group of its grid column, and then computes its block. Edges along a column are strided views, sent
and received where they lie. In the end rank 0 gathers the blocks straight into place.

Prints the grid, the temperatures as a small map, and the largest difference from the same computation in one process.
That has to be 0, because the additions are the same ones in the same order; the exit status is 1 where it is not.
Any number of ranks will do; torch is never imported.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from numpy.typing import NDArray

import mpicoll as dist

Plate = NDArray[np.float64]
Block = tuple[slice, slice]
DIFFUSION = 0.2  # thermal diffusivity x time step / spacing^2; the scheme is stable below 0.25


def hot_edge_plate(rows: int, columns: int) -> Plate:
    """Return a plate of ``rows x columns`` inner points, with a frame around them whose temperatures never change."""
    plate = np.zeros((rows + 2, columns + 2))
    plate[0] = 100.0
    return plate


def step(plate: Plate) -> None:
    """Move the inner points on by one time step; the frame is only read."""
    inner = plate[1:-1, 1:-1]
    neighbours = plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]
    inner += DIFFUSION * (neighbours - 4.0 * inner)


def grid_shape(size: int) -> tuple[int, int]:
    """Return the factors ``(p, q)`` of ``size`` that are closest to each other, ``p <= q``."""
    p = next(p for p in range(int(size**0.5), 0, -1) if size % p == 0)
    return p, size // p


def bounds(points: int, parts: int, part: int) -> tuple[int, int]:
    """Return where a part of the inner points begins and ends, counted in a plate with its frame."""
    return 1 + points * part // parts, 1 + points * (part + 1) // parts


def blocks_of(plate_shape: tuple[int, int], grid: tuple[int, int], frame: int) -> list[Block]:
    """Return each rank's block of the plate, in rank order, with ``frame`` (0 or 1) points around it."""
    rows, columns = plate_shape
    blocks = []
    for rank in range(grid[0] * grid[1]):
        top, bottom = bounds(rows, grid[0], rank // grid[1])
        left, right = bounds(columns, grid[1], rank % grid[1])
        blocks.append((slice(top - frame, bottom + frame), slice(left - frame, right + frame)))
    return blocks


def make_grid_groups(grid: tuple[int, int]) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Return the groups of this rank's grid row and of its grid column, made of communicators that mpi4py split."""
    row, column = divmod(dist.get_rank(), grid[1])
    world = dist.group.WORLD
    assert world is not None
    row_comm = world.comm.Split(color=row, key=column)
    column_comm = world.comm.Split(color=column, key=row)
    groups = dist.new_group(comm=row_comm), dist.new_group(comm=column_comm)
    row_comm.Free()  # mpicoll works on duplicates of its own
    column_comm.Free()
    return groups


def exchange(first: tuple[Plate, Plate], last: tuple[Plate, Plate], group: dist.ProcessGroup) -> list[dist.Work]:
    """Start the trade with the neighbours before and after this rank in a group; return what to wait for.

    ``first`` and ``last`` are the two ends of the block, each as (the halo to fill, the edge to send).
    """
    me, size = dist.get_rank(group), dist.get_world_size(group)
    works = []
    for (halo, edge), neighbour in ((first, me - 1), (last, me + 1)):
        if 0 <= neighbour < size:
            works.append(dist.irecv(halo, group_src=neighbour, group=group))
            works.append(dist.isend(edge, group_dst=neighbour, group=group))
    return works


def solve_together(block: Plate, steps: int, in_row: dist.ProcessGroup, in_column: dist.ProcessGroup) -> None:
    """Move this rank's block on by a number of time steps."""
    west = block[1:-1, 0], block[1:-1, 1]
    east = block[1:-1, -1], block[1:-1, -2]
    north = block[0, 1:-1], block[1, 1:-1]
    south = block[-1, 1:-1], block[-2, 1:-1]
    for _ in range(steps):
        for work in exchange(west, east, in_row) + exchange(north, south, in_column):
            work.wait()
        step(block)


def print_map(plate: Plate, lines: int = 8, width: int = 64) -> None:
    """Print a sample of the plate, a darker sign for every ten degrees."""
    for i in np.linspace(0, plate.shape[0] - 1, lines).astype(int):
        row = plate[i, np.linspace(0, plate.shape[1] - 1, width).astype(int)]
        print("  " + "".join(" .:-=+*#%@"[min(int(degrees / 10), 9)] for degrees in row))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The heat equation on numpy arrays with mpicoll.")
    parser.add_argument("--rows", type=int, default=32, help="inner points from the hot edge to the one opposite")
    parser.add_argument("--columns", type=int, default=96, help="inner points along the hot edge")
    parser.add_argument("--steps", type=int, default=500, help="time steps")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    shape = arguments.rows, arguments.columns
    dist.init_process_group()
    rank = dist.get_rank()
    grid = grid_shape(dist.get_world_size())
    in_row, in_column = make_grid_groups(grid)

    # The blocks that go out overlap by their frames; those that come back do not.
    whole = hot_edge_plate(*shape)
    framed, bare = blocks_of(shape, grid, frame=1), blocks_of(shape, grid, frame=0)
    block = np.empty_like(whole[framed[rank]])
    dist.scatter(block, [whole[part] for part in framed] if rank == 0 else None, src=0)

    dist.barrier()
    started = time.perf_counter()
    solve_together(block, arguments.steps, in_row, in_column)
    seconds = np.array(time.perf_counter() - started)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)

    dist.gather(block[1:-1, 1:-1], [whole[part] for part in bare] if rank == 0 else None, dst=0)
    difference = np.zeros(())
    if rank == 0:
        alone = hot_edge_plate(*shape)
        for _ in range(arguments.steps):
            step(alone)
        difference[...] = np.abs(whole - alone).max()
        print(f"{shape[0]} x {shape[1]} points on a {grid[0]} x {grid[1]} grid of ranks, {arguments.steps} steps")
        print(f"{seconds:.2f} s, mean temperature {whole[1:-1, 1:-1].mean():.4f}")
        print_map(whole)
        print(f"largest difference from the one-process solution: {difference:.1e}")
    dist.broadcast(difference, src=0)

    dist.destroy_process_group()
    if "torch" in sys.modules:
        raise RuntimeError("a program on numpy arrays must not import torch")
    return 0 if difference == 0.0 else 1


if __name__ == "__main__":
    sys.exit(main())
