"""The collectives that reduce tensors: every rank of the group calls them, in the same order."""

from __future__ import annotations

from typing import Any

from mpicoll.api.entry import Group, entry
from mpicoll.data import layout, reduction
from mpicoll.data.arrays import Array
from mpicoll.data.reduction import ReduceOp
from mpicoll.groups.group import ProcessGroup
from mpicoll.groups.world import resolve
from mpicoll.guard import checks
from mpicoll.mpi import library
from mpicoll.transport import reducing
from mpicoll.transport.operation import Operation
from mpicoll.transport.work import Work


@entry
def all_reduce(tensor: Any, op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False) -> Work | None:
    """Reduce a tensor over all ranks, in place, with the same bits for every rank.

    Collective. float16 and bfloat16 are accumulated in float32 and rounded once; integers wrap; bool stays 0 and 1.

    Args:
        tensor: Of the same shape and dtype on every rank; overwritten with the reduction.
        op: A ReduceOp, or one of torch.distributed's.
        group: The group; None is the default group.
        async_op: Return at once with a Work.

    Returns:
        A Work if `async_op`, else None.

    Raises:
        ArgumentError: An operation that means nothing for the dtype (AVG of integers, MAX of complex numbers, ...); a
            tensor that is read-only or overlaps itself.
        DTypeError: A dtype that does not reduce, as float8; or not an array.

    MPI_Allreduce. Example:
        >>> import numpy as np, mpicoll as dist
        >>> x = np.ones(2)
        >>> dist.all_reduce(x, dist.ReduceOp.AVG)
        >>> x
        array([1., 1.])
    """
    pg = resolve(group)
    array = checks.output_array(tensor)
    how = reduction.find(reduction.as_op(op), array.dtype)
    if not async_op and pg.engine.runs_here and reducing.is_one_call(pg.place, array, how):
        # What most calls are takes the shortest way; it comes to the same as the operation below.
        pg.engine.run_call("Allreduce", library.MPI.IN_PLACE, [array.buffer(), array.count, how.mpi_type], how.mpi_op)
        return None
    operation = pg.operation()
    reducing.all_reduce(operation, array, how)
    return pg.carry_out(operation, "all_reduce", [tensor], async_op)


@entry
def reduce(
    tensor: Any,
    dst: int | None = None,
    op: Any = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Reduce a tensor over all ranks, in place, for one of them.

    Collective. The tensors of the other ranks stay bit-identical.

    Args:
        tensor: Of the same shape and dtype on every rank; overwritten on the destination rank alone.
        dst: The destination's global rank.
        op: As of `all_reduce`.
        group: The group; None is the default group.
        async_op: Return at once with a Work.
        group_dst: The destination's rank in the group, instead of `dst`.

    Returns:
        A Work if `async_op`, else None.

    Raises:
        ArgumentError: As of `all_reduce`; no destination, two, or one outside the group.
        DTypeError: As of `all_reduce`.

    MPI_Reduce. Example:
        >>> import numpy as np, mpicoll as dist
        >>> x = np.ones(1)
        >>> dist.reduce(x, dst=0)
        >>> float(x[0]) == (dist.get_world_size() if dist.get_rank() == 0 else 1)
        True
    """
    pg = resolve(group)
    root = checks.rank_in_group(pg, dst, group_dst, "dst")
    array = checks.in_place_array(tensor, pg.rank() == root)
    how = reduction.find(reduction.as_op(op), array.dtype)
    operation = pg.operation()
    reducing.reduce(operation, array, how, root)
    return pg.carry_out(operation, "reduce", [tensor], async_op)


@entry
def reduce_scatter(
    output: Any, input_list: list[Any], op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Work | None:
    """Reduce lists of tensors over all ranks; rank i gets the reduction of the i-th tensors.

    Collective. The tensors of a list may differ in size; the lists are alike on all ranks.

    Args:
        output: Of the size of this rank's entry in the list.
        input_list: n inputs.
        op: As of `all_reduce`.
        group: The group of n ranks; None is the default group.
        async_op: Return at once with a Work.

    Returns:
        A Work if `async_op`, else None.

    Raises:
        ArgumentError: As of `all_reduce`; the list's length; the size of this rank's entry.
        DTypeError: As of `all_reduce`; dtypes that differ.

    MPI_Reduce_scatter. Example:
        >>> import numpy as np, mpicoll as dist
        >>> x = np.zeros(1)
        >>> dist.reduce_scatter(x, [np.array([float(i)]) for i in range(dist.get_world_size())])
        >>> float(x[0]) == dist.get_rank() * dist.get_world_size()
        True
    """
    pg = resolve(group)
    target = checks.output_array(output, "output")
    inputs = checks.input_arrays(input_list, "input_list", pg.size())
    checks.same_dtypes(inputs, "input_list", target, "output")
    checks.same_count(inputs, "input_list", pg.rank(), target, "output")
    how = reduction.find(reduction.as_op(op), target.dtype)
    operation = pg.operation()
    reducing.reduce_scatter(operation, target, inputs, [array.count for array in inputs], how)
    return pg.carry_out(operation, "reduce_scatter", [output], async_op)


@entry
def reduce_scatter_tensor(
    output: Any, input: Any, op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Work | None:
    """Reduce a tensor over all ranks; rank i gets the i-th of its n equal parts.

    Collective.

    Args:
        output: Of an n-th of the input's elements.
        input: ``(n * S0, S1, ...)`` or ``(n, *S)`` for outputs of shape S; stays as it is.
        op: As of `all_reduce`.
        group: The group of n ranks; None is the default group.
        async_op: Return at once with a Work.

    Returns:
        A Work if `async_op`, else None.

    Raises:
        ArgumentError: As of `all_reduce`; an input that has not n times the elements of the output.
        DTypeError: As of `all_reduce`; dtypes that differ.

    MPI_Reduce_scatter_block. Example:
        >>> import numpy as np, mpicoll as dist
        >>> x = np.zeros(1)
        >>> dist.reduce_scatter_tensor(x, np.arange(float(dist.get_world_size())))
        >>> float(x[0]) == dist.get_rank() * dist.get_world_size()
        True
    """
    pg = resolve(group)
    operation = pg.operation()
    add_reduce_scatter_single(pg, operation, output, input, op)
    return pg.carry_out(operation, "reduce_scatter_tensor", [output], async_op)


def add_reduce_scatter_single(
    pg: ProcessGroup, operation: Operation, output: Any, input: Any, op: Any
) -> tuple[list[Array], Array]:
    """Check the arguments of `reduce_scatter_tensor` and add its steps to an operation. Returns output and input."""
    target = checks.output_array(output, "output")
    array = checks.input_array(input, "input")
    checks.same_dtype(target, "output", array, "input")
    checks.count_times(array, "input", pg.size(), target, "output")
    how = reduction.find(reduction.as_op(op), target.dtype)
    reducing.reduce_scatter(operation, target, [array], layout.even_split(array.count, pg.size()), how)
    return [target], array


reduce_scatter_single = reduce_scatter_tensor  # torch 2.13's name for it
