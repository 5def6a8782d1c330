"""The model is right: against values worked out by hand, and against torch and ml_dtypes for the rounding."""

import numpy as np
import pytest

from tests.reference import collectives
from tests.reference.dtypes import ALIGNED, DTYPES, DType, Raw, dtypes_of, value_bytes
from tests.reference.inputs import arbitrary, numbers
from tests.reference.reduction import (
    OPS,
    Array,
    bfloat16_to_float32,
    canonical,
    float32_to_bfloat16,
    narrow,
    reduced,
    widen,
)


def raw(name: str, values: object) -> Raw:
    """Make the model's form of these numbers."""
    return narrow(np.asarray(values), DTYPES[name])


def values(elements: Raw, name: str) -> list[object]:
    found: list[object] = widen(elements, DTYPES[name]).tolist()
    return found


@pytest.mark.parametrize(
    ("name", "op", "parts", "expected"),
    [
        ("float16", "SUM", [[0.5, 1.5, -2.0], [1.0, 3.0, -4.0]], [1.5, 4.5, -6.0]),
        ("float16", "SUM", [[2048.0], [1.0], [1.0]], [2050.0]),  # 2048 + 1 is 2048 in float16
        ("float16", "AVG", [[60000.0], [60000.0]], [60000.0]),  # their sum is inf in float16
        ("bfloat16", "SUM", [[256.0], [1.0], [1.0]], [258.0]),
        ("bfloat16", "SUM", [[1.0], [2.0]], [3.0]),
        ("float32", "AVG", [[1.0], [1.0], [2.0]], [float(np.float32(4) / np.float32(3))]),
        ("float64", "PREMUL_SUM", [[1.0], [3.0]], [-2.0]),
        ("float32", "MAX", [[1.0, np.inf], [2.0, 3.0]], [2.0, np.inf]),
        ("int8", "SUM", [[100], [100]], [-56]),
        ("uint8", "PRODUCT", [[16], [17]], [16]),
        ("int16", "MIN", [[-5], [3]], [-5]),
        ("int32", "BAND", [[1], [2]], [0]),
        ("int32", "BXOR", [[1], [3]], [2]),
        ("complex64", "SUM", [[1 + 2j], [2 + 4j]], [3 + 6j]),
        ("complex64", "AVG", [[1 + 2j], [3 + 6j]], [2 + 4j]),
        ("complex128", "PRODUCT", [[1 + 2j], [2 + 1j]], [5j]),
        ("complex32", "SUM", [[2048 + 1j], [1 + 1j], [1 + 1j]], [2050 + 3j]),
    ],
)
def test_reduced(name: str, op: str, parts: list[object], expected: list[object]) -> None:
    assert values(reduced([raw(name, part) for part in parts], DTYPES[name], op), name) == expected


@pytest.mark.parametrize("op", OPS["bool"])
def test_reduced_bool(op: str) -> None:
    parts = [raw("bool", [True, False, True]), raw("bool", [True, False, False])]
    ands, ors = [True, False, False], [True, False, True]
    expected = {"SUM": ors, "MAX": ors, "BOR": ors, "PRODUCT": ands, "MIN": ands, "BAND": ands}
    total = reduced(parts, DTYPES["bool"], op)
    assert values(total, "bool") == expected.get(op, [False, False, True])
    assert set(total.view(np.uint8).tolist()) <= {0, 1}


@pytest.mark.parametrize("op", ["MIN", "MAX"])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "longdouble"])
def test_min_and_max_propagate_nan(name: str, op: str) -> None:
    parts = [raw(name, np.array([np.nan, 1.0], np.float32)), raw(name, np.array([1.0, np.nan], np.float32))]
    assert np.isnan(widen(reduced(parts, DTYPES[name], op), DTYPES[name])).all()


def test_every_bfloat16_survives_widening_and_rounding() -> None:
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    wide = bfloat16_to_float32(every)
    back = float32_to_bfloat16(wide)
    numbers_ = ~np.isnan(wide)
    assert np.array_equal(back[numbers_], every[numbers_])
    assert np.isnan(bfloat16_to_float32(back[~numbers_])).all()


def _floats() -> Array:
    bits = np.random.default_rng(5).integers(0, 1 << 32, 100_000, np.uint32)
    edges = np.array([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x00008000, 0x7F800000, 0x80000000], np.uint32)
    return np.concatenate([bits, edges]).view(np.float32)


@pytest.mark.needs_torch
def test_bfloat16_rounds_as_torch_does() -> None:
    import torch

    floats = _floats()
    theirs = torch.from_numpy(floats).to(torch.bfloat16).view(torch.uint16).numpy()
    known = ~np.isnan(floats)
    assert np.array_equal(float32_to_bfloat16(floats)[known], theirs[known])


