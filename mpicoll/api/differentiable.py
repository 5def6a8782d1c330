"""The collectives as functions with gradients, for torch tensors.

``mpicoll.differentiable.all_reduce(x)`` returns the sum and leaves x as it is. The names and signatures are those of
``torch.distributed.nn.functional``. What the ranks compute together is one function of all their inputs; ``backward``
is collective too, and gives each rank the gradient of the sum of all ranks' losses. The reductions have gradients for
SUM, AVG and PREMUL_SUM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpicoll.api import collectives, reductions
from mpicoll.api.entry import Group, entry
from mpicoll.data.arrays import is_torch
from mpicoll.data.reduction import ReduceOp
from mpicoll.errors import DTypeError, mismatch
from mpicoll.groups.group import ProcessGroup
from mpicoll.groups.world import resolve
from mpicoll.guard import checks

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
]


@entry
def broadcast(tensor: Tensor, src: int, group: Group = None) -> Tensor:
    """The source rank's tensor, on every rank. The source gets the sum of all ranks' gradients.

    Args:
        tensor: On other ranks than the source it tells shape and dtype.
        src: The source's global rank.
        group: The group; None is the default group.

    Example:
        >>> import torch, mpicoll as dist
        >>> x = torch.ones(1, requires_grad=True)
        >>> dist.differentiable.broadcast(x, src=0).sum().backward()
        >>> float(x.grad) == (dist.get_world_size() if dist.get_rank() == 0 else 0)
        True
    """
    pg, (given,) = _enter(group, tensor)

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        output = inputs[0].detach().clone()
        collectives.broadcast(output, src, pg)
        return [output]

    def adjoint(gradients: Sequence[Tensor]) -> list[Tensor]:
        total = _torch().copy(gradients[0])
        reductions.reduce(total, src, group=pg)
        return [total if pg.rank() == pg.group_rank(src) else total.zero_()]

    return _apply(run, adjoint, [given])[0]


@entry
def all_reduce(tensor: Tensor, op: Any = ReduceOp.SUM, group: Group = None) -> Tensor:
    """The reduction of every rank's tensor, on every rank.

    Args:
        tensor: Of the same shape and dtype on every rank.
        op: SUM, AVG or PREMUL_SUM; others where no gradient is asked for.
        group: The group; None is the default group.

    Example:
        >>> import torch, mpicoll as dist
        >>> x = torch.ones(1, requires_grad=True)
        >>> dist.differentiable.all_reduce(x).sum().backward()
        >>> float(x.grad) == dist.get_world_size()
        True
    """
    pg, (given,) = _enter(group, tensor)
    scale = _torch().scale(op, pg.size(), [given])

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        output = _torch().copy(inputs[0])
        reductions.all_reduce(output, op, pg)
        return [output]

    def adjoint(gradients: Sequence[Tensor]) -> list[Tensor]:
        total = _torch().copy(gradients[0])
        reductions.all_reduce(total, group=pg)
        return [total * scale]

    return _apply(run, adjoint, [given])[0]


@entry
def reduce(tensor: Tensor, dst: int, op: Any = ReduceOp.SUM, group: Group = None) -> Tensor:
    """The reduction of every rank's tensor, on one rank. Elsewhere the result is a copy of the input without a meaning.

    Args:
        tensor: Of the same shape and dtype on every rank.
        dst: The destination's global rank. Only the gradient of its result counts.
        op: As of `all_reduce`.
        group: The group; None is the default group.

    Example:
        >>> import torch, mpicoll as dist
        >>> x = torch.ones(1, requires_grad=True)
        >>> dist.differentiable.reduce(x, dst=0).sum().backward()
        >>> float(x.grad)
        1.0
    """
    pg, (given,) = _enter(group, tensor)
    scale = _torch().scale(op, pg.size(), [given])

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        output = _torch().copy(inputs[0])
        reductions.reduce(output, dst, op, pg)
        return [output]

    def adjoint(gradients: Sequence[Tensor]) -> list[Tensor]:
        total = _torch().copy(gradients[0])
        collectives.broadcast(total, dst, pg)
        return [total * scale]

    return _apply(run, adjoint, [given])[0]


@entry
def all_gather(tensor: Tensor, group: Group = None) -> tuple[Tensor, ...]:
    """Every rank's tensor, on every rank.

    Args:
        tensor: Of the same shape and dtype on every rank.
        group: The group; None is the default group.

    Example:
        >>> import torch, mpicoll as dist
        >>> x = torch.ones(1, requires_grad=True)
        >>> torch.cat(dist.differentiable.all_gather(x)).sum().backward()
        >>> float(x.grad) == dist.get_world_size()
        True
    """
    pg, (given,) = _enter(group, tensor)

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        outputs = [_torch().like(inputs[0]) for _ in range(pg.size())]
        collectives.all_gather(outputs, inputs[0], pg)
        return outputs

    def adjoint(gradients: Sequence[Tensor]) -> list[Tensor]:
        total = _torch().like(gradients[0])
        reductions.reduce_scatter(total, list(gradients), group=pg)
        return [total]

    return _apply(run, adjoint, [given])


@entry
def all_gather_into_tensor(output_tensor: Tensor, input_tensor: Tensor, group: Group = None) -> Tensor:
    """Every rank's tensor in one tensor, on every rank.

    Args:
        output_tensor: Filled with the result, which is returned: as of `mpicoll.all_gather_into_tensor`.
        input_tensor: Of the same shape and dtype on every rank.
        group: The group; None is the default group.

    Example:
        >>> import torch, mpicoll as dist
        >>> x = torch.ones(1, requires_grad=True)
        >>> dist.differentiable.all_gather_into_tensor(torch.zeros(dist.get_world_size()), x).sum().backward()
        >>> float(x.grad) == dist.get_world_size()
        True
    """
    pg, (output, given) = _enter(group, output_tensor, input_tensor)

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        collectives.all_gather_into_tensor(output.detach(), inputs[0], pg)
        return [output.detach()]

    def adjoint(gradients: Sequence[Tensor]) -> list[Tensor]:
        total = _torch().like(given)
        reductions.reduce_scatter_tensor(total, gradients[0], group=pg)
        return [total]

    return _apply(run, adjoint, [given])[0]


@entry
def gather(tensor: Tensor, dst: int = 0, group: Group = None) -> tuple[Tensor, ...]:
    """Every rank's tensor, on one rank; elsewhere zeros.

    Args:
        tensor: Of the same shape and dtype on every rank.
        dst: The destination's global rank. Only the gradients of its results count.
        group: The group; None is the default group.

    Example:
        >>> import torch, mpicoll as dist
        >>> x = torch.ones(1, requires_grad=True)
        >>> torch.cat(dist.differentiable.gather(x)).sum().backward()
        >>> float(x.grad)
        1.0
    """
    pg, (given,) = _enter(group, tensor)
    at_root = pg.rank() == checks.rank_in_group(pg, dst, None, "dst")

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        outputs = [_torch().like(inputs[0]).zero_() for _ in range(pg.size())]
        collectives.gather(inputs[0], outputs if at_root else None, dst, pg)
        return outputs

    def adjoint(gradients: Sequence[Tensor]) -> list[Tensor]:
        total = _torch().like(given)
        collectives.scatter(total, list(gradients) if at_root else None, dst, pg)
        return [total]

    return _apply(run, adjoint, [given])


@entry
def scatter(tensors: Sequence[Tensor], src: int = 0, group: Group = None) -> Tensor:
    """This rank's tensor of the source's list.

    Args:
        tensors: One for each rank. On other ranks than the source this rank's entry tells shape and dtype.
        src: The source's global rank.
        group: The group; None is the default group.

    Example:
        >>> import torch, mpicoll as dist
        >>> xs = [torch.ones(1, requires_grad=True) for _ in range(dist.get_world_size())]
        >>> dist.differentiable.scatter(xs).sum().backward()
        >>> float(xs[0].grad) == (dist.get_rank() == 0)
        True
    """
    pg, given = _enter(group, *checks.arrays_of_any_length(tensors, "tensors"))
    checks.input_arrays(given, "tensors", pg.size())
    at_root = pg.rank() == checks.rank_in_group(pg, src, None, "src")

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        output = _torch().like(inputs[pg.rank()])
        collectives.scatter(output, list(inputs) if at_root else None, src, pg)
        return [output]

    def adjoint(gradients: Sequence[Tensor]) -> list[Tensor]:
        totals = [_torch().like(tensor).zero_() for tensor in given]
        collectives.gather(gradients[0], totals if at_root else None, src, pg)
        return totals

    return _apply(run, adjoint, given)[0]


@entry
def reduce_scatter(output: Tensor, input_list: Sequence[Tensor], op: Any = ReduceOp.SUM, group: Group = None) -> Tensor:
    """The reduction of every rank's i-th tensor, on rank i.

    Args:
        output: Filled with the result, which is returned.
        input_list: One for each rank; alike on all ranks.
        op: As of `all_reduce`.
        group: The group; None is the default group.

    Example:
        >>> import torch, mpicoll as dist
        >>> xs = [torch.ones(1, requires_grad=True) for _ in range(dist.get_world_size())]
        >>> dist.differentiable.reduce_scatter(torch.zeros(1), xs).sum().backward()
        >>> float(xs[-1].grad)
        1.0
    """
    pg, (output, *given) = _enter(group, output, *checks.arrays_of_any_length(input_list, "input_list"))
    scale = _torch().scale(op, pg.size(), given)

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        reductions.reduce_scatter(output.detach(), list(inputs), op, pg)
        return [output.detach()]

    def adjoint(gradients: Sequence[Tensor]) -> list[Tensor]:
        totals = [_torch().like(tensor) for tensor in given]
        collectives.all_gather(totals, gradients[0], pg)
        return [total * scale for total in totals]

    return _apply(run, adjoint, given)[0]


@entry
def reduce_scatter_tensor(output: Tensor, input: Tensor, op: Any = ReduceOp.SUM, group: Group = None) -> Tensor:
    """The reduction of the i-th of n equal parts of every rank's tensor, on rank i.

    Args:
        output: Filled with the result, which is returned.
        input: As of `mpicoll.reduce_scatter_tensor`.
        op: As of `all_reduce`.
        group: The group; None is the default group.

    Example:
        >>> import torch, mpicoll as dist
        >>> x = torch.ones(dist.get_world_size(), requires_grad=True)
        >>> dist.differentiable.reduce_scatter_tensor(torch.zeros(1), x).sum().backward()
        >>> float(x.grad[-1])
        1.0
    """
    pg, (target, given) = _enter(group, output, input)
    scale = _torch().scale(op, pg.size(), [given])

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        reductions.reduce_scatter_tensor(target.detach(), inputs[0], op, pg)
        return [target.detach()]

    def adjoint(gradients: Sequence[Tensor]) -> list[Tensor]:
        total = _torch().like(given)
        collectives.all_gather_into_tensor(total, gradients[0], pg)
        return [total * scale]

    return _apply(run, adjoint, [given])[0]


@entry
def all_to_all(
    output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: Group = None
) -> tuple[Tensor, ...]:
    """A tensor from every rank, which each sent one to every rank.

    Args:
        output_tensor_list: Filled with the results, which are returned: as of `mpicoll.all_to_all`.
        input_tensor_list: One for each rank.
        group: The group; None is the default group.

    Example:
        >>> import torch, mpicoll as dist
        >>> xs = [torch.ones(1, requires_grad=True) for _ in range(dist.get_world_size())]
        >>> torch.cat(dist.differentiable.all_to_all([torch.zeros(1) for _ in xs], xs)).sum().backward()
        >>> float(xs[-1].grad)
        1.0
    """
    pg, given = _enter(group, *checks.arrays_of_any_length(input_tensor_list, "input_tensor_list"))
    _, outputs = _enter(group, *checks.arrays_of_any_length(output_tensor_list, "output_tensor_list"))

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        collectives.all_to_all([output.detach() for output in outputs], list(inputs), pg)
        return [output.detach() for output in outputs]

    def adjoint(gradients: Sequence[Tensor]) -> list[Tensor]:
        totals = [_torch().like(tensor) for tensor in given]
        collectives.all_to_all(totals, list(gradients), pg)
        return totals

    return _apply(run, adjoint, given)


@entry
def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Group = None,
) -> Tensor:
    """A part from every rank, which each sent one part of a tensor to every rank.

    Args:
        output: Filled with the result, which is returned: as of `mpicoll.all_to_all_single`.
        input: Its parts go to the ranks.
        output_split_sizes: Rows from each rank; None for equal parts.
        input_split_sizes: Rows for each rank; None for equal parts.
        group: The group; None is the default group.

    Example:
        >>> import torch, mpicoll as dist
        >>> x = torch.ones(dist.get_world_size(), requires_grad=True)
        >>> dist.differentiable.all_to_all_single(torch.zeros(len(x)), x).sum().backward()
        >>> float(x.grad[-1])
        1.0
    """
    pg, (target, given) = _enter(group, output, input)

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        collectives.all_to_all_single(target.detach(), inputs[0], output_split_sizes, input_split_sizes, pg)
        return [target.detach()]

    def adjoint(gradients: Sequence[Tensor]) -> list[Tensor]:
        total = _torch().like(given)
        collectives.all_to_all_single(total, gradients[0], input_split_sizes, output_split_sizes, pg)
        return [total]

    return _apply(run, adjoint, [given])[0]


def _enter(group: Group, *tensors: Any) -> tuple[ProcessGroup, list[Tensor]]:
    pg = resolve(group)
    for tensor in tensors:
        if not is_torch(tensor):
            raise DTypeError(mismatch("tensor", "a torch tensor, which can have a gradient", type(tensor).__qualname__))
    return pg, list(tensors)


def _apply(run: Any, adjoint: Any, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    from mpicoll.api import autograd_torch

    return autograd_torch.apply(run, adjoint, inputs)


def _torch() -> Any:
    from mpicoll.api import autograd_torch

    return autograd_torch
