"""Random programs of operations, compared with the model on every rank.

Rank 0 draws all programs with hypothesis from one seed and sends them to the others, so that no rank can draw another.
After each program the ranks agree, over MPI, on whether it went wrong anywhere; then all of them look for the shortest
part of it that still goes wrong, and all of them fail with that.

    mpirun -n 4 python -m pytest --with-mpi tests/ranks -k fuzz --programs 2000 --seed 7
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.ranks.arrays import KINDS, LAYOUTS, applies
from tests.ranks.calls import Call, Pending, Team, no_grad
from tests.ranks.operations import MESSAGES, MOVES, REDUCTIONS, start
from tests.reference.dtypes import DTYPES, dtypes_of, reducible
from tests.reference.reduction import OPS

WAYS = ("new_group", "local", "split_group", "comm")
SHRINKING = 60.0  # seconds to look for a shorter program in


@dataclass(frozen=True)
class Subgroup:
    """A group to make: its members' global ranks, in the order given, and the way to make it."""

    way: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One call in one team (0 is the world), after which some of the calls under way are waited for."""

    team: int
    call: Call
    wait_for: tuple[int, ...] = ()


@dataclass(frozen=True)
class Program:
    """What all ranks do."""

    groups: tuple[Subgroup, ...]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        steps = "\n".join(f"  {step}" for step in self.steps)
        return f"groups {self.groups}\n{steps}"


SIZES = st.integers(0, 4)
SHAPE: st.SearchStrategy[tuple[int, ...]] = st.lists(SIZES, max_size=4).map(tuple)
# What small shapes do not reach: messages that MPI sends in another way, more than a buffer's worth.
LONG: st.SearchStrategy[tuple[int, ...]] = st.sampled_from([(9_001,), (120, 100), (2, 0, 3), ()])


@st.composite
def calls(draw: st.DrawFn, number: int) -> Call:
    """Draw one call. `number` makes the tags of messages differ within a program."""
    op = draw(st.sampled_from(sorted(MOVES | REDUCTIONS | MESSAGES)))
    kinds = tuple(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=2)))
    dtypes = reducible if op in REDUCTIONS else dtypes_of
    names = sorted(set.intersection(*({dtype.name for dtype in dtypes(kind)} for kind in kinds)))
    dtype = DTYPES[draw(st.sampled_from(names))]
    if op == "all_to_all_single":
        rest = draw(st.lists(SIZES, max_size=2))
        shapes = [(rows, *rest) for rows in draw(st.lists(SIZES, min_size=1, max_size=3))]
    else:
        shapes = draw(st.lists(st.one_of(SHAPE, SHAPE, SHAPE, LONG), min_size=1, max_size=3))
    layouts = st.lists(st.sampled_from([name for name in LAYOUTS if name != "expanded"]), min_size=1, max_size=3)
    return Call(
        op,
        dtype.name,
        tuple(shapes),
        tuple(draw(layouts)),
        kinds,
        root=draw(st.integers(0, 3)),
        reduce=draw(st.sampled_from(OPS[dtype.family])) if op in REDUCTIONS else "SUM",
        async_op=draw(st.booleans()),
        seed=draw(st.integers(0, 100)) * 100 + number,
        variant=draw(st.integers(0, 7)),
    )


@st.composite
def programs_for(draw: st.DrawFn, size: int) -> Program:
    """Draw a program for so many ranks."""
    members = st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True).map(tuple)
    groups = draw(st.lists(st.builds(Subgroup, st.sampled_from(WAYS), members), max_size=3))
    length = draw(st.integers(3, 10))
    steps = []
    for number in range(length):
        waits = draw(st.lists(st.integers(0, number), max_size=2, unique=True)) if draw(st.booleans()) else []
        steps.append(Step(draw(st.integers(0, len(groups))), draw(calls(number)), tuple(waits)))
    return Program(tuple(groups), tuple(steps))


def draw_programs(count: int, seed: int, size: int) -> list[Program]:
    """Draw them all before any of them runs: what a program does cannot change what the next one is."""
    drawn: list[Program] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(programs_for(size))
    def collect(program: Program) -> None:
        drawn.append(program)

    collect()
    return drawn


@contextmanager
def teams_of(dist: ModuleType, comm: Any, groups: tuple[Subgroup, ...]) -> Iterator[list[Team]]:
    """Make the groups of a program, and destroy them at its end."""
    from mpi4py import MPI

    teams, communicators = [Team(dist, None, tuple(range(comm.size)), comm.rank)], []
    for group in groups:
        member = comm.rank in group.ranks
        ranks = group.ranks if group.way == "comm" else tuple(sorted(group.ranks))
        made = None
        if group.way == "comm":
            key = group.ranks.index(comm.rank) if member else 0
            part = comm.Split(0 if member else MPI.UNDEFINED, key)
            if member:
                communicators.append(part)
                made = dist.new_group(comm=part)
        elif group.way == "local":
            made = dist.new_group(list(group.ranks), use_local_synchronization=True) if member else None
        elif group.way == "split_group":
            made = dist.split_group(split_ranks=[list(ranks)])
        else:
            made = dist.new_group(list(group.ranks))
        teams.append(Team(dist, made, ranks, ranks.index(comm.rank) if member else -1))
    yield teams
    for team in reversed(teams[1:]):
        if team.me >= 0:
            dist.destroy_process_group(team.group)
    for part in communicators:
        part.Free()


def differences(dist: ModuleType, comm: Any, program: Program) -> list[str]:
    """Run a program and return what went wrong on any rank: the same on all ranks."""
    mine: list[str] = []
    with teams_of(dist, comm, program.groups) as teams:
        under_way: dict[int, Pending] = {}
        for number, step in enumerate(program.steps):
            team = teams[step.team]
            if team.me >= 0:
                pending = start(team, step.call)
                if step.call.async_op:
                    under_way[number] = pending
                else:
                    mine += pending.finish()
            for earlier in step.wait_for:
                if earlier in under_way:
                    mine += under_way.pop(earlier).finish()
        for pending in under_way.values():
            mine += pending.finish()
        found = [text for texts in comm.allgather(mine) for text in texts]
    return found


def shortened(dist: ModuleType, comm: Any, program: Program) -> Program:
    """Leave out steps while it still goes wrong. All ranks decide alike, for they know the same."""
    until = time.monotonic() + SHRINKING
    at = 0
    while at < len(program.steps) and comm.bcast(time.monotonic() < until):
        shorter = replace(program, steps=program.steps[:at] + program.steps[at + 1 :])
        if shorter.steps and differences(dist, comm, shorter):
            program = shorter
        else:
            at += 1
    return program


@pytest.mark.time_limit(1800)
def test_fuzz(dist: ModuleType, rank: int, size: int, programs: int, seed: int) -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    mine = draw_programs(programs, seed, size) if rank == 0 else []
    ready = comm.Ibarrier()
    while not ready.Test():  # MPI would spin, and take the core from rank 0
        time.sleep(0.01)
    drawn = comm.bcast(mine)
    assert len(drawn) == programs
    with warnings.catch_warnings(), no_grad("torch"):
        for number, program in enumerate(drawn):
            if found := differences(dist, comm, program):
                short = shortened(dist, comm, program)
                texts = "\n".join((differences(dist, comm, short) or found)[:6])
                pytest.fail(
                    f"program {number} of --programs {programs} --seed {seed} on {size} ranks differs; shortened:\n"
                    f"{short}\n{texts}",
                    pytrace=False,
                )


@pytest.mark.ranks(1)
def test_fuzz_draws_variety() -> None:
    """The programs reach every operation, layout, kind of array and way to make a group, and nearly every dtype."""
    drawn = draw_programs(200, 1, 4)
    drawn_calls = [step.call for program in drawn for step in program.steps]
    assert {call.op for call in drawn_calls} == set(MOVES | REDUCTIONS | MESSAGES)
    every_dtype = {dtype.name for kind in KINDS for dtype in dtypes_of(kind)}
    assert len({call.dtype for call in drawn_calls}) > 0.7 * len(every_dtype)
    assert {kind for call in drawn_calls for kind in call.kinds} == set(KINDS)
    assert {group.way for program in drawn for group in program.groups} == set(WAYS)
    assert {call.reduce for call in drawn_calls} == {op for ops in OPS.values() for op in ops}
    used = {
        layout
        for call in drawn_calls
        for layout in call.layouts
        for kind in call.kinds
        for shape in call.shapes
        if applies(layout, kind, DTYPES[call.dtype], shape)
    }
    assert used == set(LAYOUTS) - {"expanded"} - (set() if "torch" in KINDS else {"requires_grad", "conj", "neg"})
    assert drawn[:20] != draw_programs(20, 2, 4)
    assert draw_programs(20, 1, 4) == draw_programs(20, 1, 4)
