"""The ordered stream of operations of one communicator.

With MPI_THREAD_MULTIPLE a synchronous operation runs on the caller's thread, and asynchronous ones, in their order, on
a helper thread of the group: as blocking calls, because MPI's non-blocking collectives stand still while the program
computes. With MPI_THREAD_SERIALIZED the progress thread makes all the calls, and they are the non-blocking ones, so
that it never stands still in one group. Below that there is only the caller.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpicoll.errors import CollectiveTimeoutError, MpicollError, ThreadLevelError
from mpicoll.mpi import library
from mpicoll.transport.operation import Operation
from mpicoll.transport.progress import Progress, run
from mpicoll.transport.work import Work, call_all

if TYPE_CHECKING:
    from mpicoll.mpi.library import Comm
    from mpicoll.transport.messages import Message
    from mpicoll.transport.progress import Steps


# Seconds between two looks at a queue that is waited for, and those that an operation may take after a wait gave it up.
_LOOK, _GRACE = 0.1, 1.0
# Seconds between two looks whether another thread has left the communicator.
_BRIEFLY = 2e-5
# With so many operations under way a new one waits until they are fewer, or stand still for so many seconds.
_MANY, _FEWER, _STILL = 256, 128, 0.01


class Engine:
    """The engine where MPI may be called from any thread, or from this one alone.

    Args:
        comm: The communicator, which is the engine's own.
        progress: The thread for point-to-point operations.
        level: The thread level that all ranks have: an index into `library.LEVELS`.
    """

    runs_here = True  # synchronous operations run on the caller's thread, as blocking calls

    def __init__(self, comm: Comm, progress: Progress, level: int) -> None:
        self.comm = comm
        self.progress = progress
        self._level = level
        # Whoever uses the communicator has taken the one thing in here. A Lock does the same, in 0.2 us more.
        self._turn: deque[None] = deque([None])
        self.latest = 0  # the number of the operation that came last; all ranks number them alike
        self._numbers = itertools.count(1)
        self._beside = 0  # operations under way that need no turn
        self._queue: deque[_Asynchronous | _Synchronous] = deque()  # the first one is under way
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None  # carries out what is in the queue
        self._calling: set[threading.Thread] = set()  # those that did and are in the user's callbacks
        self._moving = True  # an operation in the queue has ended since somebody waited for that
        self._closing = False

    def run(self, operation: Operation) -> None:
        """Carry an operation out, after those that were started before it."""
        self.latest = next(self._numbers)
        if self._queue:
            self._run_behind_queue(lambda: self._run_steps(operation))
            return
        self._take_turn()
        try:
            self._run_steps(operation)
        finally:
            self._turn.append(None)

    def run_call(self, name: str, *arguments: Any) -> None:
        """Carry out an operation that is a single call of MPI's: the shortest way, for `runs_here` engines."""
        self.latest = next(self._numbers)
        if self._queue:
            self._run_behind_queue(lambda: getattr(self.comm, name)(*arguments))
            return
        try:
            self._turn.pop()
        except IndexError:
            self._take_turn()
        try:
            getattr(self.comm, name)(*arguments)
        finally:
            self._turn.append(None)

    def _take_turn(self) -> None:
        # Threads seldom meet here: those behind an asynchronous operation wait in the queue.
        while True:
            try:
                return self._turn.pop()
            except IndexError:
                time.sleep(_BRIEFLY)

    def _run_steps(self, operation: Operation) -> None:
        comm = self.comm
        for step in operation.steps:
            step.run(comm)

    def _run_behind_queue(self, function: Callable[[], Any]) -> Any:
        entry = _Synchronous()
        with self._changed:
            self._queue.append(entry)
            self._need_thread()
        try:
            entry.go.wait()
            return function()
        finally:
            entry.done.set()

    def submit(self, operation: Operation, work: Work) -> None:
        """Start an operation behind those that were started before it."""
        self.require_async()
        with self._changed:
            self.latest = next(self._numbers)
            self._queue.append(_Asynchronous(operation, work))
            self._need_thread()
            self._hold_back()

    def _hold_back(self) -> None:
        # Called with `_changed` held. A program that starts operations faster than MPI carries them out would fill the
        # memory with their tensors. So it waits, but not for a queue that stands still: there another rank may wait for
        # what this one does next.
        if len(self._queue) > _MANY:
            while len(self._queue) > _FEWER and self._moving:
                self._moving = False
                self._changed.wait(_STILL)

    def _need_thread(self) -> None:
        # Called with `_changed` held, where the queue is not empty.
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="mpicoll group", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def call(self, function: Callable[[], Any], of_all: bool = True) -> Any:
        """Call a collective function of the communicator's in its turn: one `of_all` ranks, or of some of them."""
        if of_all:
            self.latest = next(self._numbers)
        if self._queue:
            return self._run_behind_queue(function)
        self._take_turn()
        try:
            return function()
        finally:
            self._turn.append(None)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Around an operation of all ranks that goes its own way to them."""
        self.latest = next(self._numbers)
        self._beside += 1
        try:
            yield
        finally:
            self._beside -= 1

    def under_way(self) -> int:
        """The number of the operation that came last, if it or one before it is under way, else 0."""
        return self.latest if self._queue or not self._turn or self._beside else 0

    def start(self, message: Message, work: Work) -> None:
        """Start a point-to-point operation, where `require_async` allows it."""
        work.message = message
        self.progress.start(message.steps, work, self)

    def finish(self, message: Message) -> int | None:
        """Carry a point-to-point operation out. Returns the source of a receive."""
        with message.awaited():
            return run(message.steps)

    def require_async(self) -> None:
        """Raise where there is no thread that an asynchronous operation could run on."""
        if self._level < library.LEVELS.index("SERIALIZED"):
            raise ThreadLevelError(
                "an asynchronous operation: expected MPI_THREAD_SERIALIZED or more, got"
                f" MPI_THREAD_{library.LEVELS[self._level]}. Use the synchronous form, or start MPI with a higher level"
            )

    def drain(self) -> bool:
        """Wait for what is under way, but not for ever for what a wait has given up on. Returns whether all is done."""
        return self.end_collectives() and self.progress.drain(self)

    def end_collectives(self) -> bool:
        """The same for collectives alone."""
        given_up = 0.0
        with self._changed:
            while self._queue:
                if any(isinstance(entry, _Asynchronous) and entry.work.abandoned for entry in self._queue):
                    given_up += _LOOK
                    if given_up > _GRACE:
                        return False
                self._changed.wait(_LOOK)
        return True

    def total(self) -> int:
        """How many operations there have been, where none is to come."""
        return next(self._numbers) - 1

    def abandon(self, error: MpicollError) -> None:
        """Give up what is under way: its Works are done, with `error`. MPI may never end."""
        with self._changed:
            works = [entry.work for entry in self._queue if isinstance(entry, _Asynchronous)]
        for work in (*works, *self.progress.works_of(self)):
            work.abandoned = True
            work.finish(error)

    def close(self) -> None:
        """Wait for what is under way and end the thread.

        Raises:
            CollectiveTimeoutError: An operation that a wait has given up on is still under way.
        """
        if not self.drain():
            raise CollectiveTimeoutError(
                "the group cannot be freed: expected nothing under way, got an operation that a wait has given up on."
                " End the program"
            )
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            threads = {*self._calling, *([self._thread] if self._thread is not None else [])}
        for thread in threads - {threading.current_thread()}:
            thread.join()
        self._thread = None

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    if self._closing:
                        return
                    self._changed.wait()
            entry = self._queue[0]
            error = None
            self._take_turn()
            if isinstance(entry, _Synchronous):
                entry.go.set()
                entry.done.wait()
            else:
                error = self._try_steps(entry.operation)
            self._turn.append(None)
            # Out of the queue first: who has waited for it may start the next one at once.
            with self._changed:
                self._pop()
            if isinstance(entry, _Asynchronous):
                work = entry.work
                del entry  # and with it the tensors
                callbacks = work.settle(error)
                del work, error
                if callbacks and not self._call(callbacks):
                    return

    def _call(self, callbacks: list[Callable[[], None]]) -> bool:
        """Call the user's callbacks. They may wait for operations of this group, which another thread carries out.

        Returns whether this thread is still the one to carry out operations.
        """
        this = threading.current_thread()
        with self._changed:
            self._thread = None
            self._calling.add(this)
            if self._queue:
                self._need_thread()
        call_all(callbacks)
        with self._changed:
            self._calling.remove(this)
            if self._thread is not None or self._closing:
                return False
            self._thread = this
            return True

    def _pop(self) -> None:
        # Called with `_changed` held.
        self._queue.popleft()
        self._moving = True
        if len(self._queue) in (_FEWER, 0):
            self._changed.notify_all()

    def _try_steps(self, operation: Operation) -> BaseException | None:
        try:
            self._run_steps(operation)
        except BaseException as error:
            return error
        return None


@dataclass(frozen=True, slots=True)
class _Asynchronous:
    """An operation in the queue that the helper thread is to carry out."""

    operation: Operation
    work: Work


class _Synchronous:
    """An operation in the queue that another thread carries out while the helper thread stands aside."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.done = threading.Event()


