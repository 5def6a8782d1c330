"""What torch's dispatcher has to say about a call: its modes, and tensors that are not just memory. Imports torch.

A group of C++'s makes an operation of the dispatcher's of each call, ``c10d::allreduce_`` and so on, which the modes
that are on see, and tensors of other kinds. Calls of ours come past it, so this does it where it matters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d
from torch._C import _get_dispatch_mode, _len_torch_dispatch_stack, _TorchDispatchModeKey
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _pop_mode_temporarily
from torch.utils._pytree import tree_map_only

from mpicoll.errors import ArgumentError
from mpicoll.torch_backend import versions_torch
from mpicoll.transport.work import Work

if TYPE_CHECKING:
    from mpicoll.torch_backend.group_torch import TorchGroup


def has_a_say(args: Sequence[Any]) -> bool:
    """Whether there are tensors whose calls the dispatcher answers, or without data."""
    return any(_is_empty(tensor) or _is_awaited(tensor) for tensor in flat(args))


def carry_out(group: TorchGroup, name: str, args: Sequence[Any], start: Callable[..., Any]) -> Any:
    """Carry a collective or a message out as a group of C++'s would.

    Under FakeTensorMode, and for fake and meta tensors, nothing is sent, whatever the other ranks do. Results of
    functional collectives are waited for and taken as the tensors that they are. Other modes see the operation and
    have it carried out.

    Args:
        group: The group.
        name: The method's name.
        args: Its arguments.
        start: Carries it out by MPI.

    Raises:
        ArgumentError: Under torch.fx's tracing, in which the operation would leave no trace.
    """
    if _get_dispatch_mode(_TorchDispatchModeKey.PROXY) is not None:
        error = ArgumentError(
            "expected a call that runs, got one that torch.fx traces. Use torch.distributed._functional_collectives"
        )
        error.locate(group.where(name))
        raise error
    args = [tree_map_only(torch.Tensor, _waited, arg) for arg in args]
    tensors = flat(args)
    if _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None or any(map(_is_empty, tensors)):
        if "coalesced" in name and all(map(_is_empty, tensors)):
            return c10d.FakeWork()  # torch has no kernel for these
        return _ask(group, name, args)
    return _Operation(name, lambda: start(group, *args)).through_modes(args)


class _Operation(torch._ops.OpOverload):
    """An operation of torch's, as the modes that are on know it, and carried out by us."""

    def __init__(self, name: str, run: Callable[[], Any]) -> None:
        self.__dict__ |= getattr(torch.ops.c10d, _OPS[name]).default.__dict__
        self._run = run

    def through_modes(self, args: Sequence[Any]) -> Any:
        """Carry it out unless a mode has something else to give. Returns what the method of the group does."""
        return self(*args)[-1]

    def __call__(self, *args: Any, **named: Any) -> Any:
        if not _len_torch_dispatch_stack():
            return args[:1], self._run()
        with _pop_mode_temporarily() as mode:
            return mode.__torch_dispatch__(self, (), args, named)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch._ops.OpOverload) and self._op is other._op

    __hash__ = torch._ops.OpOverload.__hash__


_OPS = {
    "broadcast": "broadcast_",
    "allreduce": "allreduce_",
    "allreduce_coalesced": "allreduce_coalesced_",
    "reduce": "reduce_",
    "allgather": "allgather_",
    "all_gather_single": "_allgather_base_",
    "allgather_coalesced": "allgather_coalesced_",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced_",
    "gather": "gather_",
    "scatter": "scatter_",
    "reduce_scatter": "reduce_scatter_",
    "reduce_scatter_single": "_reduce_scatter_base_",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced_",
    "alltoall": "alltoall_",
    "all_to_all_single": "alltoall_base_",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv_",
    "recv_anysource": "recv_any_source_",
}


def flat(args: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors in some arguments, those in lists too."""
    found: list[torch.Tensor] = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            found.append(arg)
        elif isinstance(arg, (list, tuple)):
            found.extend(flat(arg))
    return found


def _is_empty(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def _is_awaited(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "trigger_wait")  # AsyncCollectiveTensor; its module may not be there


def _waited(tensor: Any) -> Any:
    return tensor.trigger_wait() if _is_awaited(tensor) else tensor


def _ask(group: TorchGroup, name: str, args: Sequence[Any]) -> Any:
    """Have torch's kernels for meta tensors answer, by way of a group of torch's that has no backend."""
    if group.stand_in is None:
        group.stand_in = versions_torch.new_group(group.rank(), group.size())
        group.stand_in._set_group_name(group.getGroupName())
    return versions_torch.method(group.stand_in, name)(*args)


# Whether a tensor is told of the operation that writes to it, so that a compiled function which gets it waits for that.
tensors_may_wait: Any = getattr(c10d, "_allow_inflight_collective_as_graph_input", lambda: False)


def let_tensors_wait(work: Work) -> None:
    """Tell torch which operation the outputs of a Work wait for."""
    # A Work of C++'s: one of ours would be gone for torch with its Python half.
    done = c10d._create_work_from_future(work.get_future())  # type: ignore[attr-defined]
    for output in flat(work.outputs):
        c10d._register_work(output, done)
