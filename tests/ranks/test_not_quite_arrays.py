"""Arrays that look plain and are not: right, or refused with the reason; never taken for what they are not."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest


def test_fields_out_of_order_move(dist: ModuleType, rank: int) -> None:
    dtype = np.dtype({"names": ["a", "b"], "formats": ["i4", "f4"], "offsets": [4, 0]})
    x = np.zeros(3, dtype)
    if rank == 0:
        x["a"], x["b"] = [1, 2, 3], [0.5, 1.5, 2.5]
    dist.broadcast(x, src=0)
    assert x["a"].tolist() == [1, 2, 3]
    assert x["b"].tolist() == [0.5, 1.5, 2.5]


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "dtype",
    [
        {"names": ["a", "b"], "formats": ["i4", "f4"], "offsets": [4, 0]},
        [(f"field{i}", "i4") for i in range(300)],
        [("when", "M8[ns]"), ("where", "f4", (3,))],
    ],
    ids=["out of order", "many", "nested"],
)
def test_a_structure_arrives_as_it_is(dist: ModuleType, rank: int, dtype: Any) -> None:
    if rank == 0:
        dist.send(np.zeros(2, dtype), dst=1)
    else:
        assert dist.recv_tensor(src=0).dtype == np.dtype(dtype)


@pytest.mark.needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tensor_made_of_tensors_has_no_memory(dist: ModuleType, dtype: str) -> None:
    import torch
    from torch.testing._internal.two_tensor import TwoTensor

    x = torch.ones(3, dtype=getattr(torch, dtype))
    with pytest.raises(dist.DTypeError, match="TwoTensor"):
        dist.all_reduce(TwoTensor(x, x.clone()))  # type: ignore[no-untyped-call]


# Structured dtypes

FIELDS: Any = [("a", "i4"), ("b", "f4")]
PADDED: Any = {"names": ["a", "b"], "formats": ["i1", "i4"], "offsets": [0, 4], "itemsize": 8}
# Pairs that numpy holds for equal, though it writes them differently.
RECORD: Any = (np.record, FIELDS)
EQUAL: dict[str, tuple[Any, Any]] = {
    "record": (np.dtype(RECORD), np.dtype(FIELDS)),
    "record inside": (np.dtype([("r", RECORD, (2,))]), np.dtype([("r", FIELDS, (2,))])),
    "aligned": (np.dtype([("a", "i1"), ("b", "i4")], align=True), np.dtype(PADDED)),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("there_and_back", [False, True], ids=["there", "back"])
@pytest.mark.parametrize("pair", EQUAL)
def test_equal_structures_are_the_same_dtype(dist: ModuleType, rank: int, pair: str, there_and_back: bool) -> None:
    one, other = (np.ones(3, dtype) for dtype in EQUAL[pair][:: -1 if there_and_back else 1])
    if rank == 0:
        dist.send(one, dst=1)
        dist.send(one, dst=1)
    else:
        other.fill(0)
        dist.recv(other, src=0)
        assert (other == one).all()
        again = dist.recv_tensor(src=0)
        assert again.dtype == one.dtype.newbyteorder("=")
        assert (again == one).all()


@pytest.mark.parametrize(
    "field",
    [("a", ">i4"), ("a", ">i4", (2,)), ("a", ">U3"), ("a", ">M8[s]", (1, 2)), ("a", [("b", ">i8")], (2,))],
    ids=str,
)
def test_fields_in_foreign_byte_order(dist: ModuleType, rank: int, size: int, field: Any) -> None:
    """Numpy calls those that are arrays native."""
    foreign: Any = np.dtype([field, ("z", "i1")])
    native = foreign.newbyteorder("=")
    wanted = np.zeros(3, native)
    wanted["z"], wanted["a"] = [1, 2, 3], 7
    x = np.zeros(3, foreign if rank % 2 else native)  # the ranks differ
    if rank == 0:
        x[...] = wanted
    dist.broadcast(x, src=0)
    outputs = [np.zeros(3, native if r % 2 else foreign) for r in range(size)]
    dist.all_gather(outputs, x)
    for got in (x, *outputs):
        assert (got == wanted).all()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("dtype", ["V0", []], ids=["bytes", "fields"])
def test_elements_of_no_bytes(dist: ModuleType, rank: int, size: int, dtype: Any) -> None:
    x = np.zeros(3, dtype)
    dist.broadcast(x, src=0)
    dist.all_gather([np.zeros(3, dtype) for _ in range(size)], x)
    if rank == 0:
        dist.send(x, dst=1)
    else:
        dist.recv(x, src=0)


def test_fields_in_one_place_are_refused_in_foreign_byte_order(dist: ModuleType) -> None:
    overlapping: Any = np.dtype({"names": ["a", "b"], "formats": [">i4", ">i2"], "offsets": [0, 0]})
    for dtype in (overlapping, np.dtype([("inside", overlapping, (2,))])):
        with pytest.raises(dist.DTypeError, match="foreign byte order"):
            dist.broadcast(np.zeros(2, dtype), src=0)


@pytest.mark.ranks(2)
def test_a_dtype_that_takes_too_long_to_describe_is_refused_where_it_is_sent(dist: ModuleType, rank: int) -> None:
    x = np.zeros(1, [(f"field{i}", "i4") for i in range(5000)])
    with pytest.raises(dist.DTypeError, match=r"description of dtype and shape: expected at most \d+ bytes, got"):
        dist.send(x, dst=1 - rank)


@pytest.mark.ranks(2)
def test_a_dtype_that_cannot_be_made_again_is_named_where_it_arrives(dist: ModuleType, rank: int) -> None:
    small = pytest.importorskip("ml_dtypes").bfloat16
    x = np.full(2, 1, [("a", small)])
    if rank == 0:
        dist.send(x, dst=1)
        dist.send(x, dst=1)
    else:
        with pytest.raises(
            dist.MessageError, match=r"expected a dtype that can be made here, got \[\('a', bfloat16\)\]"
        ):
            dist.recv_tensor(src=0)
        y = np.zeros_like(x)
        dist.recv(y, src=0)
        assert y.tobytes() == x.tobytes()
