"""Arrays that share memory and may: interleaved outputs, and an input that is a part of its output."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.ranks.arrays import DLPackOnly
from tests.reference.dtypes import HAS_TORCH

Array = np.ndarray[Any, np.dtype[Any]]
WRAPS = ["numpy", "torch", "dlpack"] if HAS_TORCH else ["numpy", "dlpack"]
ASYNC = pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
WRAP = pytest.mark.parametrize("wrap", WRAPS)


def wrapped(kind: str, array: Array) -> Any:
    """Give the same memory as another kind of array."""
    if kind == "torch":
        import torch

        return torch.from_numpy(array)
    return DLPackOnly(array) if kind == "dlpack" else array


def waited(work: Any, async_op: bool) -> None:
    assert (work is not None) is async_op
    if async_op:
        work.wait()


@WRAP
@ASYNC
def test_interleaved_outputs(dist: ModuleType, rank: int, size: int, wrap: str, async_op: bool) -> None:
    """x[0::n], x[1::n], ...: the memory that they span overlaps, their elements do not."""
    storage = np.full(5 * size, -1.0)
    outputs = [wrapped(wrap, storage[r::size]) for r in range(size)]
    waited(dist.all_gather(outputs, wrapped(wrap, np.full(5, rank + 0.5)), async_op=async_op), async_op)
    assert storage.reshape(5, size).tolist() == [[r + 0.5 for r in range(size)]] * 5


@WRAP
@ASYNC
def test_columns_as_outputs_of_all_to_all(dist: ModuleType, rank: int, size: int, wrap: str, async_op: bool) -> None:
    """Columns of one matrix on both sides: this transposes blocks over the ranks."""
    received = np.full((3, size), -1)
    sent = 10 * rank + np.tile(np.arange(size), (3, 1))
    outputs, inputs = ([wrapped(wrap, matrix[:, r]) for r in range(size)] for matrix in (received, sent))
    waited(dist.all_to_all(outputs, inputs, async_op=async_op), async_op)
    assert received.tolist() == [[10 * r + rank for r in range(size)]] * 3


@WRAP
@ASYNC
def test_input_is_its_own_place_in_the_output(
    dist: ModuleType, rank: int, size: int, wrap: str, async_op: bool
) -> None:
    """What FSDP does to save memory."""
    output = np.full((size, 4), -1.0)
    output[rank] = rank
    work = dist.all_gather_into_tensor(wrapped(wrap, output), wrapped(wrap, output[rank]), async_op=async_op)
    waited(work, async_op)
    assert output.tolist() == [[r] * 4 for r in range(size)]


@WRAP
@ASYNC
def test_input_is_an_entry_of_the_outputs(dist: ModuleType, rank: int, size: int, wrap: str, async_op: bool) -> None:
    outputs = [np.full(4, rank if r == rank else -1) for r in range(size)]
    wraps = [wrapped(wrap, output) for output in outputs]
    waited(dist.all_gather(wraps, wraps[rank], async_op=async_op), async_op)
    assert [output.tolist() for output in outputs] == [[r] * 4 for r in range(size)]


@WRAP
@ASYNC
def test_output_is_a_part_of_the_input(dist: ModuleType, rank: int, size: int, wrap: str, async_op: bool) -> None:
    """reduce_scatter_tensor into this rank's own part of its input; the other parts keep what they had."""
    data = np.arange(3.0 * size).reshape(size, 3)
    work = dist.reduce_scatter_tensor(wrapped(wrap, data[rank]), wrapped(wrap, data), async_op=async_op)
    waited(work, async_op)
    expected = np.arange(3.0 * size).reshape(size, 3)
    expected[rank] *= size
    assert data.tolist() == expected.tolist()


@WRAP
@ASYNC
def test_output_is_an_entry_of_the_inputs(dist: ModuleType, rank: int, size: int, wrap: str, async_op: bool) -> None:
    entries = [np.full(3, 10 * rank + r) for r in range(size)]
    wraps = [wrapped(wrap, entry) for entry in entries]
    waited(dist.reduce_scatter(wraps[rank], wraps, async_op=async_op), async_op)
    total = sum(10 * r + rank for r in range(size))
    assert [e.tolist() for e in entries] == [[total if r == rank else 10 * rank + r] * 3 for r in range(size)]


@WRAP
@ASYNC
def test_root_sends_what_it_keeps(dist: ModuleType, rank: int, size: int, wrap: str, async_op: bool) -> None:
    """Gather into a list that holds the input, scatter from a list that holds the output."""
    root = size - 1
    entries = [np.full(2, rank if r == rank else -1) for r in range(size)]
    wraps = [wrapped(wrap, entry) for entry in entries]
    waited(dist.gather(wraps[rank], wraps if rank == root else None, dst=root, async_op=async_op), async_op)
    if rank == root:
        assert [entry.tolist() for entry in entries] == [[r] * 2 for r in range(size)]
    waited(dist.scatter(wraps[rank], wraps if rank == root else None, src=root, async_op=async_op), async_op)
    assert entries[rank].tolist() == [rank] * 2


@WRAP
def test_same_input_for_everybody(dist: ModuleType, rank: int, size: int, wrap: str) -> None:
    """Inputs may be one array many times, and overlap."""
    data = wrapped(wrap, np.arange(3) + rank)
    output = np.zeros(3, int)
    dist.reduce_scatter(wrapped(wrap, output), [data] * size)
    assert output.tolist() == [size * k + size * (size - 1) // 2 for k in range(3)]
    outputs = [np.zeros(3, int) for _ in range(size)]
    dist.all_to_all([wrapped(wrap, out) for out in outputs], [data] * size)
    assert [out.tolist() for out in outputs] == [[r, r + 1, r + 2] for r in range(size)]


@ASYNC
def test_read_only_inputs(dist: ModuleType, rank: int, size: int, async_op: bool) -> None:
    """A read-only array is as good an input as any."""
    data = np.full(3, rank)
    data.flags.writeable = False
    output = np.zeros((size, 3), int)
    waited(dist.all_gather_into_tensor(output, data, async_op=async_op), async_op)
    assert output.tolist() == [[r] * 3 for r in range(size)]
    words = np.frombuffer(b"mpi", np.uint8)
    outputs = [np.zeros(3, np.uint8) for _ in range(size)]
    waited(dist.all_gather(outputs, words, async_op=async_op), async_op)
    assert all(out.tobytes() == b"mpi" for out in outputs)


def test_subclass_of_ndarray(dist: ModuleType, rank: int, size: int, tmp_path: Any) -> None:
    """A memmap is written through to its file."""
    mapped = np.memmap(tmp_path / f"{rank}.bin", np.float64, "w+", shape=(4,))
    mapped[:] = rank + 1
    dist.all_reduce(mapped)
    mapped.flush()
    assert np.fromfile(tmp_path / f"{rank}.bin").tolist() == [size * (size + 1) / 2] * 4


@pytest.mark.needs_torch
def test_parameters_and_leaves(dist: ModuleType, rank: int, size: int) -> None:
    """A Parameter under no_grad: its values change, its place in autograd does not."""
    import torch

    parameter = torch.nn.Parameter(torch.full((3,), rank + 1.0))
    with torch.no_grad():
        dist.all_reduce(parameter)
        dist.broadcast(parameter, src=0)
    assert parameter.tolist() == [size * (size + 1) / 2] * 3
    assert parameter.requires_grad
    assert parameter.is_leaf
    (parameter * 2).sum().backward()  # type: ignore[no-untyped-call]
    assert parameter.grad is not None
    with torch.no_grad():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    assert parameter.grad.tolist() == [2.0] * 3
