"""Point to point: every dtype in every layout and kind of array, blocking and not, from a named source or any.

Of the product, the world of one or two ranks sees all; see `chosen`.
"""

from itertools import product
from types import ModuleType

import pytest

from tests.ranks.arrays import CASES, KINDS, LAYOUTS, applies
from tests.ranks.calls import TEAMS, Call, chosen, no_grad, report, team_of
from tests.ranks.operations import MESSAGES, run, start
from tests.reference.dtypes import dtypes_of

# A rank alone has nobody but itself to send to.
OPS = [pytest.param(op, marks=() if op in ("ring", "batch") else pytest.mark.ranks(min=2)) for op in MESSAGES]


def calls_for(op: str, where: str, kind: str, size: int, async_op: bool) -> list[Call]:
    """Go through dtypes x cases; the receiver's layout is another, which changes with the dtype."""
    calls = []
    for (at, dtype), (number, (layout, shape)) in product(enumerate(dtypes_of(kind)), enumerate(CASES)):
        if applies(layout, kind, dtype, shape):
            seed = at * len(CASES) + number
            others = [name for name in LAYOUTS if name != "expanded" and applies(name, kind, dtype)]
            shapes = (shape, (2,), ()) if op in ("ring", "batch") else (shape,)
            layouts = (layout, others[seed % len(others)])
            calls.append(
                Call(op, dtype.name, shapes, layouts, (kind,), seed, async_op=async_op, seed=seed, variant=seed)
            )
    whole = where == "world" and not async_op
    most = (1000 if whole else 100) if size <= 2 else (60 if whole else 25)
    return chosen(calls, most, op, where, kind, str(async_op))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", TEAMS)
@pytest.mark.parametrize("op", OPS)
def test_one_at_a_time(dist: ModuleType, size: int, op: str, where: str, kind: str) -> None:
    complaints = []
    with team_of(dist, where) as team, no_grad(kind):
        for call in calls_for(op, where, kind, size, async_op=False) if team.me >= 0 else ():
            complaints += run(team, call)
    report(complaints)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", TEAMS)
@pytest.mark.parametrize("op", OPS)
def test_many_under_way(dist: ModuleType, size: int, op: str, where: str, kind: str) -> None:
    """Twenty of them under way at a time, waited for in reverse."""
    complaints = []
    with team_of(dist, where) as team, no_grad(kind):
        calls = calls_for(op, where, kind, size, async_op=True) if team.me >= 0 else []
        for first in range(0, len(calls), 20):
            under_way = [start(team, call) for call in calls[first : first + 20]]
            for pending in reversed(under_way):
                complaints += pending.finish()
    report(complaints)


@pytest.mark.parametrize("where", TEAMS)
@pytest.mark.parametrize("op", OPS)
def test_kinds_and_layouts_mix(dist: ModuleType, op: str, where: str) -> None:
    """A torch tensor is sent and a numpy array in foreign byte order receives it, and so on."""
    complaints = []
    names = ("bool", "int16", "uint32", "float16", "float64", "complex64", "complex128")
    with team_of(dist, where) as team, no_grad("torch"):
        for at, (name, layouts) in enumerate(product(names, [("stepped", "swapped"), ("negative", "conj", "field")])):
            call = Call(op, name, ((2, 3),), layouts, KINDS, at, seed=at, variant=at)
            complaints += run(team, call) if team.me >= 0 else []
    report(complaints)
