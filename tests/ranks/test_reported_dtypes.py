"""Reported cases of dtypes and reduce operations. Each test names the case of shared/cases and the report."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

HALVES = [torch.float16, torch.bfloat16]
# Every dtype of torch's that a tensor can have without a quantizer.
DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
MOVABLE = [dtype for dtype in DTYPES if not str(dtype).startswith(("torch.q", "torch.bits"))]


def patterned(dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return 7 elements of random bytes; a bool holds only 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    top = 2 if dtype is torch.bool else 256
    return torch.randint(0, top, (7 * dtype.itemsize,), dtype=torch.uint8, generator=generator).view(dtype)


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype is other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.ranks(2)
def test_bfloat16_is_summed_as_numbers(dist: ModuleType, rank: int) -> None:
    # T1, pytorch#139178, pytorch#170073: IndexError, or inf by adding the bytes.
    x = torch.full((3,), rank + 1.0, dtype=torch.bfloat16)
    dist.all_reduce(x)
    assert x.dtype is torch.bfloat16
    assert x.tolist() == [3, 3, 3]


@pytest.mark.ranks(2)
def test_float16_matrix_is_summed_exactly(dist: ModuleType, rank: int) -> None:
    # T2, pytorch#139178.
    x = torch.tensor([[0.5, 1.5, -2], [3, 4, 5]], dtype=torch.float16) * (rank + 1)
    dist.all_reduce(x)
    assert x.tolist() == [[1.5, 4.5, -6], [9, 12, 15]]


@pytest.mark.ranks(4)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_reduce_of_the_halves_leaves_the_other_ranks_alone(dist: ModuleType, rank: int, dtype: torch.dtype) -> None:
    # T3, pytorch#170073.
    x = torch.ones(4, 4, dtype=dtype) * (rank + 1)
    dist.reduce(x, dst=0)
    assert torch.equal(x, torch.full((4, 4), 10.0 if rank == 0 else rank + 1.0, dtype=dtype))


@pytest.mark.ranks(2)
def test_float16_is_gathered(dist: ModuleType, rank: int) -> None:
    # T4, mpich#7342: the unpacking failed.
    got = [torch.zeros(4, dtype=torch.float16) for _ in range(2)]
    dist.all_gather(got, torch.full((4,), rank + 0.5, dtype=torch.float16))
    assert [tensor.tolist() for tensor in got] == [[0.5] * 4, [1.5] * 4]


@pytest.mark.ranks(2)
def test_average_of_large_float16_does_not_overflow(dist: ModuleType) -> None:
    # T6: a sum in float16, divided afterwards, is inf.
    x = torch.full((1,), 60000.0, dtype=torch.float16)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert x.tolist() == [60000.0]


@pytest.mark.ranks(4)
def test_average_divides_by_the_number_of_ranks(dist: ModuleType, rank: int) -> None:
    # T7, torchcomms#287: divided by the number of elements.
    x = torch.full((3,), rank + 1.0)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    group = dist.new_group([1, 3])
    y = torch.full((3,), rank + 1.0)
    if rank in (1, 3):
        dist.all_reduce(y, op=dist.ReduceOp.AVG, group=group)
    dist.destroy_process_group(group)
    assert x.tolist() == [2.5] * 3
    assert y.tolist() == [3.0 if rank in (1, 3) else rank + 1.0] * 3


@pytest.mark.ranks(2)
def test_average_of_a_0_dim_tensor(dist: ModuleType, rank: int) -> None:
    # T8, torch-xpu-ops#3020.
    x = torch.tensor(rank + 1.0)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert (x.shape, x.item()) == ((), 1.5)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("op", "expected"),
    [(op, [True, False, True]) for op in ("SUM", "MAX", "BOR")]
    + [(op, [True, False, False]) for op in ("PRODUCT", "MIN", "BAND")]
    + [("BXOR", [False, False, True])],
)
def test_bool_reductions_hold_only_0_and_1(dist: ModuleType, rank: int, op: str, expected: list[bool]) -> None:
    # T10, pytorch#24137, pytorch#89197: refused, or a sum of bytes [2, 0, 1].
    x = torch.tensor([[True, False, True], [True, False, False]][rank])
    dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
    assert x.view(torch.uint8).tolist() == [int(value) for value in expected]


@pytest.mark.ranks(2)
def test_bool_is_gathered(dist: ModuleType, rank: int) -> None:
    # T11, pytorch#89197.
    mine = torch.tensor([True, False, bool(rank), True, not rank])
    got = [torch.zeros(5, dtype=torch.bool) for _ in range(2)] if rank == 0 else None
    dist.gather(mine, got, dst=0)
    if got is not None:
        assert [tensor.tolist() for tensor in got] == [
            [True, False, False, True, True],
            [True, False, True, True, False],
        ]


@pytest.mark.ranks(4)
def test_bool_is_scattered(dist: ModuleType, rank: int) -> None:
    # T11, pytorch#90245.
    x = torch.zeros(4, dtype=torch.bool)
    dist.scatter(x, [torch.ones(4, dtype=torch.bool) for _ in range(4)] if rank == 0 else None, src=0)
    assert x.view(torch.uint8).tolist() == [1] * 4


@pytest.mark.ranks(2)
def test_int16_is_sent_and_summed(dist: ModuleType, rank: int) -> None:
    # T13, heat#497: [[4, 0, 6, 7]] and a corrupted heap.
    x = torch.tensor([[4, 5, 6, 7]], dtype=torch.int16) if rank == 0 else torch.zeros(1, 4, dtype=torch.int16)
    if rank == 0:
        dist.send(x, dst=1)
    else:
        dist.recv(x, src=0)
    received = x.tolist()
    dist.all_reduce(x)
    assert received == [[4, 5, 6, 7]]
    assert x.tolist() == [[8, 10, 12, 14]]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("width", [8, 16, 32, 64])
@pytest.mark.parametrize("sign", ["int", "uint"])
def test_integers_wrap(dist: ModuleType, width: int, sign: str) -> None:
    # Open MPI's op/avx adds int8, uint8, int16 and uint16 with saturation, in the vector part of a message only.
    dtype = getattr(torch, f"{sign}{width}")
    x = torch.tensor([torch.iinfo(dtype).max] * 101, dtype=dtype)
    dist.all_reduce(x)
    assert set(x.tolist()) == {-2 if sign == "int" else 2**width - 2}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("dtype", MOVABLE, ids=str)
def test_every_dtype_moves_bit_by_bit(dist: ModuleType, rank: int, dtype: torch.dtype) -> None:
    # T14: "Invalid scalar type".
    mine, theirs = patterned(dtype, rank), patterned(dtype, 1 - rank)
    from_0 = patterned(dtype, rank)
    dist.broadcast(from_0, src=0)
    rows = [patterned(dtype, 9) for _ in range(2)]
    dist.all_gather(rows, mine)
    got = patterned(dtype, 9)
    if rank == 0:
        dist.send(mine, dst=1)
        dist.recv(got, src=1)
    else:
        dist.recv(got, src=0)
        dist.send(mine, dst=0)
    assert same_bytes(from_0, patterned(dtype, 0))
    assert all(same_bytes(row, patterned(dtype, r)) for r, row in enumerate(rows))
    assert same_bytes(got, theirs)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if "float8" in str(dtype)], ids=str)
def test_float8_sums_are_refused_by_name(dist: ModuleType, dtype: torch.dtype) -> None:
    # T14.
    x = patterned(dtype, 1)
    with pytest.raises(TypeError, match=str(dtype).removeprefix("torch.")):
        dist.all_reduce(x)
    assert same_bytes(x, patterned(dtype, 1))


@pytest.mark.ranks(2)
def test_complex_is_summed_and_has_no_maximum(dist: ModuleType, rank: int) -> None:
    # T15, pytorch#45760.
    x = torch.full((2,), (1 + 2j) * (rank + 1), dtype=torch.complex64)
    dist.all_reduce(x)
    with pytest.raises(ValueError, match=r"(?i)max.*complex|complex.*max"):
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    assert x.tolist() == [3 + 6j] * 2


@pytest.mark.ranks(2)
def test_bits_of_floats_are_refused(dist: ModuleType, rank: int) -> None:
    # T18.
    x = torch.full((2,), rank + 1.0)
    with pytest.raises(ValueError, match=r"(?i)band.*float32|float32.*band"):
        dist.all_reduce(x, op=dist.ReduceOp.BAND)
    assert x.tolist() == [rank + 1.0] * 2


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("op", "expected"), [("BAND", 0), ("BOR", 3), ("BXOR", 3)])
def test_bits_of_integers(dist: ModuleType, rank: int, op: str, expected: int) -> None:
    # T18.
    x = torch.tensor([rank + 1], dtype=torch.int32)
    dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
    assert x.tolist() == [expected]
