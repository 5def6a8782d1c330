"""Jobs of their own, with a clock: what a test of failures, start, finish and environment needs.

A test here is one script. The fixture `job(script, n=2)` runs it under `mpirun -n 2 python script.py` and tells how it
ended. The mpirun is the one beside this Python; `MPICOLL_TEST_MPIRUN` names another, `MPICOLL_TEST_MPIRUN_ARGS` adds
options.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO

import pytest

# What a launcher or another job leaves behind would be read by the job under test.
LAUNCHER_PREFIXES = ("PMI", "OMPI_", "PRTE_", "HYDRA_", "MPIR_", "MPI_", "SLURM_", "TORCHELASTIC_", "MPICOLL_")
LAUNCHER_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"}

# What nearly every script starts with. `say` writes a whole line at once, so that lines of two ranks do not mix.
START = """\
import os, signal, sys, threading, time
import numpy as np
import mpicoll as dist

def say(text):
    os.write(1, (text + "\\n").encode())

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
"""
SAY = START[: START.index("dist.init")]


@dataclass
class Ended:
    """How a job ended: its exit status (None: still running at the limit, and killed), its output, its clock."""

    code: int | None = None
    out: str = ""
    err: str = ""
    ended: float = 0.0
    stamps: list[tuple[float, str]] = field(default_factory=list)

    def seconds_after(self, mark: str) -> float:
        """Seconds from the first line of output that holds `mark` to the end of the job."""
        seen = [when for when, line in self.stamps if mark in line]
        assert seen, f"the job never printed {mark!r}: {self}"
        return self.ended - seen[0]

    def lines(self) -> list[str]:
        """Return the lines of standard output, sorted: ranks print in any order."""
        return sorted(self.out.splitlines())


RunJob = Callable[..., Ended]


def mpirun_path() -> str:
    """Return the mpirun that starts the jobs."""
    beside = Path(sys.executable).parent / "mpirun"
    found = os.environ.get("MPICOLL_TEST_MPIRUN") or (str(beside) if beside.exists() else shutil.which("mpirun"))
    if not found:
        pytest.fail("no mpirun beside this Python nor on PATH; name one in MPICOLL_TEST_MPIRUN")
    return found


def clean_environment(mpirun: str) -> dict[str, str]:
    """Return this environment without a launcher's traces, able to find mpirun's helpers and the mpicoll under test."""
    import mpicoll

    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(LAUNCHER_PREFIXES) and name not in LAUNCHER_NAMES
    }
    source = str(Path(mpicoll.__file__).resolve().parent.parent)
    kept["PYTHONPATH"] = os.pathsep.join(part for part in (source, kept.get("PYTHONPATH")) if part)
    # Intel's mpirun is a shell script that looks for its hydra on PATH.
    kept["PATH"] = os.pathsep.join((str(Path(mpirun).parent), kept.get("PATH", "")))
    kept["OMP_NUM_THREADS"] = "1"
    if is_open_mpi(mpirun):
        kept |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return kept


@lru_cache
def is_open_mpi(mpirun: str) -> bool:
    """Tell whether this mpirun is Open MPI's, which counts cores and minds root."""
    answer = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" in answer.stdout + answer.stderr


def launch_line(mpirun: str, n: int) -> list[str]:
    """Return the words that start `n` ranks."""
    extra = shlex.split(os.environ.get("MPICOLL_TEST_MPIRUN_ARGS", ""))
    return [mpirun, *(["--oversubscribe"] if is_open_mpi(mpirun) else []), *extra, "-n", str(n)]


def run_timed(line: Sequence[str], environment: Mapping[str, str], limit: float) -> Ended:
    """Run a command to its end, or to the limit, and note when each line came."""
    process = subprocess.Popen(
        line, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    ended = Ended()
    errors: list[str] = []

    def read_output(stream: IO[str]) -> None:
        for text in stream:
            ended.stamps.append((time.monotonic(), text))

    assert process.stdout is not None
    assert process.stderr is not None
    readers = [
        threading.Thread(target=read_output, args=(process.stdout,), daemon=True),
        threading.Thread(target=lambda stream: errors.extend(stream), args=(process.stderr,), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        ended.code = process.wait(limit)
    except subprocess.TimeoutExpired:
        stop(process)
    ended.ended = time.monotonic()
    for reader in readers:
        reader.join(10)
    ended.out, ended.err = "".join(text for _, text in ended.stamps), "".join(errors)
    return ended


def stop(process: "subprocess.Popen[str]") -> None:
    """End a job: mpirun, and the ranks, which would outlive it."""
    family = descendants(process.pid)
    process.terminate()
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Return the processes that `pid` has started, and those that they have."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, new = [], [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found += new
    return found
