"""The collectives that move tensors: every rank of the group calls them, in the same order."""

from __future__ import annotations

from typing import Any

from mpicoll.api.entry import Group, entry
from mpicoll.data.arrays import Array
from mpicoll.groups.group import ProcessGroup
from mpicoll.groups.world import resolve
from mpicoll.guard import checks, deadlines
from mpicoll.transport import direct
from mpicoll.transport.operation import Operation
from mpicoll.transport.work import Timeout, Work, seconds


@entry
def broadcast(
    tensor: Any, src: int | None = None, group: Group = None, async_op: bool = False, group_src: int | None = None
) -> Work | None:
    """Copy a tensor from one rank to all.

    Collective. The shape and dtype are the same on every rank; strides need not be.

    Args:
        tensor: Read on the source rank, overwritten elsewhere.
        src: The source's global rank.
        group: The group; None is the default group.
        async_op: Return at once with a Work.
        group_src: The source's rank in the group, instead of `src`.

    Returns:
        A Work if `async_op`, else None.

    Raises:
        ArgumentError: No source, two, or one outside the group; a tensor that overlaps itself, or is read-only
            where it is written.
        DTypeError: It is not an array.

    MPI_Bcast. Example:
        >>> import numpy as np, mpicoll as dist
        >>> x = np.full(2, float(dist.get_rank()))
        >>> dist.broadcast(x, src=0)
        >>> x
        array([0., 0.])
    """
    pg = resolve(group)
    root = checks.rank_in_group(pg, src, group_src, "src")
    array = checks.in_place_array(tensor, pg.rank() != root)
    operation = pg.operation()
    direct.broadcast(operation, array, root)
    return pg.carry_out(operation, "broadcast", [tensor], async_op)


@entry
def all_gather(tensor_list: list[Any], tensor: Any, group: Group = None, async_op: bool = False) -> Work | None:
    """Gather every rank's tensor in a list, on all ranks.

    Collective. The ranks' tensors may differ in size; every rank knows all the sizes by its list.

    Args:
        tensor_list: n outputs, the i-th of the size of rank i's tensor.
        tensor: This rank's input.
        group: The group of n ranks; None is the default group.
        async_op: Return at once with a Work.

    Returns:
        A Work if `async_op`, else None.

    Raises:
        ArgumentError: Wrong length of the list, or size of this rank's entry; outputs that share memory.
        DTypeError: Dtypes that differ; not an array.

    MPI_Allgather, MPI_Allgatherv; MPI_Bcast for large blocks, so that each goes straight to its tensor. Example:
        >>> import numpy as np, mpicoll as dist
        >>> parts = [np.zeros(1) for _ in range(dist.get_world_size())]
        >>> dist.all_gather(parts, np.array([float(dist.get_rank())]))
        >>> [float(part[0]) for part in parts][:2]
        [0.0, 1.0]
    """
    pg = resolve(group)
    operation = pg.operation()
    add_all_gather(pg, operation, tensor_list, tensor)
    return pg.carry_out(operation, "all_gather", list(tensor_list), async_op)


def add_all_gather(
    pg: ProcessGroup, operation: Operation, tensor_list: list[Any], tensor: Any
) -> tuple[list[Array], Array]:
    """Check the arguments of `all_gather` and add its steps to an operation. Returns the outputs and the input."""
    outputs = checks.output_arrays(tensor_list, "tensor_list", pg.size())
    array = checks.input_array(tensor)
    checks.same_dtypes(outputs, "tensor_list", array, "tensor")
    checks.same_count(outputs, "tensor_list", pg.rank(), array, "tensor")
    direct.all_gather(operation, outputs, array)
    return outputs, array


@entry
def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Group = None, async_op: bool = False
) -> Work | None:
    """Gather every rank's tensor in one tensor, on all ranks.

    Collective. The input may be this rank's part of the output.

    Args:
        output_tensor: ``(n * S0, S1, ...)`` or ``(n, *S)`` for inputs of shape S: any shape of n times the elements.
        input_tensor: This rank's input, of the same shape and dtype on every rank.
        group: The group of n ranks; None is the default group.
        async_op: Return at once with a Work.

    Returns:
        A Work if `async_op`, else None.

    Raises:
        ArgumentError: An output that has not n times the elements of the input, or that overlaps itself.
        DTypeError: Dtypes that differ; not an array.

    MPI_Allgather. Example:
        >>> import numpy as np, mpicoll as dist
        >>> whole = np.zeros(dist.get_world_size())
        >>> dist.all_gather_into_tensor(whole, np.array([float(dist.get_rank())]))
        >>> whole[:2]
        array([0., 1.])
    """
    pg = resolve(group)
    operation = pg.operation()
    add_all_gather_single(pg, operation, output_tensor, input_tensor)
    return pg.carry_out(operation, "all_gather_into_tensor", [output_tensor], async_op)


