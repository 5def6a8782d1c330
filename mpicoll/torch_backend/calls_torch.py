"""What is the same for every call of torch's to a group: its forms, the profiler, the dispatcher. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d
from torch._C import _len_torch_dispatch_stack as modes
from torch._C._autograd import _profiler_enabled as profiling
from torch._C._profiler import _RecordFunctionFast as record

from mpicoll.data.reduction import TORCHS_AVG, ReduceOp
from mpicoll.errors import DTypeError
from mpicoll.torch_backend import NAME, dispatch_torch, versions_torch
from mpicoll.transport.work import Work

if TYPE_CHECKING:
    from mpicoll.torch_backend.group_torch import TorchGroup

# torch's ReduceOp hashes to the number of its kind. PREMUL_SUM has a factor and is not among them.
_OPS = {
    hash(c10d.ReduceOp(kind)): getattr(ReduceOp, name)
    for name, kind in c10d.ReduceOp.RedOpType.__members__.items()
    if name != "PREMUL_SUM"
}
_OPS[hash(c10d.ReduceOp(c10d.ReduceOp.AVG))] = TORCHS_AVG
# What torch's options call the arguments of the shorter forms.
_FIELDS = {"root": "rootRank", "op": "reduceOp", "timeout": "timeout"}


def as_op(op: Any) -> Any:
    """A ReduceOp of torch's as one of ours."""
    return _OPS.get(hash(op), op)


def operation(title: str, options: Any, arrays: int, *short: str) -> Callable[[Any], Any]:
    """What is the same for all collectives: the forms of the call, the sequence number, profiler and dispatcher.

    Args:
        title: What the profiler shows.
        options: torch's class of the last argument.
        arrays: How many arguments are lists of one tensor (or of one list) each, which a shorter form leaves out.
        short: The arguments that the shorter form has in place of the options.
    """

    def decorate(method: Any) -> Any:
        shown = next((i for i, name in enumerate(_parameters(method)) if name.startswith("input")), 0)

        def start(self: TorchGroup, *args: Any) -> Work | None:
            work: Work | None
            if profiling():
                work = _profiled(title, args[shown : len(args) - 1], lambda: method(self, *args))
            else:
                work = method(self, *args)
            self.sequence += 1
            return work if work is None else _started(self, work)

        @wraps(method)
        def call(self: TorchGroup, *args: Any, **named: Any) -> Any:
            if named or not args or args[-1].__class__ is not options:
                args = _as_options(method, options, arrays, short, args, named)
            return _dispatched(self, method.__name__, args, start)

        @wraps(method)
        def call_in_place(self: TorchGroup, tensors: Any, opts: Any = None, *args: Any, **named: Any) -> Any:
            # The same for two arguments, without putting them together and taking them apart.
            if opts.__class__ is not options or profiling() or modes():
                return call(self, tensors, *(() if opts is None else (opts,)), *args, **named)
            try:
                work = method(self, tensors, opts)
            except DTypeError:
                return call(self, tensors, opts)
            self.sequence += 1
            return work if work is None else _started(self, work)

        return call_in_place if _parameters(method) == ("tensors", "opts") else call

    return decorate


def message(title: str) -> Callable[[Any], Any]:
    """What is the same for messages: as `operation`, without a sequence number and with a Work at all times."""

    def decorate(method: Any) -> Any:
        def start(self: TorchGroup, *args: Any) -> Work:
            return _started(self, method(self, *args))

        def seen(self: TorchGroup, *args: Any) -> Any:
            return _profiled(title, args, lambda: start(self, *args)) if profiling() else start(self, *args)

        @wraps(method)
        def call(self: TorchGroup, *args: Any, **named: Any) -> Any:
            args += tuple(named[name] for name in _parameters(method)[len(args) :])
            return _dispatched(self, method.__name__, args, seen)

        return call

    return decorate


def _started(group: TorchGroup, work: Work) -> Work:
    """Let those know of a Work who may wait for it besides the caller."""
    if group.together is not None:
        group.together.append(work)
    if dispatch_torch.tensors_may_wait():
        dispatch_torch.let_tensors_wait(work)
    return work


def _dispatched(group: TorchGroup, name: str, args: Sequence[Any], start: Callable[..., Any]) -> Any:
    """Start an operation, with torch's dispatcher where one of its modes is on or a tensor is not just memory."""
    if not modes():
        try:
            return start(group, *args)
        except DTypeError:
            if not dispatch_torch.has_a_say(args):
                raise
    return dispatch_torch.carry_out(group, name, args, start)


def _profiled(title: str, args: Sequence[Any], start: Callable[[], Work | None]) -> Work | None:
    """Start an operation in a range of the profiler's that ends with it."""
    section = record(versions_torch.comm_title() or f"{NAME}:{title}", dispatch_torch.flat(args[:1]))
    section.__enter__()
    try:
        work = start()
    except BaseException:
        section.__exit__(None, None, None)
        raise
    if work is None:
        section.__exit__(None, None, None)
    else:
        # On another thread: the profiler knows of that, too.
        work.when_done(lambda: section.__exit__(None, None, None), quick=True)
    return work


def _as_options(
    method: Any, options: type, arrays: int, short: tuple[str, ...], args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments of a call in another form, as the method takes them."""
    given = dict(zip(_parameters(method), args, strict=False)) | named
    tensors = [given.pop(name) for name in _parameters(method)[:-1] if name in given]
    opts = given.pop("opts", None)
    if not isinstance(opts, options):
        rest = list(args[len(tensors) :])
        opts = options()
        values = dict(zip(short, rest, strict=False)) | given
        for name in short:
            if values.get(name) is not None:
                setattr(opts, _FIELDS[name], values[name])
    if arrays and any(isinstance(tensor, torch.Tensor) for tensor in tensors[:arrays]):
        tensors = [[tensor] for tensor in tensors]
    return (*tensors, opts)


def _parameters(method: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = method.__code__.co_varnames[1 : method.__code__.co_argcount]
    return names
