"""What comes in the place of an array: taken for what it is, or refused by its name before anything is sent."""

from __future__ import annotations

import array
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.ranks.arrays import DLPackOnly

pytestmark = pytest.mark.ranks(1, 2)

Make = Callable[[Any], Any]  # a thing that holds the numbers of a numpy array


def works(dist: ModuleType, rank: int, size: int, make: Make) -> None:
    """Put the kind of thing into the places of an input and of an output, in what moves, reduces and sends."""
    mine, total = np.arange(6.0) + rank, np.arange(6.0) * size + sum(range(size))
    seen: list[np.ndarray[Any, Any]] = []

    def output(start: Any) -> Any:
        seen.append(start)
        return make(start)

    first = np.arange(6.0)
    dist.all_reduce(output(reduced := mine.copy()))
    dist.broadcast(output(copied := mine.copy()), src=0)
    dist.all_gather([output(np.zeros(6)) for _ in range(size)], make(mine))
    dist.reduce_scatter(output(scattered := np.zeros(6)), [make(mine) for _ in range(size)])
    work = dist.all_reduce(output(late := mine.copy()), dist.ReduceOp.MAX, async_op=True)
    work.wait()
    if size == 2 and rank == 0:
        dist.send(make(mine), dst=1)
    elif size == 2:
        dist.recv(output(received := np.zeros(6)), src=0)
        assert received.tolist() == first.tolist()
    assert [reduced.tolist(), scattered.tolist()] == [total.tolist()] * 2
    assert copied.tolist() == first.tolist()
    assert [got.tolist() for got in seen[2 : 2 + size]] == [(first + r).tolist() for r in range(size)]
    assert late.tolist() == (first + size - 1).tolist()


class Bare(np.ndarray[Any, Any]):
    """Has its own mind about numpy's functions."""

    def __array_function__(self, *args: Any) -> Any:
        raise RuntimeError("not by numpy's functions")

    def __array_ufunc__(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("not by numpy's functions")


@pytest.mark.parametrize("kind", [np.matrix, Bare, np.recarray], ids=lambda kind: kind.__name__)
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_subclasses_of_ndarray(dist: ModuleType, rank: int, size: int, kind: Any) -> None:
    works(dist, rank, size, lambda numbers: numbers.view(kind))


def test_many_dimensions_and_strange_strides(dist: ModuleType, rank: int, size: int) -> None:
    works(dist, rank, size, lambda numbers: numbers[::-1][::-1].reshape(1, 2, 1, 3, 1).transpose(4, 1, 0, 3, 2))


@pytest.mark.parametrize("mode", ["r+", "c", "r"])
def test_mapped_files(dist: ModuleType, rank: int, size: int, mode: Any, tmp_path: Path) -> None:
    """The file has what is written to it with r+, the memory alone with c; r is an input only."""
    path = tmp_path / f"{rank}.bin"
    (np.arange(3.0) + rank).tofile(path)
    mapped = np.memmap(path, np.float64, mode)
    outputs = [np.zeros(3) for _ in range(size)]
    dist.all_gather(outputs, mapped)
    assert [output.tolist() for output in outputs] == [[r, r + 1, r + 2] for r in range(size)]
    if mode == "r":
        with pytest.raises(dist.ArgumentError, match="writable array, got a read-only one"):
            dist.all_reduce(mapped)
        return
    dist.all_reduce(mapped)
    total = [size * x + sum(range(size)) for x in (0, 1, 2)]
    assert mapped.tolist() == total
    mapped.flush()
    assert np.fromfile(path).tolist() == (total if mode == "r+" else [rank, rank + 1, rank + 2])


@pytest.mark.needs_torch
def test_tensors_with_a_mind_about_torchs_functions(dist: ModuleType, rank: int, size: int) -> None:
    import torch

    class Stubborn(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *args: Any, **options: Any) -> Any:
            raise RuntimeError("not by torch's functions")

    def make(numbers: Any) -> Any:
        return torch.Tensor._make_subclass(Stubborn, torch.from_numpy(numbers))

    works(dist, rank, size, make)
    # Of a lazy negative, torch itself makes the elements.
    lazy = torch._neg_view(torch.full((3,), -1.0 - rank))
    dist.all_reduce(torch.Tensor._make_subclass(Stubborn, lazy))
    assert lazy.tolist() == [sum(range(1, size + 1))] * 3


@pytest.mark.needs_torch
def test_more_dimensions_than_numpy_can_have(dist: ModuleType, rank: int, size: int) -> None:
    import torch

    shape = [1] * 70 + [6]
    works(dist, rank, size, lambda numbers: torch.from_numpy(numbers).reshape(shape))
    works(dist, rank, size, lambda numbers: torch.from_numpy(numbers)[None].mT.reshape(6, *[1] * 70).mT)
    for dtype in (torch.float32, torch.float16):
        wide = torch.ones([*shape, 2], dtype=dtype)
        dist.all_reduce(wide[..., 1])
        assert wide.flatten().tolist() == [1, size] * 6


@pytest.mark.needs_torch
def test_a_lazy_copy_is_one(dist: ModuleType, size: int) -> None:
    import torch

    x = torch.ones(3)
    copy = torch._lazy_clone(x)
    dist.all_reduce(copy)
    assert (x.tolist(), copy.tolist()) == ([1] * 3, [size] * 3)


# What is refused


class Duck:
    """Can be made an array, and is none."""

    shape, dtype = (2,), np.dtype("f8")

    def __array__(self, *args: Any, **options: Any) -> Any:
        return np.ones(2)


class Interface:
    __array_interface__ = np.ones(2).__array_interface__


class Capsules:
    """Speaks DLPack, in its way."""

    def __init__(self, device: Any, capsule: Any) -> None:
        self.device, self.capsule = device, capsule

    def __dlpack_device__(self) -> Any:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.capsule


def consumed() -> Any:
    capsule = np.ones(2).__dlpack__()
    np.from_dlpack(Capsules((1, 0), capsule))
    return capsule


NOT_ARRAYS: dict[str, tuple[Any, str]] = {
    "none": (None, "NoneType"),
    "number": (1.5, "float"),
    "numpy's number": (np.float64(1.5), "float64"),
    "text": ("abc", "str"),
    "list": ([1.0, 2.0], "list"),
    "bytes": (b"12345678", "bytes"),
    "bytearray": (bytearray(8), "bytearray"),
    "memoryview": (memoryview(bytearray(8)), "memoryview"),
    "array.array": (array.array("d", [1, 2]), "array"),
    "class": (np.ndarray, "type"),
    "__array__": (Duck(), "Duck"),
    "__array_interface__": (Interface(), "Interface"),
    "GPU": (Capsules((2, 0), RuntimeError("not to be asked")), "DLPack device 2:0"),
    "no device": (Capsules(None, None), "__dlpack_device__ of Capsules"),
    "no capsule": (Capsules((1, 0), 5), "__dlpack__ of Capsules.*got 5"),
    "consumed capsule": (Capsules((1, 0), consumed()), "used_dltensor"),
    "no export": (Capsules((1, 0), BufferError("no export")), "__dlpack__ of Capsules.*BufferError: no export"),
    "objects": (np.array([1, None]), "object.*Use an object collective"),
    "mask": (np.ma.masked_array(np.ones(3), [True, False, False]), "MaskedArray.*filled"),
}
if hasattr(np.dtypes, "StringDType"):
    NOT_ARRAYS["strings"] = (np.array(["a"], np.dtypes.StringDType()), "StringDType.*Use an object collective")


@pytest.mark.ranks(1)
@pytest.mark.parametrize("kind", NOT_ARRAYS)
def test_what_is_no_array_is_refused_by_name(dist: ModuleType, kind: str) -> None:
    thing, name = NOT_ARRAYS[kind]
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(thing),
        lambda: dist.broadcast(thing, src=0),
        lambda: dist.all_gather([np.ones(2)], thing),
        lambda: dist.all_gather_into_tensor_coalesced([thing], [np.ones(2)]),
        lambda: dist.differentiable.all_reduce(thing),
    ]
    for call in calls:
        with pytest.raises(dist.DTypeError, match=rf"(?s)tensor.*{name if call is not calls[-1] else ''}"):
            call()