def test_bfloat16_rounds_as_ml_dtypes_does() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    floats = _floats()
    with np.errstate(invalid="ignore"):
        theirs = floats.astype(ml_dtypes.bfloat16).view(np.uint16)
    known = ~np.isnan(floats)
    assert np.array_equal(float32_to_bfloat16(floats)[known], theirs[known])


@pytest.mark.parametrize("name", [d.name for d in DTYPES.values() if d.family in ("float", "complex")])
def test_reductions_of_the_inputs_do_not_depend_on_the_order(name: str) -> None:
    """Else the other tests could not compare bit for bit."""
    dtype = DTYPES[name]
    for op in OPS[dtype.family]:
        for ranks in (2, 3, 4):
            parts = [numbers(dtype, op, ranks, (50,), 3, rank, 0) for rank in range(ranks)]
            forward = canonical(reduced(parts, dtype, op), dtype)
            backward = canonical(reduced(parts[::-1], dtype, op), dtype)
            assert value_bytes(forward, dtype) == value_bytes(backward, dtype), op


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_inputs_in_halves_need_float32(name: str) -> None:
    """A sum that rounds at every step must differ somewhere, or the tests could not tell it from the right one."""
    dtype = DTYPES[name]
    parts = [numbers(dtype, "SUM", 4, (200,), 3, rank, 0) for rank in range(4)]
    stepwise = parts[0]
    for part in parts[1:]:
        stepwise = reduced([stepwise, part], dtype, "SUM")
    assert stepwise.tobytes() != reduced(parts, dtype, "SUM").tobytes()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_arbitrary_elements(dtype: DType) -> None:
    elements = arbitrary(dtype, (2, 3), 1, 2, 3)
    assert elements.shape == (2, 3)
    assert elements.itemsize == dtype.size
    assert value_bytes(elements, dtype) == value_bytes(arbitrary(dtype, (2, 3), 1, 2, 3), dtype)
    assert value_bytes(elements, dtype) != value_bytes(arbitrary(dtype, (2, 3), 2, 3, 3), dtype)


def test_padding_carries_no_value() -> None:
    elements = np.array([(1, 2.0, (3, 4))], ALIGNED)
    assert len(value_bytes(elements.view(DTYPES["aligned"].raw), DTYPES["aligned"])) == 1 + 8 + 4 < ALIGNED.itemsize


def test_tame_elements_are_finite() -> None:
    for name in ("float16", "float32", "float64", "complex64", "complex128"):
        elements = arbitrary(DTYPES[name], (1000,), 4, tame=True)
        assert np.isfinite(widen(elements, DTYPES[name])).all(), name


def test_every_kind_has_dtypes() -> None:
    assert {d.name for d in dtypes_of("numpy")} >= {
        "bool",
        "uint16",
        "float16",
        "complex128",
        "longdouble",
        "S5",
        "packed",
    }
    assert {d.name for d in dtypes_of("torch")} >= {"bfloat16", "complex32", "float8_e4m3fn", "float8_e5m2", "bits16"}
    assert {d.name for d in dtypes_of("dlpack-torch")} >= {"bfloat16", "uint64"}
    assert {d.name for d in dtypes_of("dlpack-numpy")} >= {"bool", "uint64"}


PARTS = [raw("int32", [0, 1]), raw("int32", [10, 11]), raw("int32", [20, 21])]
LISTS = [[raw("int32", [100 * rank + entry]) for entry in range(3)] for rank in range(3)]


def _ints(parts: object) -> object:
    if isinstance(parts, list):
        return [_ints(part) for part in parts]
    return None if parts is None else np.asarray(parts).view(np.int32).tolist()


def test_movement() -> None:
    assert _ints(collectives.broadcast(PARTS, 2)) == [[20, 21]] * 3
    assert _ints(collectives.all_gather(PARTS)) == [[[0, 1], [10, 11], [20, 21]]] * 3
    assert _ints(collectives.gather(PARTS, 1)) == [None, [[0, 1], [10, 11], [20, 21]], None]
    assert _ints(collectives.scatter(PARTS)) == [[0, 1], [10, 11], [20, 21]]
    assert _ints(collectives.all_to_all(LISTS)) == [[[r], [100 + r], [200 + r]] for r in range(3)]
    assert _ints(collectives.joined(PARTS, (2, 3))) == [[0, 1, 10], [11, 20, 21]]


def test_reductions() -> None:
    dtype = DTYPES["int32"]
    assert _ints(collectives.all_reduce(PARTS, dtype, "SUM")) == [[30, 33]] * 3
    assert _ints(collectives.reduce(PARTS, 1, dtype, "MAX")) == [None, [20, 21], None]
    assert _ints(collectives.reduce_scatter(LISTS, dtype, "SUM")) == [[300], [303], [306]]
