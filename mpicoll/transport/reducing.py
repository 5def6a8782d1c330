"""The collectives that reduce: by MPI's reductions, or by folding every rank's elements in the order of the ranks.

A reduction works on `work`, a contiguous numpy array of the dtype that MPI reduces: a view of the user's elements where
they are contiguous and MPI can reduce them, else scratch. Buffers are cut by rules that depend on dtype, operation and
number of elements only, which every rank knows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mpicoll.data.arrays import Array, at_address
from mpicoll.data.layout import displacements, pieces
from mpicoll.data.reduction import Numpy, Reduction
from mpicoll.mpi import library
from mpicoll.transport.operation import Operation, Place

# Elements of a piece where each needs memory beside it: converted, or gathered from all the ranks.
_PIECE = 1 << 18


def all_reduce(op: Operation, array: Array, how: Reduction) -> None:
    """The reduction of every rank's elements, in place, for everybody (MPI_Allreduce)."""
    if not array.count:
        return  # as on every other rank, whatever its strides
    if is_one_call(op.place, array, how):
        op.call("Allreduce", library.MPI.IN_PLACE, [op.buffer_of(array), array.count, how.mpi_type], how.mpi_op)
    elif array.contiguous and not how.widens:
        work = _view(op, array, how)
        _transform(op, how.before, work)
        _all_reduce_work(op, work, how)
        _finish(op, how, work)
    elif array.contiguous:
        # Piece by piece, so that the converted elements never need memory for all of them.
        room = _scratch(op, min(array.count, _piece(op, how)), how.work)
        for first, count in pieces(array.count, _piece(op, how)):
            part, work = _part(array, first, count), room[:count]
            op.local(partial(how.load, part, work))
            _transform(op, how.before, work)
            _all_reduce_work(op, work, how)
            _finish(op, how, work)
            op.local(partial(how.store, work, part))
    else:
        work = _loaded(op, array, how)
        _all_reduce_work(op, work, how)
        _finish(op, how, work)
        op.local(partial(how.store, work, array))


def is_one_call(place: Place, array: Array, how: Reduction) -> bool:
    """Whether an all_reduce is a single call in which MPI reduces the elements where they are."""
    return (
        array.contiguous
        and how.plain
        and 0 < array.count <= place.limit
        and not (place.deterministic and how.folds != "never")
    )


def reduce(op: Operation, array: Array, how: Reduction, root: int) -> None:
    """The reduction of every rank's elements, in place for the root; the others' stay as they are (MPI_Reduce)."""
    at_root = op.place.rank == root
    in_place = array.contiguous and not how.widens and (at_root or how.before is None)
    work = _view(op, array, how) if in_place else _loaded(op, array, how)
    if in_place:
        _transform(op, how.before, work)
    _reduce_work(op, work, work if at_root else None, how, root)
    if at_root:
        _finish(op, how, work)
        if not in_place:
            op.local(partial(how.store, work, array))


def reduce_scatter(op: Operation, output: Array, inputs: list[Array], counts: list[int], how: Reduction) -> None:
    """The reduction of every rank's inputs, of which each rank gets its block (MPI_Reduce_scatter, MPI_Reduce).

    `inputs` lie one after the other; `counts` are the elements of each rank's block.
    """
    sent = _inputs(op, output, inputs, how)
    direct = output.contiguous and not how.widens
    result = _view(op, output, how) if direct else _scratch(op, counts[op.place.rank], how.work)
    if sum(counts) > op.place.limit or _folds(op, how):
        for root, (first, count) in enumerate(zip(displacements(counts), counts, strict=True)):
            block = sent[first : first + count]
            if root == op.place.rank:
                op.local(partial(np.copyto, result, block))
                _reduce_work(op, result, result, how, root)
            else:
                _reduce_work(op, block, None, how, root)
    elif len(set(counts)) == 1:
        # mpi4py takes the count of one block on both sides.
        op.call("Reduce_scatter_block", [sent, result.size, how.mpi_type], _spec(result, how), how.mpi_op)
    else:
        op.call("Reduce_scatter", _spec(sent, how), _spec(result, how), counts, how.mpi_op)
    _finish(op, how, result)
    if not direct:
        op.local(partial(how.store, result, output))


def _inputs(op: Operation, output: Array, inputs: list[Array], how: Reduction) -> Numpy:
    if len(inputs) == 1 and inputs[0].contiguous and not how.widens and how.before is None:
        region = op.source(inputs[0], (output,))
        return at_address(region.pointer, how.work, (inputs[0].count,))
    work = _scratch(op, sum(array.count for array in inputs), how.work)
    first = 0
    for array in inputs:
        op.local(partial(how.load, array, work[first : first + array.count]))
        first += array.count
    _transform(op, how.before, work)
    return work


