"""Every collective that reduces, with every operation on every dtype, in every layout, kind of array and group.

The inputs are such that no order of the ranks changes a bit, so results are compared bit for bit. In the world of one
or two ranks each collective goes through the whole product of dtypes, operations and cases; elsewhere through a part.
"""

from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.ranks.arrays import CASES, KINDS, LAYOUTS, applies, make
from tests.ranks.calls import TEAMS, Call, Team, chosen, no_grad, report, team_of
from tests.ranks.operations import REDUCTIONS, run, start
from tests.reference.dtypes import DTYPES, DType, dtypes_of, reducible
from tests.reference.inputs import noise
from tests.reference.reduction import ALL_OPS, OPS

UNEVEN = {"reduce_scatter": ((3,), (0,), (2, 2), (), (1, 4)), "all_reduce_coalesced": ((3,), (), (0,), (2, 2))}
UNEVEN |= {"reduce_scatter_tensor_coalesced": ((3,), (), (0,), (2, 2))}


def pairs(kind: str) -> list[tuple[DType, str]]:
    """Every dtype that reduces, with each operation that it has."""
    return [(dtype, op) for dtype in reducible(kind) for op in OPS[dtype.family]]


def calls_for(collective: str, where: str, kind: str, size: int, async_op: bool) -> list[Call]:
    """Go through dtypes x operations x cases; every other array of a call has a layout that changes with it."""
    calls = []
    for (at, (dtype, op)), (number, (layout, shape)) in product(enumerate(pairs(kind)), enumerate(CASES)):
        if applies(layout, kind, dtype, shape, output=collective in ("all_reduce", "reduce", "all_reduce_coalesced")):
            seed = at * len(CASES) + number
            others = [name for name in LAYOUTS if name != "expanded" and applies(name, kind, dtype)]
            layouts = (layout, others[seed % len(others)])
            calls.append(Call(collective, dtype.name, (shape,), layouts, (kind,), seed, op, async_op, seed, seed))
    whole = where == "world" and not async_op
    most = (3000 if whole else 120) if size <= 2 else (60 if whole else 25)
    return chosen(calls, most, collective, where, kind, str(async_op))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", TEAMS)
@pytest.mark.parametrize("collective", REDUCTIONS)
def test_sync(dist: ModuleType, size: int, collective: str, where: str, kind: str) -> None:
    complaints = []
    with team_of(dist, where) as team, no_grad(kind):
        for call in calls_for(collective, where, kind, size, async_op=False) if team.me >= 0 else ():
            complaints += run(team, call)
    report(complaints)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", TEAMS)
@pytest.mark.parametrize("collective", REDUCTIONS)
def test_async(dist: ModuleType, size: int, collective: str, where: str, kind: str) -> None:
    """Twenty calls under way at a time, waited for in reverse."""
    complaints = []
    with team_of(dist, where) as team, no_grad(kind):
        calls = calls_for(collective, where, kind, size, async_op=True) if team.me >= 0 else []
        for first in range(0, len(calls), 20):
            under_way = [start(team, call) for call in calls[first : first + 20]]
            for pending in reversed(under_way):
                complaints += pending.finish()
    report(complaints)


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", TEAMS)
@pytest.mark.parametrize("collective", UNEVEN)
def test_uneven(dist: ModuleType, size: int, collective: str, where: str, kind: str, async_op: bool) -> None:
    """The results of the ranks (or the tensors of the list) differ in size, zero among them."""
    complaints = []
    with team_of(dist, where) as team, no_grad(kind):
        calls = [
            Call(
                collective,
                dtype.name,
                UNEVEN[collective],
                LAYOUTS[at % 5 : at % 5 + 2],
                (kind,),
                0,
                op,
                async_op,
                at,
                at,
            )
            for at, (dtype, op) in enumerate(pairs(kind))
        ]
        for call in chosen(calls, 100 if size <= 2 else 20, collective, where, kind) if team.me >= 0 else ():
            complaints += run(team, call)
    report(complaints)


