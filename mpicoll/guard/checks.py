"""The checks of arguments, which find a mistake on this rank before anything is sent.

Each takes what the user gave and returns what the operation needs of it, or raises with both values in the text.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

from mpicoll.data import layout
from mpicoll.data.arrays import Array, describe
from mpicoll.errors import ArgumentError, DTypeError, MpicollError, mismatch
from mpicoll.groups.group import ProcessGroup


def input_array(array: Any, name: str = "tensor", index: int | None = None) -> Array:
    """An array to read from: `name`, or the entry `index` of a list of that name."""
    try:
        return describe(array)
    except MpicollError as error:
        raise type(error)(f"{_label(name, index)}: {error}") from None


def output_array(array: Any, name: str = "tensor", index: int | None = None) -> Array:
    """An array to write to: not read-only, and no two elements in one place."""
    try:
        described = describe(array)
    except MpicollError as error:
        raise type(error)(f"{_label(name, index)}: {error}") from None
    if described.strides is None and described.writable:  # what most are
        return described
    return _check_output(described, True, name, index)


def in_place_array(array: Any, written: bool, name: str = "tensor", index: int | None = None) -> Array:
    """An array that is read on some ranks and `written` on others, and refused on all of them for the same overlap."""
    return _check_output(input_array(array, name, index), written, name, index)


def _check_output(described: Array, written: bool, name: str, index: int | None) -> Array:
    if written and not described.writable:
        raise ArgumentError(f"{_label(name, index)}: expected a writable array, got a read-only one. Pass a copy")
    if described.strides is not None and layout.overlaps_itself(described):
        raise ArgumentError(
            f"{_label(name, index)}: expected each element in a place of its own, got {described}, some of whose"
            " elements share memory (an expanded tensor?). Pass tensor.clone()"
        )
    return described


def input_arrays(arrays: Any, name: str, length: int) -> list[Array]:
    """One array to read from for each rank."""
    return [input_array(array, name, i) for i, array in enumerate(_sequence(arrays, name, length))]


def output_arrays(arrays: Any, name: str, length: int) -> list[Array]:
    """One array to write to for each rank, none sharing memory with another."""
    outputs = [output_array(array, name, i) for i, array in enumerate(_sequence(arrays, name, length))]
    _refuse_overlap(outputs, name)
    return outputs


def _label(name: str, index: int | None) -> str:
    # Made only where there is something to say: names in a call that is right cost nothing.
    return name if index is None else f"{name}[{index}]"


def arrays_of_any_length(arrays: Any, name: str) -> list[Any]:
    """A list of arrays, each of which is an operation of its own."""
    if not isinstance(arrays, (list, tuple)):
        raise ArgumentError(mismatch(name, "a list of tensors", type(arrays).__qualname__))
    if not arrays:
        raise ArgumentError(mismatch(f"length of {name}", "at least 1", 0))
    return list(arrays)


def _sequence(arrays: Any, name: str, length: int) -> Sequence[Any]:
    if not isinstance(arrays, (list, tuple)):
        raise ArgumentError(mismatch(name, f"a list of {length} tensors, one for each rank", type(arrays).__qualname__))
    if len(arrays) != length:
        raise ArgumentError(
            mismatch(f"length of {name}", length, len(arrays), "Give one tensor for each rank of the group")
        )
    return arrays


def _refuse_overlap(outputs: list[Array], name: str) -> None:
    found = _find_overlap(outputs, lambda i, j: True)
    if found is not None:
        _refuse_pair(name, *(_label(name, i) for i in found))


Part = tuple[int, Array]  # of several operations: the number of the operation, and an array of its


def apart(outputs: Sequence[Part], name: str, inputs: Sequence[Part], input_name: str) -> None:
    """The outputs of several operations at once: none in the memory of another, nor of another operation's input."""
    parts = [*outputs, *inputs]

    def matters(i: int, j: int) -> bool:
        return j < len(outputs) or (i < len(outputs) and parts[i][0] != parts[j][0])

    found = _find_overlap([array for _, array in parts], matters)
    if found is not None:
        one, other = (_label(name if i < len(outputs) else input_name, parts[i][0]) for i in found)
        _refuse_pair(name, one, other)


def _find_overlap(arrays: Sequence[Array], matters: Callable[[int, int], bool]) -> tuple[int, int] | None:
    """The numbers of two arrays that share memory, the lower one first, among those for which that matters."""
    by_address = sorted(
        ((*layout.bounds(array), i) for i, array in enumerate(arrays) if array.nbytes), key=lambda bounds: bounds[0]
    )
    for k, (_, high, i) in enumerate(by_address):
        for low, _, j in by_address[k + 1 :]:
            if low >= high:
                break
            one, other = sorted((i, j))
            if matters(one, other) and layout.share_memory(arrays[one], arrays[other]):
                return one, other
    return None


