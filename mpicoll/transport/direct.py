"""The collectives that move, each by one call of MPI's where its counts allow, in bytes.

Which algorithm is taken depends on sizes that every rank of the group knows, never on what one rank alone sees (its
strides, its addresses): else the ranks would call different functions.
"""

from __future__ import annotations

from mpicoll.data.arrays import Array
from mpicoll.data.layout import Region, displacements, even_split, pieces
from mpicoll.mpi import library
from mpicoll.transport.operation import Operation
from mpicoll.transport.steps import Barrier

# Blocks of a list that have up to so many bytes on average go through one contiguous buffer; larger ones go straight to
# their places.
_PACKED = 1 << 16


def barrier(op: Operation, limit: float) -> None:
    """Wait for every rank, for so many seconds at most (MPI_Ibarrier)."""
    op.limit = limit
    op.steps.append(Barrier(limit))


def broadcast(op: Operation, array: Array, root: int) -> None:
    """The root's elements for everybody (MPI_Bcast)."""
    region = op.source(array) if op.place.rank == root else op.target(array)
    broadcast_region(op, region, root)


def broadcast_region(op: Operation, region: Region, root: int) -> None:
    """A block of the root's for everybody, in calls as large as MPI takes."""
    for first, count in pieces(region.nbytes, op.place.limit):
        op.call("Bcast", op.bytes_of(region.part(first, count)), root)


def all_gather_single(op: Operation, output: Array, array: Array) -> None:
    """Every rank's elements, one after the other, for everybody (MPI_Allgather)."""
    target = op.target(output)
    sizes = even_split(target.nbytes, op.place.size)
    in_place = array.contiguous and array.pointer == target.pointer + op.place.rank * array.nbytes
    source = op.source(array, () if in_place else (output,))
    if target.nbytes > op.place.limit:
        _broadcast_blocks(op, source, _cut(target, sizes))
    else:
        _gather_to_all(op, source, target, sizes)


def all_gather(op: Operation, outputs: list[Array], array: Array) -> None:
    """Every rank's elements, each in an array of its own, for everybody (MPI_Allgather, MPI_Allgatherv, MPI_Bcast)."""
    sizes = [output.nbytes for output in outputs]
    total = sum(sizes)
    if total > min(_PACKED * len(outputs), op.place.limit):
        targets = [op.target(output) for output in outputs]
        _broadcast_blocks(op, op.source(array), targets)
        return
    packed = op.scratch(total)
    _gather_to_all(op, op.source(array), packed, sizes)
    for output, block in zip(outputs, _cut(packed, sizes), strict=True):
        op.copy(block, op.target(output))


def _gather_to_all(op: Operation, source: Region, target: Region, sizes: list[int]) -> None:
    mine = target.part(displacements(sizes)[op.place.rank], sizes[op.place.rank])
    sent = library.MPI.IN_PLACE if source.same_as(mine) else op.bytes_of(source)
    if len(set(sizes)) == 1:
        op.call("Allgather", sent, [target.buffer(), sizes[0], library.MPI.BYTE])
    else:
        op.call("Allgatherv", sent, [target.buffer(), sizes, displacements(sizes), library.MPI.BYTE])


def _broadcast_blocks(op: Operation, source: Region, targets: list[Region]) -> None:
    op.copy(source, targets[op.place.rank])
    for root, block in enumerate(targets):
        broadcast_region(op, block, root)


def gather(op: Operation, array: Array, outputs: list[Array], root: int) -> None:
    """Every rank's elements, for the root alone."""
    source = op.source(array)
    receives = [(rank, op.target(output)) for rank, output in enumerate(outputs)]
    op.exchange([(root, source)], receives)


def scatter(op: Operation, output: Array, inputs: list[Array], root: int) -> None:
    """A block of the root's for each rank."""
    sends = [(rank, op.source(array, (output,))) for rank, array in enumerate(inputs)]
    op.exchange(sends, [(root, op.target(output))])


def all_to_all(op: Operation, outputs: list[Array], inputs: list[Array]) -> None:
    """A block from every rank to every rank."""
    sends = [(rank, op.source(array, outputs)) for rank, array in enumerate(inputs)]
    op.exchange(sends, [(rank, op.target(output)) for rank, output in enumerate(outputs)])


def all_to_all_single(
    op: Operation, output: Array, array: Array, output_sizes: list[int], input_sizes: list[int]
) -> None:
    """The same with the blocks one after the other in one array; the sizes are in bytes."""
    sends = list(enumerate(_cut(op.source(array, (output,)), input_sizes)))
    op.exchange(sends, list(enumerate(_cut(op.target(output), output_sizes))))


def _cut(region: Region, sizes: list[int]) -> list[Region]:
    return [region.part(first, size) for first, size in zip(displacements(sizes), sizes, strict=True)]