@pytest.mark.parametrize("where", TEAMS)
@pytest.mark.parametrize("collective", REDUCTIONS)
def test_kinds_and_layouts_mix(dist: ModuleType, collective: str, where: str) -> None:
    """A torch tensor on one rank is a numpy array in foreign byte order on the next."""
    complaints = []
    names = ("bool", "int16", "uint32", "float16", "float64", "complex64", "complex128")
    layouts = ("swapped", "stepped", "negative", "conj", "field", "channels_last", "neg")
    with team_of(dist, where) as team, no_grad("torch"):
        for at, name in enumerate(names):
            for op in OPS[DTYPES[name].family]:
                call = Call(collective, name, ((2, 1, 3, 1),), layouts[at:] + layouts[:at], KINDS, at, op, seed=at)
                complaints += run(team, call) if team.me >= 0 else []
    report(complaints)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", TEAMS)
def test_every_rank_has_the_same_bits_of_random_floats(dist: ModuleType, where: str, kind: str) -> None:
    """Sums that depend on the order: each rank gets the same one, and it is near the exact one."""
    from mpi4py import MPI

    complaints: list[str] = []
    with team_of(dist, where) as team:
        found = []
        for dtype in reducible(kind) if team.me >= 0 else ():
            if dtype.family not in ("float", "complex") or "long" in dtype.name:
                continue
            for count in (1, 1000, 70_001):
                found.append(_bits(team, kind, dtype, count, complaints))
        everyone = MPI.COMM_WORLD.allgather(found)
        members = [theirs for theirs in everyone if theirs]
        if any(theirs != members[0] for theirs in members):
            complaints.append(f"ranks disagree: {members}")
    report(complaints)


def _bits(team: Team, kind: str, dtype: DType, count: int, complaints: list[str]) -> int:
    """Sum random numbers; return a checksum of the bits of the result."""
    import zlib

    from tests.reference.reduction import narrow, widen

    rng = [np.random.default_rng([count, rank]) for rank in range(team.size)]
    wide = np.float32 if dtype.family == "float" else np.complex64
    parts = [narrow(r.standard_normal(count).astype(wide), dtype) for r in rng]
    exact = sum(widen(part, dtype).astype(np.complex128) for part in parts)
    placed = make(kind, "contiguous", dtype, (count,), parts[team.me])
    team.dist.all_reduce(placed.array, group=team.group)
    got = widen(placed.read(), dtype).astype(np.complex128)
    # half a unit in the last place for each of the additions, relative to numbers up to 16
    digits = {"float16": 11, "bfloat16": 8, "ml_dtypes.bfloat16": 8, "complex32": 11, "float64": 53, "complex128": 53}
    off = float(np.max(np.abs(got - exact)))
    if off > 16 * team.size * 2.0 ** -digits.get(dtype.name, 24):
        complaints.append(f"{dtype}, {count} elements: off by {off}")
    return zlib.crc32(placed.read().tobytes())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("dlpack")])