def add_all_gather_single(
    pg: ProcessGroup, operation: Operation, output_tensor: Any, input_tensor: Any
) -> tuple[list[Array], Array]:
    """The same for `all_gather_into_tensor`."""
    output = checks.output_array(output_tensor, "output_tensor")
    array = checks.input_array(input_tensor, "input_tensor")
    checks.same_dtype(output, "output_tensor", array, "input_tensor")
    checks.count_times(output, "output_tensor", pg.size(), array, "input_tensor")
    direct.all_gather_single(operation, output, array)
    return [output], array


@entry
def gather(
    tensor: Any,
    gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Gather every rank's tensor in a list, on one rank.

    Collective. The ranks' tensors may differ in size.

    Args:
        tensor: This rank's input.
        gather_list: On the destination n outputs, the i-th of the size of rank i's tensor; elsewhere None.
        dst: The destination's global rank; rank 0 if neither it nor `group_dst` is given.
        group: The group of n ranks; None is the default group.
        async_op: Return at once with a Work.
        group_dst: The destination's rank in the group, instead of `dst`.

    Returns:
        A Work if `async_op`, else None.

    Raises:
        ArgumentError: A list where none belongs, or none where one does; its length; the size of this rank's entry.
        DTypeError: Dtypes that differ; not an array.
        MessageError: On the destination, a rank's tensor is smaller than its entry in the list.

    MPI_Isend and MPI_Irecv, as MPI_Gatherv does it. Example:
        >>> import numpy as np, mpicoll as dist
        >>> parts = [np.zeros(1) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
        >>> dist.gather(np.array([float(dist.get_rank())]), parts)
        >>> [float(part[0]) for part in parts or [[0.0], [1.0]]][:2]
        [0.0, 1.0]
    """
    pg = resolve(group)
    root = checks.rank_in_group(pg, dst, group_dst, "dst", default=0)
    at_root = checks.only_on_root(gather_list, "gather_list", pg, root, "destination")
    array = checks.input_array(tensor)
    outputs: list[Array] = []
    if at_root:
        outputs = checks.output_arrays(gather_list, "gather_list", pg.size())
        checks.same_dtypes(outputs, "gather_list", array, "tensor")
        checks.same_count(outputs, "gather_list", root, array, "tensor")
    operation = pg.operation()
    direct.gather(operation, array, outputs, root)
    return pg.carry_out(operation, "gather", list(gather_list or []), async_op)


@entry
def scatter(
    tensor: Any,
    scatter_list: list[Any] | None = None,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Give each rank a tensor of one rank's list.

    Collective. The tensors may differ in size.

    Args:
        tensor: This rank's output.
        scatter_list: On the source n inputs, the i-th of the size of rank i's output; elsewhere None.
        src: The source's global rank; rank 0 if neither it nor `group_src` is given.
        group: The group of n ranks; None is the default group.
        async_op: Return at once with a Work.
        group_src: The source's rank in the group, instead of `src`.

    Returns:
        A Work if `async_op`, else None.

    Raises:
        ArgumentError: A list where none belongs, or none where one does; its length; the size of the source's entry.
        DTypeError: Dtypes that differ; not an array.
        MessageError: The source's tensor for this rank is smaller than the output.

    MPI_Isend and MPI_Irecv, as MPI_Scatterv does it. Example:
        >>> import numpy as np, mpicoll as dist
        >>> x = np.zeros(1)
        >>> parts = [np.array([float(i)]) for i in range(dist.get_world_size())]
        >>> dist.scatter(x, parts if dist.get_rank() == 0 else None)
        >>> float(x[0]) == dist.get_rank()
        True
    """
    pg = resolve(group)
    root = checks.rank_in_group(pg, src, group_src, "src", default=0)
    at_root = checks.only_on_root(scatter_list, "scatter_list", pg, root, "source")
    output = checks.output_array(tensor)
    inputs: list[Array] = []
    if at_root:
        inputs = checks.input_arrays(scatter_list, "scatter_list", pg.size())
        checks.same_dtypes(inputs, "scatter_list", output, "tensor")
        checks.same_count(inputs, "scatter_list", root, output, "tensor")
    operation = pg.operation()
    direct.scatter(operation, output, inputs, root)
    return pg.carry_out(operation, "scatter", [tensor], async_op)


@entry
def all_to_all(
    output_tensor_list: list[Any], input_tensor_list: list[Any], group: Group = None, async_op: bool = False
) -> Work | None:
    """Send the i-th tensor of a list to rank i, and receive one from each rank.

    Collective. The tensors may differ in size.

    Args:
        output_tensor_list: n outputs, the i-th of the size of what rank i sends to this one.
        input_tensor_list: n inputs.
        group: The group of n ranks; None is the default group.
        async_op: Return at once with a Work.

    Returns:
        A Work if `async_op`, else None.

    Raises:
        ArgumentError: The lists' lengths; the sizes of this rank's own entries; outputs that share memory.
        DTypeError: Dtypes that differ; not an array.
        MessageError: A rank sent less than its entry has room for.

    MPI_Isend and MPI_Irecv, as MPI_Alltoallv does it. Example:
        >>> import numpy as np, mpicoll as dist
        >>> n, r = dist.get_world_size(), dist.get_rank()
        >>> outputs = [np.zeros(1) for _ in range(n)]
        >>> dist.all_to_all(outputs, [np.array([10.0 * r + i]) for i in range(n)])
        >>> all(outputs[i][0] == 10 * i + r for i in range(n))
        True
    """
    pg = resolve(group)
    outputs = checks.output_arrays(output_tensor_list, "output_tensor_list", pg.size())
    inputs = checks.input_arrays(input_tensor_list, "input_tensor_list", pg.size())
    mine = inputs[pg.rank()]
    checks.same_dtypes(outputs, "output_tensor_list", mine, "this rank's own input")
    checks.same_dtypes(inputs, "input_tensor_list", mine, "this rank's own input")
    checks.same_count(outputs, "output_tensor_list", pg.rank(), mine, "this rank's own input")
    operation = pg.operation()
    direct.all_to_all(operation, outputs, inputs)
    return pg.carry_out(operation, "all_to_all", list(output_tensor_list), async_op)


@entry
def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Send the i-th part of a tensor to rank i, and receive one part from each rank in another tensor.

    Collective. Both are divided along their first dimension.

    Args:
        output: ``(sum(output_split_sizes), *S)``.
        input: ``(sum(input_split_sizes), *S)``.
        output_split_sizes: Rows from each rank; None for equal parts.
        input_split_sizes: Rows for each rank; None for equal parts.
        group: The group of n ranks; None is the default group.
        async_op: Return at once with a Work.

    Returns:
        A Work if `async_op`, else None.

    Raises:
        ArgumentError: Sizes that do not sum to the first dimension, or a dimension that n does not divide; an output
            that overlaps itself.
        DTypeError: Dtypes that differ; not an array.
        MessageError: A rank sent less than was expected of it.

    MPI_Isend and MPI_Irecv, as MPI_Alltoallv does it. Example:
        >>> import numpy as np, mpicoll as dist
        >>> n, r = dist.get_world_size(), dist.get_rank()
        >>> output = np.zeros(n)
        >>> dist.all_to_all_single(output, np.arange(n) + 10.0 * r)
        >>> bool((output == 10 * np.arange(n) + r).all())
        True
    """
    pg = resolve(group)
    target = checks.output_array(output, "output")
    source = checks.input_array(input, "input")
    checks.same_dtype(target, "output", source, "input")
    sizes = checks.splits(output_split_sizes, target, "output", pg.size())
    sent = checks.splits(input_split_sizes, source, "input", pg.size())
    checks.same_block(sizes[pg.rank()], sent[pg.rank()], source)
    operation = pg.operation()
    direct.all_to_all_single(operation, target, source, sizes, sent)
    return pg.carry_out(operation, "all_to_all_single", [output], async_op)


@entry
def barrier(
    group: Group = None, async_op: bool = False, device_ids: list[int] | None = None, timeout: Timeout = None
) -> Work | None:
    """Wait until every rank of the group has come here.

    Collective.

    Args:
        group: The group; None is the default group.
        async_op: Return at once with a Work.
        device_ids: Taken for the sake of torch's signature; of no use here.
        timeout: How long to wait, as a timedelta or in seconds; the group's by default.

    Returns:
        A Work if `async_op`, else None.

    Raises:
        CollectiveTimeoutError: It took longer. The group cannot be used any more.

    MPI_Ibarrier. Example:
        >>> import mpicoll as dist
        >>> dist.barrier()
    """
    pg = resolve(group)
    operation = pg.operation()
    direct.barrier(operation, pg.timeout if timeout is None else seconds(timeout))
    return pg.carry_out(operation, "barrier", [], async_op)


@entry
def monitored_barrier(group: Group = None, timeout: Timeout = None, wait_all_ranks: bool = False) -> None:
    """Wait until every rank of the group has come here, or name those that have not.

    Collective. For finding out who went another way: it is slower than `barrier`.

    Args:
        group: The group; None is the default group.
        timeout: How long to wait, as a timedelta or in seconds; the group's by default.
        wait_all_ranks: Name all the ranks that have not come, not the first of them alone.

    Raises:
        CollectiveTimeoutError: On every rank that came, if not all did. Rank 0 of the group names those that did not.

    MPI_Send and MPI_Improbe. Example:
        >>> import mpicoll as dist
        >>> dist.monitored_barrier(timeout=30)
    """
    pg = resolve(group)
    deadlines.monitored_barrier(pg, pg.timeout if timeout is None else seconds(timeout), wait_all_ranks)


all_gather_single = all_gather_into_tensor  # torch 2.13's name for it
