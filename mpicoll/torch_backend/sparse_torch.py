"""The sum of sparse tensors, which have as many values on each rank as they like. Imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mpicoll.api import collectives
from mpicoll.api.entry import entry
from mpicoll.data.reduction import ReduceOp
from mpicoll.errors import ArgumentError, mismatch
from mpicoll.transport.work import Work

if TYPE_CHECKING:
    from mpicoll.groups.group import ProcessGroup


@entry
def all_reduce(group: ProcessGroup, tensor: torch.Tensor, op: ReduceOp, async_op: bool) -> Work | None:
    """Sum a sparse COO tensor over all ranks, in place; the result is coalesced. It is done when this returns.

    Args:
        group: The group.
        tensor: ``(*S)``; the same shape and dtype, and as many sparse dimensions, on every rank.
        op: SUM.
        async_op: Return a Work, which is done.

    Raises:
        ArgumentError: An operation other than SUM.

    MPI_Allgather of the numbers of values, then MPI_Allgatherv of their places and of the values.
    """
    if op != ReduceOp.SUM:
        raise ArgumentError(mismatch("op for a sparse tensor", "SUM", op))
    mine = tensor.coalesce()
    indices, values = mine.indices().contiguous(), mine.values().contiguous()
    counts = torch.zeros(group.size(), dtype=torch.int64)
    collectives.all_gather_into_tensor(counts, torch.tensor([indices.shape[1]]), group)
    all_indices = [indices.new_empty(indices.shape[0], int(count)) for count in counts]
    all_values = [values.new_empty(int(count), *values.shape[1:]) for count in counts]
    collectives.all_gather(all_indices, indices, group)
    collectives.all_gather(all_values, values, group)
    total = torch.sparse_coo_tensor(torch.cat(all_indices, 1), torch.cat(all_values), tensor.shape)
    with torch.no_grad():
        tensor.copy_(total.coalesce())
    if not async_op:
        return None
    work = group.work_class(group.where("all_reduce"), [tensor])
    work.finish()
    return work