@pytest.mark.parametrize("collective", REDUCTIONS)
def test_large(dist: ModuleType, size: int, collective: str, kind: str) -> None:
    """Arrays of several hundred thousand elements, which go piece by piece where they are converted on the way."""
    complaints = []
    cases = [
        ("float16", "SUM"),
        ("bfloat16", "AVG"),
        ("complex32", "PRODUCT"),
        ("bool", "BXOR"),
        ("float32", "MAX"),
        ("int8", "SUM"),
    ]
    with team_of(dist, "world") as team, no_grad(kind):
        for at, (name, op) in enumerate(case for case in cases if DTYPES[case[0]] in reducible(kind)):
            # of a scattered result each rank has its part
            rows = -(-600 // size) if "scatter" in collective else 600
            for layout, shape in (("contiguous", (rows * 500 + 7,)), ("stepped", (rows, 500))):
                async_op = (at + size) % 2 == 0
                call = Call(collective, name, (shape,), (layout, "contiguous"), (kind,), at, op, async_op, at, at)
                complaints += run(team, call)
    report(complaints)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
@pytest.mark.parametrize("op", ["MIN", "MAX"])
def test_min_and_max_of_nans_and_signed_zeros(dist: ModuleType, rank: int, size: int, op: str, name: str) -> None:
    """Bit for bit on every rank: any NaN becomes the quiet one, -0.0 is less than 0.0."""
    bits = np.dtype(f"u{np.dtype(name).itemsize}")
    nan, minus = np.array([np.nan, -0.0], name).view(bits)
    last = rank == size - 1
    strange = nan + bits.type(rank + 1)  # a payload, and on the last rank a sign
    values = np.array([strange | minus if last else 1, minus if last else 0, 0 if last else minus], bits)
    dist.all_reduce(values.view(name), op=getattr(dist.ReduceOp, op))
    zero = minus if op == "MIN" else bits.type(0)
    expected = [nan, zero, zero] if size > 1 else [nan, minus, 0]
    assert values.tolist() == [int(value) for value in expected]


@pytest.mark.parametrize("op", OPS["bool"])
def test_any_byte_but_zero_is_true(dist: ModuleType, rank: int, size: int, op: str) -> None:
    """Memory seen as bool can hold other bytes than 0 and 1; results cannot."""
    octets = np.array([rank + 2, 0, 4 if rank else 0], np.uint8)
    dist.all_reduce(octets.view(np.bool_), op=getattr(dist.ReduceOp, op))
    anywhere, odd = [1, 0, int(size > 1)], [size % 2, 0, (size - 1) % 2]
    expected = {"SUM": anywhere, "MAX": anywhere, "BOR": anywhere, "BXOR": odd}
    assert octets.tolist() == expected.get(op, [1, 0, 0])  # true everywhere


REFUSED = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_reduce_coalesced")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collective", [*REFUSED, "reduce_scatter_tensor_coalesced"])
def test_what_has_no_sum_is_refused_before_anything_is_sent(
    dist: ModuleType, rank: int, size: int, collective: str, kind: str
) -> None:
    """Each call is made by one rank alone: had it sent anything, the sum that all make after it would be wrong."""
    complaints = []
    for at, dtype in enumerate(dtypes_of(kind)):
        for op in ALL_OPS:
            if op in OPS[dtype.family]:
                continue
            wanted = dist.DTypeError if dtype.family == "bytes" else dist.ArgumentError
            if rank == at % size:
                complaints += _refusal(dist, collective, kind, dtype, op, size, wanted)
        complaints += run(Team(dist, None, tuple(range(size)), rank), Call("all_reduce", "int32", seed=at))
    report(complaints)


def _refusal(
    dist: ModuleType, collective: str, kind: str, dtype: DType, op: str, size: int, wanted: type[Exception]
) -> list[str]:
    """Make a call that must raise and change nothing."""
    whole, part = (_noisy(kind, dtype, (count,)) for count in (2 * size, 2))
    entries = [_noisy(kind, dtype, (2,)) for _ in range(size)]
    reduce_op = dist.ReduceOp.PREMUL_SUM(0.5) if op == "PREMUL_SUM" else getattr(dist.ReduceOp, op)
    calls: dict[str, Any] = {
        "all_reduce": lambda: dist.all_reduce(part.array, op=reduce_op),
        "reduce": lambda: dist.reduce(part.array, dst=0, op=reduce_op),
        "reduce_scatter": lambda: dist.reduce_scatter(part.array, [entry.array for entry in entries], op=reduce_op),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part.array, whole.array, op=reduce_op),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([entry.array for entry in entries], op=reduce_op),
        "reduce_scatter_tensor_coalesced": lambda: dist.reduce_scatter_tensor_coalesced(
            [part.array], [whole.array], op=reduce_op
        ),
    }
    name = f"{collective} of {dtype.name} with {op}"
    try:
        calls[collective]()
    except wanted as error:
        if (op if wanted is dist.ArgumentError else dtype.torch or "") not in str(error):
            return [f"{name}: what cannot be reduced is not in the text {error}"]
    except dist.MpicollError as error:
        return [f"{name}: expected {wanted.__name__}, got {error!r}"]
    else:
        return [f"{name}: expected {wanted.__name__}, got a result"]
    return [text for placed in (whole, part, *entries) if (text := placed.check(None, name))]


def _noisy(kind: str, dtype: DType, shape: tuple[int, ...]) -> Any:
    data = noise(dtype.size * int(np.prod(shape)), 3)
    if dtype.family == "bool":
        data &= 1
    return make(kind, "offset", dtype, shape, data.view(dtype.raw).reshape(shape))