class Frozen(DLPackOnly):
    """An array of jax, as far as it can be told."""

    __module__ = "jaxlib._jax"


def test_arrays_that_never_change_are_inputs_only(dist: ModuleType, rank: int, size: int) -> None:
    """Others hold the memory of a jax array for other values; its capsule does not say so."""
    outputs = [np.zeros(2) for _ in range(size)]
    dist.all_gather(outputs, Frozen(np.full(2, rank + 1.0)))
    assert [output.tolist() for output in outputs] == [[r + 1.0] * 2 for r in range(size)]
    x = np.ones(2)
    with pytest.raises(dist.ArgumentError, match="writable array, got a read-only one"):
        dist.all_reduce(Frozen(x))
    assert x.tolist() == [1, 1]


@pytest.mark.needs_torch
@pytest.mark.ranks(1)
@pytest.mark.filterwarnings("ignore")
def test_tensors_without_memory_of_their_own_are_refused(dist: ModuleType) -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.ones(3)
    with FakeTensorMode() as mode:
        fake = torch.ones(3)
    kinds = [
        fake,
        mode.from_tensor(x),
        torch._to_functional_tensor(x),
        torch._efficientzerotensor(3),
        torch.masked.masked_tensor(x, x > 0),
    ]
    for tensor in kinds:
        with pytest.raises(dist.DTypeError, match=rf"memory of its own, got {type(tensor).__name__}, which has none"):
            dist.all_reduce(tensor)

    with pytest.raises(dist.DTypeError, match="got UninitializedParameter: Can't access the shape"):
        dist.broadcast(torch.nn.LazyLinear(3).weight, src=0)

    def summed(tensor: Any) -> Any:
        dist.all_reduce(tensor)
        return tensor.sum()

    for transformed in (torch.vmap(summed), torch.func.grad(summed), torch.func.functionalize(summed)):
        with pytest.raises(dist.DTypeError, match="memory of its own"):
            transformed(x)


@pytest.mark.needs_torch
@pytest.mark.ranks(1)
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_not_dense_are_refused(dist: ModuleType) -> None:
    import torch

    x = torch.eye(4)
    kinds = {
        "layout sparse_coo": x.to_sparse(),
        "layout sparse_csr": x.to_sparse_csr(),
        "layout sparse_bsr": x.to_sparse_bsr((2, 2)),
        "a nested one": torch.nested.nested_tensor([x, x[:2]]),
        "a nested": torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged),
        "layout _mkldnn": x.to_mkldnn(),
        "on meta": x.to("meta"),
        "the quantised quint8": torch.quantize_per_tensor(x, 0.5, 0, torch.quint8),
    }
    for told, tensor in kinds.items():
        with pytest.raises(dist.DTypeError, match=f"tensor: .*expected .*, got .*{told}"):
            dist.broadcast(tensor, src=0)