def _refuse_pair(name: str, one: str, other: str) -> None:
    raise ArgumentError(
        f"{name}: expected tensors with memory of their own, got {one} and {other} which share some. Pass clones"
    )


def same_dtype(array: Array, name: str, other: Array, other_name: str) -> None:
    """An array has the dtype of another."""
    if array.dtype.name != other.dtype.name:
        raise DTypeError(mismatch(f"dtype of {name}", f"{other.dtype.name} as of {other_name}", array.dtype.name))


def same_dtypes(arrays: Sequence[Array], name: str, other: Array, other_name: str) -> None:
    """Every array of a list has the dtype of another."""
    for i, array in enumerate(arrays):
        if array.dtype is not other.dtype:
            same_dtype(array, _label(name, i), other, other_name)


def same_count(arrays: Sequence[Array], name: str, index: int, other: Array, other_name: str) -> None:
    """The array that is this rank's in a list has as many elements as another."""
    array = arrays[index]
    if array.count != other.count:
        raise ArgumentError(
            mismatch(
                f"elements of {_label(name, index)}",
                f"{other.count} as of {other_name} {other}",
                f"{array.count} in {array}",
            )
        )


def count_times(array: Array, name: str, size: int, part: Array, part_name: str) -> None:
    """An array has as many elements as a part for each of `size` ranks."""
    if array.count != size * part.count:
        expected = f"{size * part.count} ({size} ranks times {part_name} {part})"
        raise ArgumentError(mismatch(f"elements of {name}", expected, f"{array.count} in {array}"))


def rank_in_group(group: ProcessGroup, rank: Any, group_rank: Any, name: str, default: int | None = None) -> int:
    """The group rank that ``src`` and ``group_src`` (or ``dst`` and ``group_dst``) mean; `default` is a global rank."""
    if rank is not None and group_rank is not None:
        raise ArgumentError(
            f"{name} and group_{name}: expected one of them, got {rank} and {group_rank}. Leave one out"
        )
    if group_rank is not None:
        return within(group, group_rank, f"group_{name}")
    if rank is None and default is None:
        raise ArgumentError(f"{name}: expected a rank, got neither {name} nor group_{name}")
    return _global(group, default if rank is None else rank, name)


def peer(group: ProcessGroup, rank: Any, group_rank: Any, name: str) -> int:
    """Like `rank_in_group`, but not this rank."""
    other = rank_in_group(group, rank, group_rank, name)
    if other == group.rank():
        raise ArgumentError(mismatch(name, "another rank", f"{other}, this rank itself", "Copy the tensor"))
    return other


def _global(group: ProcessGroup, rank: Any, name: str) -> int:
    number = whole(rank, name)
    try:
        return group.group_rank(number)
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error}. Give a global rank of the group, or group_{name}") from None


def within(group: ProcessGroup, rank: Any, name: str) -> int:
    """A rank of the group, by its number in it."""
    if not 0 <= whole(rank, name) < group.size():
        raise ArgumentError(mismatch(name, f"a rank of the group, from 0 to {group.size() - 1}", rank))
    return int(rank)


def whole(rank: Any, name: str) -> int:
    """An integer, of whatever type."""
    try:
        return operator.index(rank)
    except TypeError:
        raise ArgumentError(mismatch(name, "an integer", repr(rank))) from None


def only_on_root(arrays: Any, name: str, group: ProcessGroup, root: int, root_name: str) -> bool:
    """A list is given on the root and nowhere else. Returns whether this rank is the root."""
    at_root = group.rank() == root
    if at_root and arrays is None:
        raise ArgumentError(f"{name}: expected a list of {group.size()} on the {root_name}, rank {root}, got None")
    is_list = isinstance(arrays, (list, tuple))
    if not at_root and arrays is not None and not (is_list and not arrays):
        here = f"None on rank {group.rank()}, as the {root_name} is rank {root}"
        raise ArgumentError(mismatch(name, here, f"a list of {len(arrays)}" if is_list else type(arrays).__qualname__))
    return at_root


def same_length(arrays: Any, name: str, others: Sequence[Any], other_name: str) -> list[Any]:
    """A list as long as another."""
    listed = arrays_of_any_length(arrays, name)
    if len(listed) != len(others):
        raise ArgumentError(mismatch(f"length of {name}", f"{len(others)} as of {other_name}", len(listed)))
    return listed


