"""Every collective that moves data, with every dtype in every layout, kind of array and group: bit for bit.

Within one operation, group and kind of array the rest is a loop, for it would be 60,000 tests. In the world of one or
two ranks that loop goes through the whole product of dtypes and cases; elsewhere through a part of it.
"""

from itertools import product
from types import ModuleType

import pytest

from tests.ranks.arrays import CASES, KINDS, LAYOUTS, applies
from tests.ranks.calls import TEAMS, Call, chosen, no_grad, report, team_of
from tests.ranks.operations import MOVES, run, start
from tests.reference.dtypes import DTYPES, DType, dtypes_of

ROWS = ((2, 3), (0, 3), (1, 3), (3, 3))  # shapes that differ in the first dimension alone, for the split forms
SHAPES = ((3,), (0,), (2, 2), (), (1, 4))
UNEVEN = {"all_gather": SHAPES, "gather": SHAPES, "scatter": SHAPES, "all_to_all": SHAPES, "all_to_all_single": ROWS}
UNEVEN |= {"all_gather_into_tensor_coalesced": SHAPES}


def even_calls(op: str, where: str, kind: str, size: int, async_op: bool) -> list[Call]:
    """Go through dtypes x cases; every other array of a call has a layout that changes from call to call."""
    calls = []
    for (at, dtype), (number, (layout, shape)) in product(enumerate(dtypes_of(kind)), enumerate(CASES)):
        if applies(layout, kind, dtype, shape):
            seed = at * len(CASES) + number
            layouts = (layout, _other(kind, dtype, seed))
            calls.append(
                Call(op, dtype.name, (shape,), layouts, (kind,), seed, async_op=async_op, seed=seed, variant=seed)
            )
    whole = where == "world" and not async_op
    most = (1000 if whole else 100) if size <= 2 else (60 if whole else 25)
    return chosen(calls, most, op, where, kind, str(async_op))


def _other(kind: str, dtype: DType, seed: int) -> str:
    layouts = [layout for layout in LAYOUTS if layout != "expanded" and applies(layout, kind, dtype)]
    return layouts[seed % len(layouts)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", TEAMS)
@pytest.mark.parametrize("op", MOVES)
def test_sync(dist: ModuleType, size: int, op: str, where: str, kind: str) -> None:
    complaints = []
    with team_of(dist, where) as team, no_grad(kind):
        for call in even_calls(op, where, kind, size, async_op=False) if team.me >= 0 else ():
            complaints += run(team, call)
    report(complaints)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", TEAMS)
@pytest.mark.parametrize("op", MOVES)
def test_async(dist: ModuleType, size: int, op: str, where: str, kind: str) -> None:
    """Twenty calls under way at a time, waited for in reverse."""
    complaints = []
    with team_of(dist, where) as team, no_grad(kind):
        calls = even_calls(op, where, kind, size, async_op=True) if team.me >= 0 else []
        for first in range(0, len(calls), 20):
            under_way = [start(team, call) for call in calls[first : first + 20]]
            for pending in reversed(under_way):
                complaints += pending.finish()
    report(complaints)


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", TEAMS)
@pytest.mark.parametrize("op", UNEVEN)
def test_uneven(dist: ModuleType, size: int, op: str, where: str, kind: str, async_op: bool) -> None:
    """Every rank's part has a size of its own, zero among them."""
    complaints = []
    with team_of(dist, where) as team, no_grad(kind):
        dtypes = dtypes_of(kind)
        calls = [
            Call(
                op, dtype.name, UNEVEN[op], (layout, "contiguous"), (kind,), at, async_op=async_op, seed=at, variant=at
            )
            for at, (dtype, layout) in enumerate(product(dtypes, LAYOUTS))
            if layout != "expanded" and applies(layout, kind, dtype)
        ]
        for call in chosen(calls, 150 if size <= 2 else 30, op, where, kind) if team.me >= 0 else ():
            complaints += run(team, call)
    report(complaints)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("dlpack")])
@pytest.mark.parametrize("op", MOVES)
def test_large(dist: ModuleType, size: int, op: str, kind: str) -> None:
    """Arrays beyond what goes through one packed buffer, even and uneven."""
    complaints = []
    with team_of(dist, "world") as team, no_grad(kind):
        for at, name in enumerate(("uint8", "float64", "complex64", "V7", "bfloat16")):
            if DTYPES[name] not in dtypes_of(kind):
                continue
            for shapes in (((70_001,),), ((300, 100), (1, 100), (0, 100))):
                for layouts in (("contiguous",), ("stepped", "contiguous", "transposed")):
                    async_op = (at + size) % 2 == 0
                    call = Call(op, name, shapes, layouts, (kind,), at, async_op=async_op, seed=at, variant=at)
                    complaints += run(team, call)
    report(complaints)


@pytest.mark.parametrize("where", TEAMS)
@pytest.mark.parametrize("op", MOVES)
def test_kinds_and_layouts_mix(dist: ModuleType, op: str, where: str) -> None:
    """A torch tensor on one rank is a numpy array in foreign byte order on the next; lists hold several kinds."""
    complaints = []
    with team_of(dist, where) as team, no_grad("torch"):
        names = ("bool", "int16", "uint32", "float16", "float64", "complex64", "complex128")
        for at, (name, shape) in enumerate(product(names, [(2, 3), (), (0,), (2, 1, 3, 1)])):
            for layouts in (("swapped", "stepped", "transposed"), ("negative", "conj", "field", "channels_last")):
                call = Call(op, name, (shape,), layouts, KINDS, at, seed=at, variant=at)
                complaints += run(team, call) if team.me >= 0 else []
    report(complaints)
