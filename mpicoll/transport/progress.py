"""One thread that moves tasks on: point-to-point everywhere, and everything where one thread must make all MPI calls.

A task is a generator that yields lists of MPI requests and is resumed, with their statuses, when they are done. Whoever
comes by moves it one step on: the thread of this module, so that it goes on while the program computes or sleeps, or
the thread that waits for it, so that waiting costs no hand-over.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from mpicoll.mpi import library
from mpicoll.transport.work import Work

if TYPE_CHECKING:
    from mpicoll.mpi.library import Request, Status
    from mpicoll.transport.messages import Message

    Steps = Generator[list[Request], list[Status], int | None]

# How long the thread sleeps between two looks at requests that are not done, in seconds.
_SHORTEST, _LONGEST = 1e-4, 1e-3
# How long MPI may take to cancel a request, in seconds.
_TO_CANCEL = 1.0
# How many times in a row it finds nothing to do before it goes to sleep until it is woken, which costs the caller time.
_PATIENCE = 50


class Task:
    """A generator of requests under way. What it returns is the source rank of a receive, or None."""

    __slots__ = ("_lock", "_requests", "_statuses", "_steps", "done", "owner", "work")

    def __init__(self, steps: Steps, work: Work, owner: object) -> None:
        self.work = work
        self.owner = owner  # the engine whose communicator it uses
        self.done = False
        self._steps = steps
        self._requests: list[Request] = []
        self._statuses: list[Status] = []
        self._lock = threading.Lock()
        self._resume(lambda: next(steps))

    def advance(self) -> bool:
        """Move it on if its requests are done. Returns whether it moved."""
        if self.done or not self._lock.acquire(blocking=False):
            return False
        moved = False
        try:
            while not self.done and self._test():
                moved = True
        finally:
            self._lock.release()
        return moved

    def _test(self) -> bool:
        try:
            if not library.MPI.Request.Testall(self._requests, self._statuses):
                return False
        except library.MPI.Exception as error:
            failure = error  # `error` is gone when the lambda below runs
            self._resume(lambda: self._steps.throw(failure))
        else:
            statuses = self._statuses
            self._resume(lambda: self._steps.send(statuses))
        return True

    def _resume(self, resume: Callable[[], list[Request]]) -> None:
        try:
            self._requests = resume()
            self._statuses = [library.MPI.Status() for _ in self._requests]
        except StopIteration as end:
            self.done = True
            self.work.finish(source=end.value)
        except BaseException as error:
            self.done = True
            self.work.finish(error)

    def cancel(self) -> None:
        """Take back what has not been matched, as far as MPI can: receives."""
        with self._lock:
            for request in self._requests:
                request.Cancel()
            deadline = time.monotonic() + _TO_CANCEL
            while time.monotonic() < deadline:
                if library.MPI.Request.Testall(self._requests, self._statuses):
                    self.done = True
                    return
                time.sleep(_LONGEST)


def run(steps: Steps) -> int | None:
    """Carry a task out on this thread, by MPI's blocking wait."""
    try:
        requests = next(steps)
        while True:
            statuses = [library.MPI.Status() for _ in requests]
            library.MPI.Request.Waitall(requests, statuses)
            requests = steps.send(statuses)
    except StopIteration as end:
        source: int | None = end.value
        return source


class Progress:
    """The thread and its tasks. The thread starts with the first task and ends with `close`."""

    def __init__(self, exclusive: bool) -> None:
        self.exclusive = exclusive  # this thread makes all the MPI calls
        self._tasks: list[Task] = []
        self._orders: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._asleep = False
        self.last: list[Message] = []  # the messages for which alone a group or the program does not end

    def start(self, steps: Steps, work: Work, owner: object) -> None:
        """Start a task. Its first requests are posted before this returns, except on an exclusive thread."""
        if self.exclusive:
            self._order(lambda: self._tasks.append(Task(steps, work, owner)))
            return
        task = Task(steps, work, owner)
        task.advance()  # a small message is often gone at once
        if not task.done:
            work.drive = task.advance
            with self._wake:
                self._tasks.append(task)
                self._rouse()

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function of MPI's on the thread that may: this one, or the exclusive one."""
        if not self.exclusive or threading.current_thread() is self._thread:
            return function()
        answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def order() -> None:
            try:
                answers.put((function(), None))
            except BaseException as error:
                answers.put((None, error))

        self._order(order)
        result, error = answers.get()
        if error is not None:
            raise error
        return result

    def drain(self, owner: object = None) -> bool:
        """Wait until every task (of `owner`) is done but those that somebody has given up on; these are cancelled.

        Returns whether nothing is left: MPI cannot take a send back.
        """
        pause = _SHORTEST
        while self._orders or any(not task.work.abandoned for task in self._tasks_of(owner)):
            self.last = self.messages(owner)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)
        self.last = []
        return self.take_back(owner)

    def take_back(self, owner: object = None) -> bool:
        """Cancel what somebody has given up on. Returns whether nothing of it is left."""
        given_up = [task for task in self._tasks_of(owner) if task.work.abandoned]
        for task in given_up:
            self.call(task.cancel)
        return all(task.done for task in given_up)

    def give_up(self, message: Message) -> None:
        """Cancel a message that nobody will send. Whoever waits for it is told that it is done."""
        for task in self._tasks_of(None):
            if task.work.message is message:
                task.work.abandoned = True
                self.call(task.cancel)

    def messages(self, owner: object = None) -> list[Message]:
        """The messages under way (of `owner`) but those that somebody has given up on."""
        works = [task.work for task in self._tasks_of(owner) if not task.work.abandoned]
        return [work.message for work in works if work.message is not None]

    def works_of(self, owner: object) -> list[Work]:
        """The Works of the tasks under way."""
        return [task.work for task in self._tasks_of(owner)]

    def _tasks_of(self, owner: object) -> list[Task]:
        return [task for task in self._tasks if not task.done and (owner is None or task.owner is owner)]

    def close(self) -> None:
        """End the thread."""
        if self._thread is None:
            return
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        self._thread = None
        self._closing = False

    def _order(self, order: Callable[[], None]) -> None:
        with self._wake:
            self._orders.append(order)
            self._rouse(urgent=True)

    def _rouse(self, urgent: bool = False) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="mpicoll progress", daemon=True)
            self._thread.start()
        elif self._asleep or urgent:
            self._wake.notify()

    def _loop(self) -> None:
        pause, idle = _SHORTEST, 0
        while True:
            while self._orders:
                self._orders[0]()
                self._orders.popleft()
                pause = _SHORTEST
            for task in list(self._tasks):
                if task.advance():
                    pause = _SHORTEST
            with self._wake:
                self._tasks = [task for task in self._tasks if not task.done]
                if self._orders:
                    continue
                if self._closing:
                    return
                idle = 0 if self._tasks else idle + 1
                self._asleep = idle > _PATIENCE
                self._wake.wait(None if self._asleep else pause)
                self._asleep = False
                pause = min(1.5 * pause, _LONGEST)
