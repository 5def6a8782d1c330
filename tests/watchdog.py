"""Ends a job whose test hangs, and shows where each rank hangs."""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

APART = 0.3  # seconds from one rank's stacks to the next one's, so that they do not mix
HUNG = 70  # the exit status of a rank that was ended
# Files whose frames say nothing about a test
MACHINERY = (f"{os.sep}_pytest{os.sep}", f"{os.sep}pytest{os.sep}", f"{os.sep}pluggy{os.sep}", "<frozen runpy>")


class Watchdog:
    """One rank's clock. Each rank runs its own: in a hang they all run out at the same time.

    A thread writes the stacks, which it can while the main thread is inside MPI, since mpi4py lets go of the GIL there.
    Where something hangs with the GIL in hand, faulthandler's own thread does it a few seconds later.
    """

    def __init__(self, comm: MPI.Intracomm, stderr: int) -> None:
        self.rank, self.size, self.stderr = comm.rank, comm.size, stderr
        self._late = APART * comm.size + 4.0
        self._what = ""
        self._deadline = float("inf")
        # A rank that gives up makes this file. The ranks of another machine may not see it: theirs are not shown then.
        self._alarm: Path = comm.bcast(Path(tempfile.gettempdir(), f"mpicoll-tests-gave-up-{os.getpid()}"))
        self._alarm.unlink(missing_ok=True)
        threading.Thread(target=self._watch, name="watchdog of the tests", daemon=True).start()

    def arm(self, what: str, seconds: float) -> None:
        """Give `what` so many seconds from now."""
        self._what = what
        self._deadline = time.monotonic() + seconds
        faulthandler.dump_traceback_later(seconds + self._late, exit=True, file=self.stderr)

    def say(self, text: str) -> None:
        """Write to the terminal, whatever pytest captures."""
        os.write(self.stderr, f"\n---- rank {self.rank} of {self.size}: {text.rstrip()}\n".encode())

    def give_up(self, why: str) -> None:
        """End the job from a rank that cannot go on, after the other ranks have shown where they are."""
        self.say(why)
        self._alarm.touch()
        time.sleep(self._late + 2.0)
        self._alarm.unlink(missing_ok=True)
        os._exit(HUNG)

    def _watch(self) -> None:
        while time.monotonic() < self._deadline and not self._alarm.exists():
            time.sleep(0.5)
        why = "another rank gave up in" if self._alarm.exists() else "out of time in"
        faulthandler.cancel_dump_traceback_later()
        time.sleep(APART * self.rank)
        self.say(f"{why} {self._what}. This rank is here:\n{stacks()}")
        # All wait for the last of those that faulthandler has to end, so that its stacks are seen too.
        time.sleep(self._late + 3.0)
        os._exit(HUNG)


def stacks() -> str:
    """Return the stacks of all threads but this one, without the frames of pytest."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    told = [
        f'-- thread "{names.get(ident, ident)}", most recent call last\n{_stack(frame)}'
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    ]
    return "".join(told)


def _stack(frame: FrameType) -> str:
    frames = traceback.extract_stack(frame)
    telling = [line for line in frames if not any(part in line.filename for part in MACHINERY)]
    if telling[:1] and telling[0].filename == threading.__file__:
        telling = telling[3:]  # how every thread begins
    return "".join(traceback.format_list(telling or frames))
