"""What an asynchronous operation leaves in the caller's hand."""

from __future__ import annotations

import numbers
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mpicoll.errors import ArgumentError, CollectiveTimeoutError, LaunchError, MpicollError
from mpicoll.mpi import library
from mpicoll.transport.polling import wait_until

if TYPE_CHECKING:
    from mpicoll.transport.messages import Message

Timeout = timedelta | float | None


def seconds(timeout: timedelta | float) -> float:
    """A time-out, given as a timedelta or in seconds, in seconds: as many as can be waited for, at most."""
    if isinstance(timeout, timedelta):
        return min(timeout.total_seconds(), threading.TIMEOUT_MAX)
    if not isinstance(timeout, numbers.Real) or timeout != timeout:  # the last is true of NaN
        raise ArgumentError(f"timeout: expected a timedelta or seconds, got {timeout!r}")
    return float(min(timeout, threading.TIMEOUT_MAX))


# How often this process has been forked from another: a rank's Work is none in its children.
_forks = 0


def _after_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_after_fork)


class Work:
    """An operation under way: the result of ``async_op=True``, ``isend`` and ``irecv``.

    It keeps the operation's tensors alive and may be dropped: the operation is carried out all the same, and the end of
    the program waits for it. Do not touch the tensors before ``wait`` has returned.

    Example:
        >>> import numpy as np, mpicoll as dist
        >>> x = np.ones(3)
        >>> work = dist.all_reduce(x, async_op=True)
        >>> work.wait(), work.is_completed(), float(x[0]) == dist.get_world_size()
        (True, True, True)
    """

    def __init__(self, where: str, outputs: list[Any], ranks: Sequence[int] = (), limit: float | None = None) -> None:
        self.where = where
        self.abandoned = False  # a wait for it has timed out: the end of the program does not wait for it
        self.drive: Callable[[], Any] | None = None  # moves it on, on the waiting thread
        self.message: Message | None = None  # that it sends or receives
        self.outputs = outputs
        self._event: threading.Event | None = None  # made when somebody waits
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._quick: list[Callable[[], None]] = []
        self._done = False
        self._error: BaseException | None = None
        self._ranks = ranks
        self.limit = limit
        self._forks = _forks
        self.source: int | None = None  # the group rank that a message came from

    def wait(self, timeout: Timeout = None) -> bool:
        """Wait until the operation is done, and return True. May be called again.

        Args:
            timeout: How long to wait, as a timedelta or in seconds; the group's time-out by default.

        Raises:
            CollectiveTimeoutError: It took longer. The operation is left as it is, and its tensors are not to be used.
            LaunchError: This is a process forked from the rank that started it.
            MpicollError: What went wrong with the operation, each time.
        """
        self._refuse_in_child()
        limit = self.limit if timeout is None else seconds(timeout)
        if not self._done and not self._await(limit):
            self.abandoned = True
            error = CollectiveTimeoutError(f"not done after {limit:g} s. Another rank may not have called it")
            error.locate(self.where)
            raise error
        if self._error is not None:
            raise self._error
        return True

    def _await(self, limit: float | None) -> bool:
        if self.drive is None:
            with self._lock:
                if self._done:
                    return True
                if self._event is None:
                    self._event = threading.Event()
            return self._event.wait(limit)
        assert self.message is not None
        with self.message.awaited():
            return wait_until(self._look, limit)

    def _look(self) -> bool:
        if not self._done and self.drive is not None:
            self.drive()
        return self._done

    def is_completed(self) -> bool:
        """Whether the operation is done, well or not. Does not wait."""
        self._refuse_in_child()
        return self._look()

    def _refuse_in_child(self) -> None:
        if self._forks != _forks:
            error = LaunchError("this process was forked from the rank that started the operation. Wait for it there")
            error.locate(self.where)
            raise error

    def is_success(self) -> bool:
        """Whether the operation is done and nothing went wrong."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """What went wrong, or None."""
        return self._error

    def result(self) -> list[Any]:
        """The outputs, once the operation is done."""
        self.wait()
        return list(self.outputs)

    def synchronize(self) -> None:
        """Wait; torch's word for it."""
        self.wait()

    def source_rank(self) -> int:
        """The global rank that a received message came from."""
        self.wait()
        if self.source is None:
            raise ArgumentError(f"{self.where}: source_rank(): expected a receive, got an operation without a source")
        return self._ranks[self.source]

    def get_future(self) -> Any:
        """A future of the list of outputs.

        Returns:
            A ``torch.futures.Future`` where torch tensors are among them, else a `Future` with the same
            methods ``wait``, ``value``, ``done`` and ``then``.
        """
        from mpicoll.data.arrays import is_torch

        future: Any
        if any(is_torch(output) for output in self.outputs):
            import torch

            future = torch.futures.Future()
        else:
            future = Future()
        self.when_done(lambda: self._resolve(future))
        return future

    def _resolve(self, future: Any) -> None:
        if self._error is None:
            future.set_result(list(self.outputs))
        else:
            future.set_exception(self._error)

    def when_done(self, callback: Callable[[], None], quick: bool = False) -> None:
        """Call a function when the operation is done, or now if it is. A `quick` one is ours, and never waits."""
        with self._lock:
            if not self._done:
                (self._quick if quick else self._callbacks).append(callback)
                return
        callback()

    def finish(self, error: BaseException | None = None, source: int | None = None) -> None:
        """The operation is done: called by a thread which has other things to do than the user's callbacks."""
        callbacks = self.settle(error, source)
        if callbacks:
            threading.Thread(target=call_all, args=(callbacks,), name="mpicoll callbacks", daemon=True).start()

    def settle(self, error: BaseException | None = None, source: int | None = None) -> list[Callable[[], None]]:
        """The operation is done. Returns the user's callbacks, which are to be called; they may wait for others."""
        if error is not None:
            error = library.as_error(error) or error
            if isinstance(error, MpicollError):
                error.locate(self.where)
        with self._lock:
            if self._done:  # given up before
                return []
            self._error, self.source = error, source
            self._done = True
            event = self._event
        if event is not None:
            event.set()
        call_all(self._quick)
        self._quick.clear()
        callbacks, self._callbacks = self._callbacks, []
        return callbacks


