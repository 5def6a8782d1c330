"""Runs the suites one after the other, all of them even where one fails, and prints a line for each at the end.

    python tests/run.py unit 1 2 3 4 torch_backend:2 faults [-- options of pytest]

NAME:n stands for tests/NAME under `mpirun -n N`, a number for tests/ranks so, a name for tests/NAME without mpirun. The
mpirun is the one beside this Python. What an MPI needs in the environment (Open MPI as root, more ranks than cores) the
Makefile sets.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NO_TESTS = 5  # pytest's exit status where it ran none


class Outcome(NamedTuple):
    """How one suite went."""

    suite: str
    status: int
    counts: dict[str, int] | None
    last: str
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether anything went wrong. That -k leaves a suite no test is not wrong: see `main`."""
        return self.status not in (0, NO_TESTS)

    def __str__(self) -> str:
        words = ["passed", "failed", "error", "skipped", "xfailed", "xpassed"]
        if self.counts is None:
            told = f"the job ended in {self.last}"
        else:
            told = ", ".join(f"{self.counts.get(w, 0)} {w}" for w in words if w == "passed" or self.counts.get(w))
        verdict = f"FAILED (exit {self.status})" if self.failed else "ok"
        return f"{label(self.suite):<22} {verdict:<16} {told:<40} {self.seconds:6.0f} s"


def label(suite: str) -> str:
    """Return the name of a suite for a person."""
    folder, n = parts(suite)
    return f"{folder}, n = {n}" if n else folder


def parts(suite: str) -> tuple[str, str]:
    """Return the folder of a suite and its number of ranks, empty without mpirun."""
    if suite.isdigit():
        return "ranks", suite
    folder, _, n = suite.partition(":")
    return folder, n


def command(suite: str, options: list[str], counts: Path) -> list[str]:
    """Return the command that runs a suite."""
    # The cache that --lf reads would be written by all ranks at once.
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--counts={counts}"]
    # Open MPI gives rank 0 a terminal of its own, the others a pipe: what counts is where this script prints.
    pytest += [f"--color={'yes' if sys.stdout.isatty() else 'no'}", *options]
    folder, n = parts(suite)
    if not n:
        return [*pytest, f"tests/{folder}"]
    mpirun = Path(sys.executable).parent / "mpirun"
    return [str(mpirun), "-n", n, *pytest, "--with-mpi", f"tests/{folder}"]


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a job. mpirun passes SIGTERM on to its ranks; killing it at once would leave them behind."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def run(suite: str, options: list[str], limit: float) -> Outcome:
    """Run one suite."""
    print(f"\n==== {label(suite)}", flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mpicoll-tests-") as folder:
        counts = Path(folder) / "counts.json"
        process = subprocess.Popen(
            command(suite, options, counts),
            cwd=ROOT,
            env={"COLUMNS": "120", **os.environ},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            print(f"==== {label(suite)}: not done after {limit:.0f} s", flush=True)
            status = 124
        finally:
            if process.poll() is None:
                stop(process)
        # A job that breaks down after its last test has failed, though mpirun may say otherwise.
        found: dict[str, int] | None = json.loads(counts.read_text()) if counts.exists() else None
        now = Path(f"{counts}.now")
        last = now.read_text() if now.exists() else "its start"
    if found is None and status == 0:
        status = 1
    return Outcome(suite, status, found, last, time.monotonic() - start)


def main() -> int:
    """Run what the command line names. Return 1 if anything failed, or if no test ran at all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+", help="a number of ranks, or a folder of tests/")
    parser.add_argument("--limit", type=float, default=2400.0, metavar="S", help="seconds for each suite (2400)")
    # argparse would swallow the "--" itself
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:cut])
    for suite in arguments.suites:
        if not (ROOT / "tests" / parts(suite)[0]).is_dir():
            parser.error(f"there is no folder tests/{parts(suite)[0]}")
    outcomes = [run(suite, words[cut + 1 :], arguments.limit) for suite in arguments.suites]
    print("\n==== " + " ".join(sys.argv), *outcomes, sep="\n", flush=True)
    ran = sum((outcome.counts or {}).get("passed", 0) for outcome in outcomes)
    if not ran:
        print("no test passed")
    return int(not ran or any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
