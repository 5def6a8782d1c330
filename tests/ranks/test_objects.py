"""Python objects: values, sizes, arrays inside them, lists of wrong length, and ranks that can not pickle."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest


class Unpicklable:
    """Says so when it is pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not this one")


def refuse_to_load() -> None:
    raise RuntimeError("not here")


class Unloadable:
    """Is pickled and can not be brought back."""

    def __reduce__(self) -> Any:
        return refuse_to_load, ()


OBJECTS: dict[str, Callable[[int], Any]] = {
    "none": lambda r: None,
    "number": lambda r: 10**30 + r,
    "text": lambda r: "ä" * r,
    "bytes": lambda r: bytes(range(256)) * r,
    "nested": lambda r: {"rank": r, "list": [r, (r, {r})], "deep": {"er": [None, True, 1.5j]}},
    "function": lambda r: len,
    "exception": lambda r: type(ValueError(r)),
    "large": lambda r: "x" * (300_000 * (r + 1)),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_all_gather_object(dist: ModuleType, rank: int, size: int, kind: str) -> None:
    got: list[Any] = ["?"] * size
    assert dist.all_gather_object(got, OBJECTS[kind](rank)) is None
    assert got == [OBJECTS[kind](r) for r in range(size)]


@pytest.mark.parametrize("kind", OBJECTS)
def test_gather_object(dist: ModuleType, rank: int, size: int, kind: str) -> None:
    last = size - 1
    got: list[Any] | None = ["?"] * size if rank == last else None
    assert dist.gather_object(OBJECTS[kind](rank), got, dst=last) is None
    assert got == ([OBJECTS[kind](r) for r in range(size)] if rank == last else None)


@pytest.mark.parametrize("kind", OBJECTS)
def test_broadcast_object_list(dist: ModuleType, rank: int, size: int, kind: str) -> None:
    last = size - 1
    objects = [OBJECTS[kind](last), "second", rank] if rank == last else [None, None, "mine"]
    assert dist.broadcast_object_list(objects, src=last) is None
    assert objects == [OBJECTS[kind](last), "second", last]


@pytest.mark.parametrize("kind", OBJECTS)
def test_scatter_object_list(dist: ModuleType, rank: int, size: int, kind: str) -> None:
    last = size - 1
    got: list[Any] = ["?", "kept"]
    everyones = [OBJECTS[kind](r) for r in range(size)] if rank == last else None
    assert dist.scatter_object_list(got, everyones, src=last) is None
    assert got == [OBJECTS[kind](rank), "kept"]


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("use_batch", [False, True])
def test_send_and_receive_object_lists(dist: ModuleType, rank: int, kind: str, use_batch: bool) -> None:
    made = [OBJECTS[kind](3), "second"]
    if rank == 0:
        assert dist.send_object_list(made, dst=1, use_batch=use_batch) is None
    elif rank == 1:
        got: list[Any] = [None, None]
        assert dist.recv_object_list(got, src=0, use_batch=use_batch) == 0
        assert got == made


@pytest.mark.ranks(min=2)
def test_receiving_objects_from_anybody(dist: ModuleType, rank: int, size: int) -> None:
    if rank == 0:
        got: dict[int, Any] = {}
        for _ in range(size - 1):
            objects: list[Any] = [None]
            source = dist.recv_object_list(objects)
            got[source] = objects[0]
        assert got == {r: {"from": r} for r in range(1, size)}
    else:
        dist.send_object_list([{"from": rank}], dst=0)


@pytest.mark.ranks(min=3)
def test_in_a_group_by_either_numbering(dist: ModuleType, rank: int, size: int) -> None:
    last = size - 1
    group = dist.new_group([1, last])
    if rank in (1, last):
        gathered: list[Any] = [None, None]
        dist.all_gather_object(gathered, rank, group=group)
        to_last: list[Any] | None = [None, None] if rank == last else None
        dist.gather_object(rank, to_last, group_dst=1, group=group)
        first, second = [rank], [rank]
        dist.broadcast_object_list(first, src=last, group=group)
        dist.broadcast_object_list(second, group_src=0, group=group)
        part: list[Any] = [None]
        dist.scatter_object_list(part, ["a", "b"] if rank == 1 else None, group_src=0, group=group)
        message: list[Any] = ["hello"] if rank == 1 else [None]
        if rank == 1:
            dist.send_object_list(message, group_dst=1, group=group)
        else:
            assert dist.recv_object_list(message, group_src=0, group=group) == 1
        assert gathered == [1, last]
        assert to_last == ([1, last] if rank == last else None)
        assert (first, second) == ([last], [1])
        assert part == ["a" if rank == 1 else "b"]
        assert message == ["hello"]
    dist.destroy_process_group(group)


def test_the_first_rank_is_the_default_root(dist: ModuleType, rank: int, size: int) -> None:
    objects = [rank]
    dist.broadcast_object_list(objects)
    part: list[Any] = [None]
    dist.scatter_object_list(part, list(range(size)) if rank == 0 else None)
    gathered: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered)
    assert (objects, part, gathered) == ([0], [rank], list(range(size)) if rank == 0 else None)


# What is refused


