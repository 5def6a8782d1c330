"""Arrays, tensors and storages inside Python objects: what they are, what they share, and where they lie."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12, dtype="i2").reshape(3, 4)),
        np.arange(12)[::2],
        np.zeros((0, 3), "c16"),
        np.array(5, "f2"),
        np.array(["a", "bc"]),
        np.array([None, {1: 2}], dtype=object),
        np.arange(200_000, dtype="u1"),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_arrays_keep_what_they_are(dist: ModuleType, rank: int, size: int, array: Any) -> None:
    got: list[Any] = [None] * size
    dist.all_gather_object(got, {"here": array, "again": [array, rank]})
    for r, item in enumerate(got):
        assert item["again"][1] == r
        for copy in (item["here"], item["again"][0]):
            assert (copy.dtype, copy.shape) == (array.dtype, array.shape)
            assert np.array_equal(copy, array)
            assert copy.flags.writeable


def test_what_arrives_is_nobody_elses(dist: ModuleType, rank: int, size: int) -> None:
    mine = np.full(1000, float(rank))
    got: list[Any] = [None] * size
    dist.all_gather_object(got, mine)
    for copy in got:
        copy += 100
    objects = [mine]
    dist.broadcast_object_list(objects)
    assert set(mine.tolist()) == {float(rank)}
    assert set(got[size - 1].tolist()) == {99.0 + size}
    assert set(objects[0].tolist()) == {0.0}


@pytest.mark.needs_torch
def test_tensors_keep_what_they_are(dist: ModuleType, rank: int, size: int) -> None:
    import torch

    got: list[Any] = [None] * size
    mine = {"half": torch.full((2, 3), rank + 0.5, dtype=torch.bfloat16), "grad": torch.ones(2, requires_grad=True)}
    dist.all_gather_object(got, mine)
    for r, item in enumerate(got):
        assert torch.equal(item["half"], torch.full((2, 3), r + 0.5, dtype=torch.bfloat16))
        assert item["grad"].requires_grad


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", ["float8_e4m3fn", "uint16", "uint32", "uint64", "complex32", "bfloat16", "bool"])
def test_tensors_of_every_dtype_travel_in_objects(dist: ModuleType, rank: int, size: int, name: str) -> None:
    import torch

    dtype = getattr(torch, name)
    bytes_of = (torch.arange(6 * dtype.itemsize) % 2).to(torch.uint8)
    tensors: list[Any] = [None] * size
    dist.all_gather_object(tensors, {"tensor": bytes_of.view(dtype).reshape(2, 3)})
    for got in tensors:
        assert (got["tensor"].dtype, got["tensor"].shape) == (dtype, (2, 3))
        assert torch.equal(got["tensor"].contiguous().view(torch.uint8).flatten(), bytes_of)


def everywhere(dist: ModuleType, rank: int, size: int, mine: Any) -> list[Any]:
    """What arrives of rank 0's object by each operation, on the ranks on which it does."""
    gathered, to_first = [None] * size, [None] * size if rank == 0 else None
    broadcast, scattered, received = [mine], [None], [None]
    dist.all_gather_object(gathered, mine)
    dist.gather_object(mine, to_first, dst=0)
    dist.broadcast_object_list(broadcast, src=0)
    dist.scatter_object_list(scattered, [mine] * size if rank == 0 else None, src=0)
    if rank == 0 < size - 1:
        dist.send_object_list([mine], dst=1)
    elif rank == 1:
        dist.recv_object_list(received, src=0)
    arrived = [gathered[0], (to_first or [None])[0], broadcast[0] if rank else None, scattered[0], received[0]]
    return [thing for thing in arrived if thing is not None]


@pytest.mark.parametrize("count", [4, 40_000], ids=["small", "large"])
def test_arrays_that_arrive_are_aligned(dist: ModuleType, rank: int, size: int, count: int) -> None:
    mine = (b"abc", np.arange(float(count)), "x", np.arange(5, dtype=np.int8), np.arange(3, dtype=np.longdouble))
    for arrived in everywhere(dist, rank, size, mine):
        arrays = [thing for thing in arrived if isinstance(thing, np.ndarray)]
        assert [array.tolist() for array in arrays] == [list(range(count)), [0, 1, 2, 3, 4], [0, 1, 2]]
        assert [array.ctypes.data % 64 for array in arrays] == [0, 0, 0]


@pytest.mark.needs_torch
def test_tensors_go_on_sharing_their_memory(dist: ModuleType, rank: int, size: int) -> None:
    import torch

    whole = torch.zeros(4)
    mine = {
        "whole": whole,
        "part": whole[1:],
        "bits": whole.view(torch.uint32),
        "parameter": torch.nn.Parameter(whole),
        "storage": whole.untyped_storage(),
        "other": torch.zeros(4),
    }
    for arrived in everywhere(dist, rank, size, mine):
        arrived["whole"][2] = 1.0
        assert arrived["part"].tolist() == [0, 1, 0]
        assert arrived["bits"].tolist() == [0, 0, 0x3F800000, 0]
        assert arrived["parameter"].tolist() == [0, 0, 1, 0]
        assert list(arrived["storage"]) == [0] * 8 + [0, 0, 0x80, 0x3F] + [0] * 4
        assert arrived["other"].tolist() == [0] * 4
    assert whole.tolist() == [0] * 4


@pytest.mark.needs_torch
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_tensors_keep_what_is_not_in_their_elements(dist: ModuleType, rank: int, size: int) -> None:
    import torch

    def marked(tensor: Any) -> Any:
        tensor.mark = "mine"
        return tensor

    mine = [marked(torch.zeros(2, dtype=dtype)) for dtype in (torch.float32, torch.uint16, torch.float8_e5m2)]
    mine.append(torch.zeros(2, dtype=torch.float8_e5m2).requires_grad_())
    mine.append(torch.tensor([1 + 2j], dtype=torch.complex32).conj())
    mine.append(torch.tensor([1 + 2j], dtype=torch.complex32).conj().imag)
    for arrived in everywhere(dist, rank, size, mine):
        assert [tensor.mark for tensor in arrived[:3]] == ["mine"] * 3
        assert arrived[3].requires_grad
        assert arrived[4].is_conj()
        assert arrived[4].to(torch.complex64).tolist() == [1 - 2j]
        assert arrived[5].is_neg()
        assert arrived[5].tolist() == [-2]


@pytest.mark.needs_torch
@pytest.mark.ranks(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["sparse", "csr", "quantised", "nested", "tensors"])
def test_tensors_of_other_kinds(dist: ModuleType, rank: int, size: int, kind: str) -> None:
    import torch
    from torch.testing._internal.two_tensor import TwoTensor

    make: dict[str, Any] = {
        "sparse": lambda: torch.eye(3).to_sparse(),
        "csr": lambda: torch.eye(3).to_sparse_csr(),
        "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.5, 2, torch.quint8),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "tensors": lambda: TwoTensor(torch.ones(2), torch.zeros(2)),  # type: ignore[no-untyped-call]
    }
    mine = make[kind]()
    for arrived in everywhere(dist, rank, size, mine):
        assert type(arrived) is type(mine)
        assert repr(arrived) == repr(mine)
