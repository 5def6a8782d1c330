"""Things of the wrong kind as arguments: refused by the name of the argument, also such as cannot be compared."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import mpicoll

pytestmark = pytest.mark.ranks(1)


class Incomparable:
    """Has neither a truth nor an equal."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no equal")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")


ODD: dict[str, Any] = {
    "array": np.ones(3),
    "number in an array": np.array(-100),
    "text": "world",
    "float": 1.5,
    "class": int,
    "list": [Incomparable()],
    "incomparable": Incomparable(),
}
each_odd = pytest.mark.parametrize("odd", ODD.values(), ids=ODD)


def takers() -> list[Any]:
    """Every public function that takes a group, and the word for it."""
    found = []
    for module in (mpicoll, mpicoll.differentiable):
        for name in module.__all__:
            function = getattr(module, name)
            if inspect.isfunction(function):
                words = {"group", "parent_pg"} & set(inspect.signature(function).parameters)
                prefix = "" if module is mpicoll else "differentiable."
                found += [pytest.param(function, word, id=prefix + name) for word in words]
    return found


def test_the_functions_that_take_a_group_are_found() -> None:
    names = {param.id for param in takers()}
    assert {"all_reduce", "send", "recv_tensor", "split_group", "destroy_process_group", "get_rank"} <= names
    assert "differentiable.all_reduce" in names
    assert len(names) > 40


@pytest.mark.parametrize(("function", "word"), takers())
def test_what_is_no_group_is_refused(dist: ModuleType, function: Callable[..., Any], word: str) -> None:
    needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    for odd in ODD.values():
        with pytest.raises(dist.ArgumentError, match="group: expected a ProcessGroup or an mpi4py communicator, got "):
            function(**{name: [np.ones(1)] for name in needed} | {word: odd})


@each_odd
def test_what_is_no_group_is_refused_in_a_batch(dist: ModuleType, odd: Any) -> None:
    with pytest.raises(dist.ArgumentError, match="group: expected a ProcessGroup"):
        dist.batch_isend_irecv([dist.P2POp(dist.isend, np.ones(1), 0, group=odd)])


@each_odd
def test_what_is_no_communicator_is_refused(dist: ModuleType, odd: Any) -> None:
    with pytest.raises(dist.ArgumentError, match="comm: expected an mpi4py intracommunicator"):
        dist.new_group(comm=odd)


CALLS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "op": ("op", lambda dist, odd: dist.all_reduce(np.ones(1), odd)),
    "input splits": ("input_split_sizes", lambda dist, odd: dist.all_to_all_single(np.ones(1), np.ones(1), None, odd)),
    "gather list": ("gather_list", lambda dist, odd: dist.gather(np.ones(1), odd, dst=0)),
    "scattered objects": ("scatter_object_input_list", lambda dist, odd: dist.scatter_object_list([0], odd, src=0)),
    "tensors": ("tensors", lambda dist, odd: dist.differentiable.scatter(odd)),
    "tag": ("tag", lambda dist, odd: dist.group.WORLD.mailbox.check_tag(odd)),
    "root": ("dst", lambda dist, odd: dist.reduce(np.ones(1), odd)),
    "root with a gradient": ("src", lambda dist, odd: dist.differentiable.scatter([np.ones(1)], odd)),
    "global rank": ("global_rank", lambda dist, odd: dist.get_group_rank(None, odd)),
    "group rank": ("group_rank", lambda dist, odd: dist.get_global_rank(None, odd)),
    "ranks": ("ranks", lambda dist, odd: dist.new_group(odd)),
    "parts": ("ranks", lambda dist, odd: dist.split_group(split_ranks=odd)),
    "backend": ("backend", lambda dist, odd: dist.new_group([0], backend=odd)),
    "name": ("group_desc", lambda dist, odd: dist.new_group([0], group_desc=odd)),
    "timeout": ("timeout", lambda dist, odd: dist.barrier(timeout=odd)),
}
RIGHT = {("name", "text"), ("timeout", "float"), ("scattered objects", "list")}
WRONG = [
    pytest.param(call, ODD[kind], id=f"{call}, {kind}") for call in CALLS for kind in ODD if (call, kind) not in RIGHT
]


@pytest.mark.parametrize(("call", "odd"), WRONG)
def test_what_is_wrong_for_an_argument_is_refused(dist: ModuleType, call: str, odd: Any) -> None:
    word, function = CALLS[call]
    with pytest.raises((dist.ArgumentError, dist.DTypeError)) as caught:
        function(dist, odd)
    assert word in str(caught.value).replace(" ", "_") or "tensor: expected a torch tensor" in str(caught.value)


@pytest.mark.parametrize("timeout", [float("inf"), timedelta.max, 10**30, np.float32(30), np.int64(30)], ids=str)
def test_time_outs_of_any_length(dist: ModuleType, timeout: Any) -> None:
    x = np.ones(1)
    assert dist.all_reduce(x, async_op=True).wait(timeout)
    dist.barrier(timeout=timeout)


def test_a_time_out_that_is_no_number_is_refused(dist: ModuleType) -> None:
    with pytest.raises(dist.ArgumentError, match="timeout: expected a timedelta or seconds, got nan"):
        dist.barrier(timeout=float("nan"))