@pytest.mark.ranks(1)
@pytest.mark.parametrize("wrong", [[], [None, None], None, (None,)], ids=str)
def test_lists_of_the_wrong_length_are_refused(dist: ModuleType, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^all_gather_object\("):
        dist.all_gather_object(wrong, 1)
    with pytest.raises(ValueError, match=r"^gather_object\("):
        dist.gather_object(1, wrong, dst=0)
    with pytest.raises(ValueError, match=r"^scatter_object_list\("):
        dist.scatter_object_list([None], wrong if not isinstance(wrong, tuple) else 5, src=0)


@pytest.mark.parametrize("wrong", [[], None, 5], ids=str)
def test_a_scatter_with_no_place_for_its_object_is_refused(dist: ModuleType, size: int, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^scatter_object_list\("):
        dist.scatter_object_list(wrong, list(range(size)), src=0)


@pytest.mark.parametrize("name", ["broadcast_object_list", "scatter_object_list", "gather_object"])
def test_impossible_roots_are_refused(dist: ModuleType, size: int, name: str) -> None:
    side = "dst" if name == "gather_object" else "src"
    first: Any = 1 if name == "gather_object" else [None]
    for arguments in ({side: size}, {side: -1}, {f"group_{side}": size}, {side: 0, f"group_{side}": 0}):
        with pytest.raises(dist.ArgumentError, match=rf"^{name}\("):
            getattr(dist, name)(first, **arguments)


# A rank that can not pickle


def refused_everywhere(dist: ModuleType, rank: int, culprit: int, call: Callable[[], Any]) -> None:
    """The culprit gets its own error; the others one that names the culprit and tells what its error was."""
    with pytest.raises(dist.ObjectError if rank != culprit else Exception) as caught:
        call()
    told = f"{caught.value} {caught.value.__cause__}"
    assert "not this one" in told
    if rank != culprit:
        assert f"rank {culprit}" in str(caught.value).split(":", 1)[1]


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("operation", ["all_gather", "broadcast", "scatter", "gather"])
def test_a_rank_that_can_not_pickle_tells_the_others(dist: ModuleType, rank: int, size: int, operation: str) -> None:
    culprit = size - 1
    mine = Unpicklable() if rank == culprit else "fine"
    places: list[Any] = ["kept"] * size
    root = culprit if operation in ("broadcast", "scatter") else 0
    call = {
        "all_gather": lambda: dist.all_gather_object(places, mine),
        "broadcast": lambda: dist.broadcast_object_list([mine], root),
        "scatter": lambda: dist.scatter_object_list(places, [mine] * size if rank == root else None, root),
        "gather": lambda: dist.gather_object(mine, places if rank == root else None, root),
    }[operation]
    refused_everywhere(dist, rank, culprit, call)
    assert places == ["kept"] * size

    again: list[Any] = [None] * size  # and the group is as good as before
    dist.all_gather_object(again, rank)
    x = np.ones(1)
    dist.all_reduce(x)
    assert again == list(range(size))
    assert x.item() == size


@pytest.mark.ranks(min=2)
def test_a_sender_that_can_not_pickle_tells_the_receiver(dist: ModuleType, rank: int) -> None:
    if rank == 0:
        with pytest.raises(Exception, match="not this one"):
            dist.send_object_list([Unpicklable()], dst=1)
        dist.send_object_list(["after"], dst=1)
    elif rank == 1:
        got: list[Any] = ["kept"]
        with pytest.raises(dist.ObjectError, match=r"rank 0.*not this one"):
            dist.recv_object_list(got, src=0)
        assert got == ["kept"]
        dist.recv_object_list(got, src=0)
        assert got == ["after"]


@pytest.mark.parametrize("operation", ["all_gather", "gather", "broadcast", "scatter", "send"])
def test_an_object_that_can_not_be_loaded_is_refused_where_it_arrives(
    dist: ModuleType, rank: int, size: int, operation: str
) -> None:
    culprit = size - 1
    mine: Any = Unloadable() if rank == culprit else "fine"
    places: list[Any] = ["kept"] * size
    calls: dict[str, Callable[[], Any]] = {
        "all_gather": lambda: dist.all_gather_object(places, mine),
        "gather": lambda: dist.gather_object(mine, places if rank == 0 else None, 0),
        "broadcast": lambda: dist.broadcast_object_list(places if rank != culprit else [mine] * size, culprit),
        "scatter": lambda: dist.scatter_object_list(places, [mine] * size if rank == culprit else None, culprit),
        "send": lambda: exchange(dist, rank, culprit, mine, places),
    }
    arrives = {"gather": rank == 0, "broadcast": rank != culprit, "send": rank == 0 != culprit}
    if arrives.get(operation, True):
        with pytest.raises(dist.ObjectError, match=rf"rank {culprit}: .*unpickled here, got RuntimeError: not here"):
            calls[operation]()
    else:
        calls[operation]()
    assert places == ["kept"] * size

    again: list[Any] = [None] * size  # and the group is as good as before
    dist.all_gather_object(again, rank)
    assert again == list(range(size))


def exchange(dist: ModuleType, rank: int, source: int, mine: Any, places: list[Any]) -> None:
    """Send an object from the source to rank 0."""
    if rank == source != 0:
        dist.send_object_list([mine] * len(places), dst=0)
    elif rank == 0 != source:
        dist.recv_object_list(places, src=source)


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Stubborn:
    """An object that cannot be pickled, for a reason that is hard to pass on."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> str:
        raise self.error


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("error", [ValueError("name \udcff"), Mute()], ids=["surrogate", "mute"])
def test_an_error_that_is_hard_to_pass_on_is_passed_on(
    dist: ModuleType, rank: int, size: int, error: Exception
) -> None:
    objects = [None] * size
    with pytest.raises(dist.ObjectError, match=f"rank 1.*{type(error).__name__}"):
        dist.all_gather_object(objects, Stubborn(error) if rank == 1 else rank)
    dist.all_gather_object(objects, rank)
    assert objects == list(range(size))
