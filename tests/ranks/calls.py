"""A call as data, the team that makes it, and the desk at which one rank prepares it.

A `Call` holds no arrays: every rank makes its own from the call's seed and knows everybody else's. Nothing here raises
for a wrong result: a rank that left in the middle would let the others hang. Complaints are collected instead.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from math import prod
from typing import Any

import numpy as np

from tests.ranks.arrays import Placed, Shape, make
from tests.reference.dtypes import DTYPES, HAS_TORCH, DType, Raw
from tests.reference.inputs import arbitrary, numbers
from tests.reference.reduction import FACTOR

TEAMS = ("world", "subgroup", "communicator")
# The operations whose inputs are numbers and whose results are rounded; the others move bytes.
REDUCING = (
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
)


# Most of a run's time would go into making numbers; the same ones will do for many calls.
_numbers = lru_cache(maxsize=1 << 15)(numbers)


@dataclass(frozen=True)
class Team:
    """A group as one rank sees it: `me` is the rank in the group, `ranks` the members' global ranks."""

    dist: Any
    group: Any
    ranks: tuple[int, ...]
    me: int

    @property
    def size(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True)
class Call:
    """One call. `shapes`, `layouts` and `kinds` are gone through in turn by arrays and ranks.

    Several shapes make the list forms uneven; `variant` picks among the spellings of the same call.
    """

    op: str
    dtype: str
    shapes: tuple[Shape, ...] = ((3,),)
    layouts: tuple[str, ...] = ("contiguous",)
    kinds: tuple[str, ...] = ("numpy",)
    root: int = 0
    reduce: str = "SUM"
    async_op: bool = False
    seed: int = 0
    variant: int = 0


@dataclass
class Pending:
    """A call under way."""

    team: Team
    call: Call
    works: list[Any] = field(default_factory=list)
    checks: list[Callable[[], str | None]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def finish(self) -> list[str]:
        """Wait, then compare every array."""
        for work in self.works:
            if (waited := work.wait()) is not True:
                self.complaints.append(f"wait(): expected True, got {waited!r}")
        found = [complaint for check in self.checks if (complaint := check())]
        return [f"{self.call} in {self.team.ranks} as {self.team.me}: {text}" for text in self.complaints + found]


class Desk:
    """Makes one rank's arrays for one call and notes what each must hold afterwards."""

    def __init__(self, team: Team, call: Call) -> None:
        self.team, self.call = team, call
        self.dtype: DType = DTYPES[call.dtype]
        self.root = call.root % team.size
        self.pending = Pending(team, call)
        self._made = 0

    @property
    def op(self) -> Any:
        ops = self.team.dist.ReduceOp
        return ops.PREMUL_SUM(FACTOR) if self.call.reduce == "PREMUL_SUM" else getattr(ops, self.call.reduce)

    def shape(self, index: int) -> Shape:
        return self.call.shapes[index % len(self.call.shapes)]

    def part(self, rank: int, index: int, shape: Shape) -> Raw:
        """Give what `rank` brings as its entry `index`; the same on every rank."""
        if self.call.op in REDUCING:
            make_numbers = _numbers if prod(shape) < 100 else numbers
            elements = make_numbers(
                self.dtype, self.call.reduce, self.team.size, shape, self.call.seed % 97, rank, index
            )
        else:
            tame = "conj" in self.call.layouts or "neg" in self.call.layouts
            elements = arbitrary(self.dtype, shape, self.call.seed, rank, index, tame=tame)
        if "expanded" in self.call.layouts and shape:
            elements = np.array(np.broadcast_to(elements[:1], shape))
        return elements

    def parts(self, index: int, shape: Shape) -> list[Raw]:
        return [self.part(rank, index, shape) for rank in range(self.team.size)]

    def given(self, elements: Raw) -> Any:
        """Make an input: it must not change."""
        return self._place(elements.shape, elements, None, written=False)

    def result(self, expected: Raw) -> Any:
        """Make an output, filled with noise."""
        return self._place(expected.shape, None, expected, written=True)

    def in_place(self, elements: Raw, expected: Raw | None) -> Any:
        """Make an array that is an input and (unless `expected` is None) an output."""
        return self._place(elements.shape, elements, expected, written=True)

    def _place(self, shape: Shape, elements: Raw | None, expected: Raw | None, written: bool) -> Any:
        number, self._made = self._made, self._made + 1
        layout = self.call.layouts[(number + self.team.me) % len(self.call.layouts)]
        kind = self.call.kinds[(number + self.team.me) % len(self.call.kinds)]
        key = (self.call.seed, self.team.me + 17, number)
        placed: Placed = make(kind, layout, self.dtype, shape, elements, *key, written=written)
        rounded = self.call.op in REDUCING
        self.pending.checks.append(lambda: placed.check(expected, f"array {number} ({kind}, {layout})", rounded))
        return placed.array

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> None:
        """Make a call that has `group` and `async_op`."""
        work = function(*args, **options, group=self.team.group, async_op=self.call.async_op)
        if self.call.async_op:
            self.pending.works.append(work)
        elif work is not None:
            self.pending.complaints.append(f"expected a synchronous call to return None, got {work!r}")

    def rooted(self, word: str) -> dict[str, int]:
        """Spell the root as a global rank or as a rank in the group."""
        return {f"group_{word}": self.root} if self.call.variant & 1 else {word: self.team.ranks[self.root]}


@contextmanager
def team_of(dist: Any, name: str) -> Iterator[Team]:
    """Make one of `TEAMS` on every rank of the world; `me` is -1 on those that are no members.

    The subgroup leaves one rank out where it can; the communicator has all ranks, in reverse.
    """
    from mpi4py import MPI

    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    if name == "world":
        yield Team(dist, None, tuple(range(size)), rank)
    elif name == "subgroup":
        ranks = [r for r in range(size) if r != 1] if size > 2 else [size - 1]
        group = dist.new_group(ranks)
        yield Team(dist, group, tuple(ranks), ranks.index(rank) if rank in ranks else -1)
        if rank in ranks:
            dist.destroy_process_group(group)
    else:
        comm = MPI.COMM_WORLD.Split(0, -rank)
        group = dist.new_group(comm=comm)
        yield Team(dist, group, tuple(reversed(range(size))), size - 1 - rank)
        dist.destroy_process_group(group)
        comm.Free()


def chosen(calls: list[Call], most: int, *salt: str) -> list[Call]:
    """Take about `most` of the calls, evenly, others for every salt.

    Four ranks on two cores can need milliseconds for a call, so the whole product is for one and two ranks in the
    world. The step is a prime, so that it hardly divides the number of cases and leaves none of them out.
    MPICOLL_TEST_WHOLE=1 (`make test-whole`) takes them all.
    """
    if len(calls) <= most or os.environ.get("MPICOLL_TEST_WHOLE") == "1":
        return calls
    step = next(k for k in count(-(-len(calls) // most)) if all(k % divisor for divisor in range(2, k)))
    return calls[zlib.crc32("".join(salt).encode()) % step :: step]


@contextmanager
def no_grad(kind: str) -> Iterator[None]:
    """Switch gradients off where there are tensors that require them."""
    if kind != "torch" or not HAS_TORCH:
        yield
        return
    import torch

    with torch.no_grad():
        yield


def report(complaints: list[str]) -> None:
    """Fail with the first few complaints."""
    shown = "\n".join(complaints[:4])
    assert not complaints, f"{len(complaints)} differences, among them\n{shown}"