class Future:
    """A future for programs without torch, with the methods of ``torch.futures.Future`` that are used most."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Future], Any]] = []
        self._value: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether it has a value or an error."""
        return self._event.is_set()

    def wait(self) -> Any:
        """Wait for the value and return it."""
        self._event.wait()
        return self.value()

    def value(self) -> Any:
        """The value, which must be there."""
        if not self.done():
            raise RuntimeError("value(): expected a future that is done, got one that is not. Call wait()")
        if self._error is not None:
            raise self._error
        return self._value

    def set_result(self, value: Any) -> None:
        """Give it its value."""
        self._value = value
        self._settle()

    def set_exception(self, error: BaseException) -> None:
        """Give it an error, which `wait` and `value` raise."""
        self._error = error
        self._settle()

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """A future of what `callback` returns, which is called with this future when it is done."""
        following = Future()

        def run(future: Future) -> None:
            try:
                following.set_result(callback(future))
            except Exception as error:
                following.set_exception(error)

        self.add_done_callback(run)
        return following

    def add_done_callback(self, callback: Callable[[Future], Any]) -> None:
        """Call `callback` with this future when it is done."""
        with self._lock:
            if not self.done():
                self._callbacks.append(callback)
                return
        callback(self)

    def _settle(self) -> None:
        with self._lock:
            self._event.set()
        for callback in self._callbacks:
            _call(callback, self)


def call_all(callbacks: Sequence[Callable[[], None]]) -> None:
    """Call some functions, whatever they raise."""
    for callback in callbacks:
        _call(callback)


def _call(callback: Callable[..., Any], *arguments: Any) -> None:
    # It runs on a thread that has other work to do: what it raises must not end that.
    try:
        callback(*arguments)
    except Exception:
        print("mpicoll: a callback of a future raised:", file=sys.stderr)
        traceback.print_exc()