def _all_reduce_work(op: Operation, work: Numpy, how: Reduction) -> None:
    """Steps that leave the reduction of every rank's `work` in `work`."""
    room = _fold_room(op, how, work.size)
    for first, count in pieces(work.size, _piece(op, how)):
        part = work[first : first + count]
        if room is not None:
            gathered = room[: op.place.size * count]
            op.call("Allgather", _as_bytes(part), _blocks(gathered, part))
            op.local(partial(_fold, gathered, part, how.fold))
        else:
            op.call("Allreduce", library.MPI.IN_PLACE, _spec(part, how), how.mpi_op)


def _reduce_work(op: Operation, work: Numpy, result: Numpy | None, how: Reduction, root: int) -> None:
    """Steps that leave the reduction of every rank's `work` in the root's; `result` is it there and None elsewhere."""
    at_root = result is not None
    room = _fold_room(op, how, work.size) if at_root else None
    for first, count in pieces(work.size, _piece(op, how)):
        part = work[first : first + count]
        if room is not None:
            gathered = room[: op.place.size * count]
            op.call("Gather", _as_bytes(part), _blocks(gathered, part), root)
            op.local(partial(_fold, gathered, part, how.fold))
        elif _folds(op, how):
            op.call("Gather", _as_bytes(part), None, root)
        elif at_root:
            op.call("Reduce", library.MPI.IN_PLACE, _spec(part, how), how.mpi_op, root)
        else:
            op.call("Reduce", _spec(part, how), None, how.mpi_op, root)


def _piece(op: Operation, how: Reduction) -> int:
    if _folds(op, how):
        # Gathered as bytes: the count that MPI sees is in bytes.
        return max(1, min(_PIECE // op.place.size, op.place.limit // how.work.itemsize))
    return min(_PIECE, op.place.limit) if how.widens else op.place.limit


def _fold_room(op: Operation, how: Reduction, count: int) -> Numpy | None:
    """Memory for every rank's piece, which all pieces use in turn; None where MPI reduces."""
    return _scratch(op, op.place.size * min(count, _piece(op, how)), how.work) if _folds(op, how) else None


def _folds(op: Operation, how: Reduction) -> bool:
    return how.folds == "always" or (how.folds == "perhaps" and op.place.deterministic)


def _fold(gathered: Numpy, result: Numpy, fold: Callable[..., Any]) -> None:
    rows = gathered.reshape(-1, result.size)
    with np.errstate(all="ignore"):
        np.copyto(result, rows[0])
        for row in rows[1:]:
            fold(result, row, out=result)


def _loaded(op: Operation, array: Array, how: Reduction) -> Numpy:
    work = _scratch(op, array.count, how.work)
    op.local(partial(how.load, array, work))
    _transform(op, how.before, work)
    return work


def _transform(op: Operation, change: Callable[[Numpy], None] | None, work: Numpy) -> None:
    if change is not None:
        op.local(partial(_quietly, change, work))


def _finish(op: Operation, how: Reduction, work: Numpy) -> None:
    if how.after is not None:
        op.local(partial(_quietly, how.after, work, op.place.size))


def _quietly(change: Callable[..., None], *arguments: Any) -> None:
    with np.errstate(all="ignore"):  # as torch does, and MPI
        change(*arguments)


def _view(op: Operation, array: Array, how: Reduction) -> Numpy:
    region = op.source(array)
    return at_address(region.pointer, how.work, (array.count,))


def _part(array: Array, first: int, count: int) -> Array:
    pointer = array.pointer + first * array.dtype.itemsize
    return Array(array.owner, array.kind, array.dtype, (count,), pointer, count)


def _scratch(op: Operation, count: int, dtype: np.dtype[Any]) -> Numpy:
    """A numpy array that lives as long as the operation."""
    return op.scratch(count * dtype.itemsize).numpy().view(dtype)


def _spec(work: Numpy, how: Reduction) -> list[Any]:
    return [work, work.size, how.mpi_type]


def _as_bytes(work: Numpy) -> list[Any]:
    return [work.view(np.uint8), work.nbytes, library.MPI.BYTE]


def _blocks(gathered: Numpy, part: Numpy) -> list[Any]:
    return [gathered.view(np.uint8), part.nbytes, library.MPI.BYTE]
