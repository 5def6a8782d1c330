"""When a rank fails, the whole job ends.

MPI alone does not see to that: a rank whose Python raises goes to MPI_Finalize and waits there for the others, which
wait for it in a collective. While there is a process group, so

- an uncaught exception prints its traceback and aborts the job;
- so does an exit with a non-zero status through ``sys.exit``, ``exit`` or ``quit``;
- so does Ctrl-C (SIGINT), also where the main thread sits in MPI and Python cannot raise KeyboardInterrupt.
"""

from __future__ import annotations

import builtins
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from mpicoll.mpi import library

# How long an interrupted rank has to raise KeyboardInterrupt by itself, in seconds.
_INTERRUPT_GRACE = 2.0
# How long other ranks have to print what they are about to, where this one leaves in good order, in seconds.
_EXIT_GRACE = 1.0


class _Hooks:
    """What was there before, to be put back."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.rank = library.MPI.COMM_WORLD.Get_rank()
        self.size = library.MPI.COMM_WORLD.Get_size()
        self.excepthook = sys.excepthook
        self.exit = sys.exit
        self.builtins = {name: getattr(builtins, name) for name in ("exit", "quit") if hasattr(builtins, name)}

    @property
    def active(self) -> bool:
        return _hooks is self and os.getpid() == self.process and library.is_running()

    def who(self) -> str:
        return f"mpicoll: rank {self.rank} of {self.size}"


_hooks: _Hooks | None = None
_interrupts: _Interrupts | None = None


def install() -> None:
    """Begin to end the job when this rank fails. Does nothing the second time."""
    global _hooks, _interrupts
    if _hooks is not None:
        return
    _hooks = _Hooks()
    sys.excepthook = _on_exception
    sys.exit = _exit  # type: ignore[assignment]
    for name in _hooks.builtins:
        setattr(builtins, name, _exit)
    if _interrupts is None and threading.current_thread() is threading.main_thread():
        _interrupts = _Interrupts.watch()


def uninstall() -> None:
    """Leave failures to Python and MPI again."""
    global _hooks, _interrupts
    if _hooks is None:
        return
    if sys.excepthook is _on_exception:
        sys.excepthook = _hooks.excepthook
    if sys.exit is _exit:
        sys.exit = _hooks.exit
    for name, original in _hooks.builtins.items():
        setattr(builtins, name, original)
    _hooks = None
    if _interrupts is not None and threading.current_thread() is threading.main_thread():
        _interrupts.close()
        _interrupts = None


def _on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    hooks = _hooks
    if hooks is None:
        sys.__excepthook__(kind, error, trace)
        return
    hooks.excepthook(kind, error, trace)
    if hooks.active:
        _end_job(f"{hooks.who()} ended with {kind.__name__}", 130 if issubclass(kind, KeyboardInterrupt) else 1)


def _end_job(reason: str, code: int) -> None:
    print(f"{reason}; ending the job", file=sys.stderr, flush=True)
    library.abort(code)


class _Exit(SystemExit):
    """A SystemExit that knows when the interpreter takes it up: it then reads `code` with no Python code around it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._code = arguments[0] if len(arguments) == 1 else arguments or None

    @property
    def code(self) -> Any:
        """The status, as of SystemExit."""
        if sys._getframe().f_back is None:
            self._leave()
        return self._code

    @code.setter
    def code(self, value: Any) -> None:
        self._code = value

    def _leave(self) -> None:
        status = self._code
        hooks = _hooks
        if hooks is None or not hooks.active or status is None or status == 0:
            return
        traceback.print_exception(type(self), self, self.__traceback__)
        time.sleep(_EXIT_GRACE)
        _end_job(
            f"{hooks.who()} called exit({status!r})", status & 0xFF if isinstance(status, int) and status & 0xFF else 1
        )


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"
_Exit.__module__ = "builtins"


def _exit(status: Any = None) -> None:
    """Exit the interpreter with a status; a non-zero one ends the job (mpicoll's ``sys.exit``)."""
    if threading.current_thread() is threading.main_thread():
        raise _Exit(status)
    raise SystemExit(status)  # ends the thread alone


class _Interrupts:
    """Watches for a SIGINT that Python cannot act on, because the main thread sits in MPI.

    C's signal handler writes to a pipe at once, whereas Python's handler has to wait until the main thread is back in
    Python.
    """

    def __init__(self, previous: Callable[[int, FrameType | None], Any]) -> None:
        self._previous = previous
        self._handled = float("-inf")
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
        return interrupts

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._handled = time.monotonic()
        self._previous(number, frame)

    def _loop(self) -> None:
        while numbers := os.read(self._reader, 16):
            if signal.SIGINT in numbers and not self._is_handled():
                self._end()
        os.close(self._reader)

    def _is_handled(self) -> bool:
        # Python's handler may have run before this thread came to read the pipe, hence the half second.
        now = time.monotonic()
        while self._handled < now - 0.5:
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

    def close(self) -> None:
        """Put Python's own handling back."""
        if signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._previous)
        current = signal.set_wakeup_fd(-1)
        if current != self._writer:  # an event loop's, by now
            signal.set_wakeup_fd(current)
        os.close(self._writer)  # which ends the thread