def same_block(received: int, sent: int, array: Array) -> None:
    """The block that a rank sends to itself is as large as the one that it expects from itself."""
    if received != sent:
        size = array.dtype.itemsize
        raise ArgumentError(
            mismatch(
                "this rank's own block", f"{sent // size} elements, as it sends", f"{received // size} in the output"
            )
        )


def splits(sizes: Any, array: Array, name: str, group_size: int) -> list[int]:
    """The bytes of each rank's block of an array divided along its first dimension, evenly where `sizes` is None."""
    rows = array.shape[0] if array.shape else array.count
    row_bytes = array.nbytes // rows if rows else 0
    rows_of = [] if sizes is None else _whole_numbers(sizes, f"{name}_split_sizes")
    if not rows_of:
        if rows % group_size:
            raise ArgumentError(
                mismatch(
                    f"first dimension of {name}",
                    f"a multiple of the group's size {group_size}",
                    rows,
                    "Give split sizes",
                )
            )
        return layout.even_split(rows * row_bytes, group_size)
    if len(rows_of) != group_size:
        raise ArgumentError(mismatch(f"length of {name}_split_sizes", group_size, len(rows_of)))
    if min(rows_of) < 0:
        raise ArgumentError(mismatch(f"{name}_split_sizes", "no negative size", rows_of))
    if sum(rows_of) != rows:
        raise ArgumentError(
            mismatch(f"sum of {name}_split_sizes", f"{rows}, the first dimension of {name}", sum(rows_of))
        )
    return [size * row_bytes for size in rows_of]


def _whole_numbers(numbers: Any, name: str) -> list[int]:
    try:
        listed = list(numbers)
    except TypeError:
        raise ArgumentError(mismatch(name, "a list of integers", repr(numbers))) from None
    return [whole(number, name) for number in listed]


def group_ranks(ranks: Any, world_size: int) -> list[int]:
    """Global ranks for a new group: whole, within the world and each once."""
    listed = _whole_numbers(ranks, "ranks")
    for rank in listed:
        if not 0 <= rank < world_size:
            raise ArgumentError(mismatch("ranks", f"ranks from 0 to {world_size - 1}", rank))
    if len(set(listed)) != len(listed):
        twice = next(rank for rank in listed if listed.count(rank) > 1)
        raise ArgumentError(mismatch("ranks", "each rank once", f"{twice} more than once in {listed}"))
    if not listed:
        raise ArgumentError(mismatch("ranks", "at least one rank", "[]"))
    return listed


def bound_device(device_id: Any) -> Any:
    """The accelerator that ``device_id=`` names, as a torch.device; a number alone is one of this machine's kind."""
    if device_id is None:
        return None
    torch = sys.modules.get("torch")  # who has a device has torch
    accelerator = None if torch is None else torch.accelerator.current_accelerator(check_available=True)
    if torch is None or accelerator is None:
        raise ArgumentError(mismatch("device_id", "None, as torch finds no accelerator here", repr(device_id)))
    there = [torch.device(accelerator.type, index) for index in range(torch.accelerator.device_count())]
    device = next((device for device in there if device_id in (device, device.index)), None)
    if device is None:
        listed = ", ".join(map(str, there))
        raise ArgumentError(mismatch("device_id", f"a torch.device among {listed}", repr(device_id)))
    return device


def same_device(device_id: Any, default: ProcessGroup) -> Any:
    """As `bound_device`, for a group beside a default group that may be bound to one."""
    device = bound_device(device_id)
    if device is not None and default.bound_device_id not in (None, device):
        raise ArgumentError(mismatch("device_id", f"{default.bound_device_id}, as of the default group", device))
    return device


_BACKENDS = {"mpicoll", "mpi", "gloo", "nccl", "ucc", "xccl", "undefined"}


def names(backend: Any, description: Any = None) -> None:
    """What a group is made with: a backend, and a name for people.

    A backend is one of torch's names, alone or for each kind of device: ``"nccl"``, ``"cpu:gloo,cuda:nccl"``.
    """
    given = "" if backend is None else str(backend)
    if not {part.rpartition(":")[2].lower() for part in (given or "mpicoll").split(",")} <= _BACKENDS:
        known = ", ".join(sorted(_BACKENDS - {"undefined"}))
        raise ArgumentError(mismatch("backend", f"one of {known}", repr(backend)))
    if not isinstance(description, (str, type(None))):
        raise ArgumentError(mismatch("group_desc", "a name or None", repr(description)))