class SerialEngine(Engine):
    """The engine where the progress thread makes all the calls."""

    runs_here = False

    def run(self, operation: Operation) -> None:
        """Carry an operation out on the progress thread and wait for it."""
        work = Work("", [], limit=operation.limit)
        self.submit(operation, work)
        work.wait()

    def submit(self, operation: Operation, work: Work) -> None:
        """Start an operation behind those that were started before it."""
        with self._changed:
            self._queue.append(_Asynchronous(operation, work))
            first = len(self._queue) == 1
        if first:
            self.progress.start(self._carry_out(), Work("", []), self)
        with self._changed:
            self._hold_back()

    def call(self, function: Callable[[], Any], of_all: bool = True) -> Any:
        """Call a collective function of the communicator's in its turn."""
        self._wait_for_queue()
        return self.progress.call(function)

    def _wait_for_queue(self) -> None:
        with self._changed:
            while self._queue:
                self._changed.wait()

    def finish(self, message: Message) -> int | None:
        """Carry a point-to-point operation out on the progress thread and wait for it."""
        work = Work("", [])
        self.progress.start(message.steps, work, self)
        work.wait()
        return work.source

    def _carry_out(self) -> Steps:
        while True:
            entry = self._queue[0]
            assert isinstance(entry, _Asynchronous)
            operation, work = entry.operation, entry.work
            error: BaseException | None = None
            try:
                for step in operation.steps:
                    step.finish((yield step.start(self.comm)))
            except Exception as failure:
                error = failure
            with self._changed:
                self._pop()
                more = bool(self._queue)
            work.finish(error)
            if not more:
                return None


def make_engine(comm: Comm, progress: Progress, level: int) -> Engine:
    """The engine for a communicator at a thread level."""
    return (SerialEngine if progress.exclusive else Engine)(comm, progress, level)
