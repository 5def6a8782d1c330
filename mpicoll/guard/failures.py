"""When a rank fails, the whole job ends.

MPI alone does not see to that: a rank whose Python raises goes to MPI_Finalize and waits there for the others, which
wait for it in a collective. From the first process group to the end of MPI, so

- an uncaught exception prints its traceback and aborts the job;
- so does a SystemExit with a status, however it was raised;
- so does Ctrl-C (SIGINT), also where the main thread sits in MPI and Python cannot raise KeyboardInterrupt.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType, NoneType, TracebackType
from typing import Any, NoReturn

from mpicoll.mpi import library

# How long an interrupted rank has to raise KeyboardInterrupt by itself, in seconds.
_INTERRUPT_GRACE = 2.0
# How long other ranks have to print what they are about to, where this one leaves in good order, in seconds.
_EXIT_GRACE = 1.0


class _Hooks:
    """What was there before, and which process and rank this is."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.rank = library.MPI.COMM_WORLD.Get_rank()
        self.size = library.MPI.COMM_WORLD.Get_size()
        self.excepthook = sys.excepthook

    @property
    def active(self) -> bool:
        return _hooks is self and os.getpid() == self.process and library.is_running()

    def who(self) -> str:
        return f"mpicoll: rank {self.rank} of {self.size}"


_hooks: _Hooks | None = None
_interrupts: _Interrupts | None = None


def install() -> None:
    """Begin to end the job when this rank fails, for as long as MPI runs. Does nothing the second time.

    It does not end with the process group: many programs destroy it in a ``finally``, with the exception on its way.
    """
    global _hooks, _interrupts
    if _hooks is not None:
        return
    _hooks = _Hooks()
    sys.excepthook = _on_exception
    sys.exit = _exit
    _Status.install()
    if _interrupts is None and threading.current_thread() is threading.main_thread():
        _interrupts = _Interrupts.watch()


def watch_exit() -> None:
    """End the job at exit too, where an uncaught exception passed this hook by: somebody put another in its place.

    Of what is registered so far this comes first at exit, called again or not.
    """
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def _at_exit() -> None:
    # Set by Python before it calls any hook.
    kind = getattr(sys, "last_type", None)
    if kind is not None and _hooks is not None and _hooks.active and _hooks.size > 1:
        _end_job(f"{_hooks.who()} ended with {kind.__name__}", 1)


def _on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    hooks = _hooks
    if hooks is None:
        sys.__excepthook__(kind, error, trace)
        return
    hooks.excepthook(kind, error, trace)
    if hooks.active:
        _end_job(f"{hooks.who()} ended with {kind.__name__}", 130 if issubclass(kind, KeyboardInterrupt) else 1)


def _end_job(reason: str, code: int) -> None:
    if isinstance(sys.stderr, io.StringIO) and sys.__stderr__ is not None:
        # torch's excepthook, around this one, collects what is printed and prints it when this one has returned.
        collected, sys.stderr = sys.stderr.getvalue(), sys.__stderr__
        sys.stderr.write(collected)
    print(f"{reason}; ending the job", file=sys.stderr, flush=True)
    library.abort(code)


class _Status:
    """``SystemExit.code``, which knows when the interpreter takes it up: it reads it with no Python code around.

    The interpreter calls no hook for a SystemExit and shows its status to nobody, and the exception is gone when the
    functions registered with atexit are called.
    """

    def __init__(self, member: Any) -> None:
        self._member = member

    @classmethod
    def install(cls) -> None:
        """Take the place of the attribute, if this Python lets one at the attributes of its own classes."""
        members = next(iter(gc.get_referents(SystemExit.__dict__)), None)
        if isinstance(members, dict) and not isinstance(members.get("code"), (cls, NoneType)):
            members["code"] = cls(members["code"])
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))

    def __get__(self, leaving: SystemExit | None, owner: type | None = None) -> Any:
        if leaving is None:
            return self
        status = self._member.__get__(leaving)
        if sys._getframe().f_back is None:
            _leave(leaving, status)
        return status

    def __set__(self, leaving: SystemExit, status: Any) -> None:
        self._member.__set__(leaving, status)

    def __delete__(self, leaving: SystemExit) -> None:
        self._member.__delete__(leaving)


def _exit(status: object = None) -> NoReturn:
    """Exit the interpreter by SystemExit(status). Up to Python 3.11 its own function may bring up the status alone."""
    raise SystemExit(status)


def _leave(leaving: SystemExit, status: Any) -> None:
    hooks = _hooks
    if hooks is None or not hooks.active or status is None or status == 0:
        return
    traceback.print_exception(type(leaving), leaving, leaving.__traceback__)
    time.sleep(_EXIT_GRACE)
    _end_job(
        f"{hooks.who()} called exit({status!r})", status & 0xFF if isinstance(status, int) and status & 0xFF else 1
    )


class _Interrupts:
    """Watches for a SIGINT that Python cannot act on, because the main thread sits in MPI.

    C's signal handler writes to a pipe at once, whereas Python's handler has to wait until the main thread is back in
    Python.
    """

    def __init__(self, previous: Callable[[int, FrameType | None], Any]) -> None:
        self._previous = previous
        self._handled = float("-inf")
        self._forgotten = False
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._thread = threading.Thread(target=self._loop, name="mpicoll interrupts", daemon=True)

    @classmethod
    def watch(cls) -> _Interrupts | None:
        """Begin to watch, unless somebody else handles SIGINT."""
        handler = signal.getsignal(signal.SIGINT)
        if handler is not signal.default_int_handler:
            return None
        before = signal.set_wakeup_fd(-1)
        if before != -1:  # an event loop's
            signal.set_wakeup_fd(before)
            return None
        interrupts = cls(signal.default_int_handler)
        signal.signal(signal.SIGINT, interrupts._handle)
        signal.set_wakeup_fd(interrupts._writer, warn_on_full_buffer=False)
        interrupts._thread.start()
        os.register_at_fork(after_in_child=interrupts._forget)
        return interrupts

    def _forget(self) -> None:
        # In a forked child, whose signals are not the rank's. A child of the child's comes here too: by then the
        # numbers of the pipe may be those of other files.
        if self._forgotten:
            return
        self._forgotten = True
        with contextlib.suppress(ValueError, OSError):  # forked by a thread that is not taken for the main one
            if signal.getsignal(signal.SIGINT) == self._handle:
                signal.signal(signal.SIGINT, self._previous)
            woken = signal.set_wakeup_fd(-1)
            if woken != self._writer:  # an event loop's, which came later
                signal.set_wakeup_fd(woken)
        os.close(self._reader)
        os.close(self._writer)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._handled = time.monotonic()
        self._previous(number, frame)

    def _loop(self) -> None:
        while True:
            if signal.SIGINT in os.read(self._reader, 16) and not self._is_handled():
                self._end()

    def _is_handled(self) -> bool:
        # Python's handler may have run before this thread came to read the pipe, hence the half second.
        now = time.monotonic()
        while self._handled < now - 0.5:
            if signal.getsignal(signal.SIGINT) != self._handle:
                return True  # the user's handler, whose business it is
            if time.monotonic() > now + _INTERRUPT_GRACE:
                return False
            time.sleep(0.02)
        return True

    def _end(self) -> None:
        hooks = _hooks
        if hooks is None or not hooks.active:
            return
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        print("Traceback (most recent call last):", file=sys.stderr)
        traceback.print_stack(frame, file=sys.stderr)
        print("KeyboardInterrupt", file=sys.stderr)
        _end_job(f"{hooks.who()} was interrupted while it waited in MPI", 130)
