"""Several collectives as one operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpicoll.api.collectives import add_all_gather, add_all_gather_single
from mpicoll.api.entry import Group, entry
from mpicoll.api.reductions import add_reduce_scatter_single
from mpicoll.data import reduction
from mpicoll.data.arrays import Array
from mpicoll.data.reduction import ReduceOp
from mpicoll.groups.group import ProcessGroup
from mpicoll.groups.world import resolve
from mpicoll.guard import checks
from mpicoll.transport import reducing
from mpicoll.transport.operation import Operation
from mpicoll.transport.work import Work


@entry
def all_reduce_coalesced(
    tensors: list[Any], op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Work | None:
    """Reduce several tensors over all ranks, in place: `all_reduce` of each, as one operation.

    Collective. Nothing is sent before all of them are checked.

    Args:
        tensors: Alike in number, shapes and dtypes on every rank.
        op: As of `all_reduce`.
        group: The group; None is the default group.
        async_op: Return at once with one Work.

    Returns:
        A Work if `async_op`, else None.

    Raises:
        ArgumentError: As of `all_reduce`; an empty list; tensors that share memory.
        DTypeError: As of `all_reduce`.

    MPI_Allreduce, once for each tensor. Example:
        >>> import numpy as np, mpicoll as dist
        >>> x, y = np.ones(1), np.ones(2, np.int32)
        >>> dist.all_reduce_coalesced([x, y])
        >>> float(x[0]) == int(y[1]) == dist.get_world_size()
        True
    """
    pg = resolve(group)
    listed = checks.arrays_of_any_length(tensors, "tensors")
    arrays = checks.output_arrays(listed, "tensors", len(listed))
    hows = [reduction.find(reduction.as_op(op), array.dtype) for array in arrays]

    def add(operation: Operation, i: int) -> None:
        reducing.all_reduce(operation, arrays[i], hows[i])

    return pg.carry_out(_put_together(pg, len(listed), add), "all_reduce_coalesced", listed, async_op)


@entry
def all_gather_into_tensor_coalesced(
    output_tensors: list[Any], input_tensors: list[Any], group: Group = None, async_op: bool = False
) -> Work | None:
    """Gather several tensors: `all_gather_into_tensor` of each pair, as one operation.

    Collective. Nothing is sent before all of them are checked.

    Args:
        output_tensors: As many as inputs.
        input_tensors: Alike in number, shapes and dtypes on every rank.
        group: The group; None is the default group.
        async_op: Return at once with one Work.

    Returns:
        A Work if `async_op`, else None.

    Raises:
        ArgumentError: As of `all_gather_into_tensor`; empty lists, or lists of different lengths; an output that shares
            memory with another, or with the input of another.
        DTypeError: As of `all_gather_into_tensor`.

    MPI_Allgather, once for each pair. Example:
        >>> import numpy as np, mpicoll as dist
        >>> whole = np.zeros(dist.get_world_size())
        >>> dist.all_gather_into_tensor_coalesced([whole], [np.array([float(dist.get_rank())])])
        >>> whole[:2]
        array([0., 1.])
    """
    outputs, inputs = ("output_tensors", output_tensors), ("input_tensors", input_tensors)
    return _coalesce_pairs("all_gather_into_tensor_coalesced", group, outputs, inputs, add_all_gather_single, async_op)


@entry
def all_gather_coalesced(
    output_lists: list[list[Any]], input_tensors: list[Any], group: Group = None, async_op: bool = False
) -> Work | None:
    """Gather several tensors: `all_gather` of each pair of a list and a tensor, as one operation; for the second door.

    Arguments, returns and errors as of `all_gather_into_tensor_coalesced`.
    """
    outputs, inputs = ("output_lists", output_lists), ("input_tensors", input_tensors)
    return _coalesce_pairs("all_gather_coalesced", group, outputs, inputs, add_all_gather, async_op)


@entry
def reduce_scatter_tensor_coalesced(
    outputs: list[Any], inputs: list[Any], op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Work | None:
    """Reduce and scatter several tensors: `reduce_scatter_tensor` of each pair, as one operation.

    Collective. Nothing is sent before all of them are checked.

    Args:
        outputs: As many as inputs.
        inputs: Alike in number, shapes and dtypes on every rank.
        op: As of `all_reduce`.
        group: The group; None is the default group.
        async_op: Return at once with one Work.

    Returns:
        A Work if `async_op`, else None.

    Raises:
        ArgumentError: As of `reduce_scatter_tensor`; empty lists, or lists of different lengths; an output that shares
            memory with another, or with the input of another.
        DTypeError: As of `reduce_scatter_tensor`.

    MPI_Reduce_scatter_block, once for each pair. Example:
        >>> import numpy as np, mpicoll as dist
        >>> x = np.zeros(1)
        >>> dist.reduce_scatter_tensor_coalesced([x], [np.arange(float(dist.get_world_size()))])
        >>> float(x[0]) == dist.get_rank() * dist.get_world_size()
        True
    """

    def add(pg: ProcessGroup, operation: Operation, output: Any, input: Any) -> tuple[list[Array], Array]:
        return add_reduce_scatter_single(pg, operation, output, input, op)

    name = "reduce_scatter_tensor_coalesced"
    return _coalesce_pairs(name, group, ("outputs", outputs), ("inputs", inputs), add, async_op)


def _coalesce_pairs(
    name: str,
    group: Group,
    outputs: tuple[str, list[Any]],
    inputs: tuple[str, list[Any]],
    add: Callable[[ProcessGroup, Operation, Any, Any], tuple[list[Array], Array]],
    async_op: bool,
) -> Work | None:
    """A collective of each output (or list of them) and its input, by the names of the two lists and the lists."""
    pg = resolve(group)
    sources = checks.arrays_of_any_length(inputs[1], inputs[0])
    targets = checks.same_length(outputs[1], outputs[0], sources, inputs[0])
    written: list[checks.Part] = []
    read: list[checks.Part] = []

    def add_pair(part: Operation, i: int) -> None:
        arrays, array = add(pg, part, targets[i], sources[i])
        written.extend((i, one) for one in arrays)
        read.append((i, array))

    operation = _put_together(pg, len(targets), add_pair)
    checks.apart(written, outputs[0], read, inputs[0])
    return pg.carry_out(operation, name, targets, async_op)


def _put_together(pg: ProcessGroup, count: int, add: Callable[[Operation, int], None]) -> Operation:
    whole = pg.operation()
    for i in range(count):
        part = pg.operation()
        add(part, i)
        whole.append(part)
    return whole
