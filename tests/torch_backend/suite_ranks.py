"""What each rank of tests/torch_backend/suite.py runs: cases of PyTorch's own distributed suite, one after the other.

PyTorch starts new processes for every case. Here one MPI job runs many, each with a process group of its own, which
its own `TestDistBackend._run` makes and destroys. What a rank has to say goes to a file of lines of JSON, at once:
what it begins, how that ended, and the traceback. The driver reads them; it is the only one with a clock, and it ends
the job behind a case that failed, so that the next one meets no remains.

The suite knows torch's own backends only, so it is told that it tests one of them (--told): see `Words`.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import signal
import sys
import time
import traceback
import unittest
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

if TYPE_CHECKING:
    from mpi4py import MPI

SUITE = "torch.testing._internal.distributed.distributed_test"
# Cases that compare the group's name with the name that the suite was told. For them it is the true one.
TRUE_NAME = {"test_get_backend", "test_Backend_enum_class"}
# The suite's lists of the backends whose operations a profiler sees. It asks for events only of those.
PROFILED = [
    "PROFILING_SUPPORTED_BACKENDS",
    "CUDA_PROFILING_SUPPORTED_BACKENDS",
    "SEND_RECV_PROFILING_SUPPORTED_BACKENDS",
]
MOST_TRACEBACK = 6000  # characters


class Words:
    """What the suite takes for `torch.distributed`, where it tests a backend that it does not know.

    Everything that differs from torch.distributed is here, and `used` tells which cases have met it:

    - `init_process_group` makes a group of the backend under test where the case asks for the one that the suite was
      told. All ranks being in it, MPI knows the rank and the size, and there is no store to name.
    - `monitored_barrier` is torch's. Where torch refuses it for the backend's name, it is called once more while torch
      takes the name for "gloo", so that what the backend does is tested; a user gets the refusal.

    - `get_profiling_event` finds what a profiler saw of the backend's operations, `mpicoll:all_reduce`. The suite wants
      each one `is_async`, which is to say: it ended on another thread than the one on which it began. An operation that
      the caller's own thread carries out is not that, and is right. Names, numbers and shapes are still looked at.

    `get_backend` is torch's, with the true name.
    """

    def __init__(self, backend: str, told: str) -> None:
        self.backend, self.told = backend, told
        self.used: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(torch_distributed(), name)

    def init_process_group(
        self, backend: str, timeout: timedelta, world_size: int, rank: int, init_method: str
    ) -> None:
        """Make a group of the backend under test."""
        dist = torch_distributed()
        self.used.append("init_process_group")
        if backend == self.told:
            backend = self.backend
        if backend != "gloo" and world_size == int(os.environ["WORLD_SIZE"]):
            dist.init_process_group(backend, timeout=timeout)
        else:
            dist.init_process_group(backend, init_method, timeout, world_size, rank)

    def monitored_barrier(self, group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Call torch's, past its look at the name."""
        dist = torch_distributed()
        try:
            dist.monitored_barrier(group, timeout, wait_all_ranks)
        except ValueError as error:
            if "only implemented for GLOO" not in str(error):
                raise
            self.used.append("monitored_barrier")
            with mock.patch.object(dist.distributed_c10d, "get_backend", return_value="gloo"):
                dist.monitored_barrier(group, timeout, wait_all_ranks)

    def events(self, find: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """Return `get_profiling_event`, made to take events of the caller's thread for good."""

        def get_profiling_event(*args: Any, **named: Any) -> list[Any]:
            found = find(*args, **named)
            for event in found:
                if not event.is_async:
                    self.used.append("is_async")
                    event.is_async = True
            return found

        return get_profiling_event


class Outcome(NamedTuple):
    """How a case went on this rank."""

    outcome: str
    reason: str = ""
    traceback: str = ""


class Suite:
    """The suite, and what a case finds around it."""

    def __init__(self, comm: MPI.Intracomm, options: argparse.Namespace) -> None:
        self.comm, self.options = comm, options
        # The suite's conditions read these when it is imported.
        os.environ["PYTORCH_PRINT_REPRO_ON_FAILURE"] = "0"  # it would name a command that there is not
        os.environ.update(
            BACKEND=options.told, WORLD_SIZE=str(comm.size), INIT_METHOD="file://", MASTER_ADDR="127.0.0.1"
        )
        if options.backend != "gloo":
            importlib.import_module(options.backend)  # makes the backend known to torch
        if not options.heed:
            set_conditions_aside()
        self.module: Any = importlib.import_module(SUITE)
        self.skips = {skip.exit_code: skip.message for skip in self.module.TEST_SKIPS.values()}
        bases = (self.module.TestDistBackend, self.module.DistributedTest._DistTestBase)
        self.cases: Any = type("TestDistBackendWithMpi", bases, {"run_test": run_test})
        self.words = Words(options.backend, options.told)
        if options.backend != options.told:
            vars(self.module)["dist"] = self.words
            for name in PROFILED:
                getattr(self.module, name).append(options.backend)
            if not options.strict_events:
                vars(self.module)["get_profiling_event"] = self.words.events(self.module.get_profiling_event)

    def names(self) -> list[str]:
        """Return the cases of the part that was asked for, in the order of unittest."""
        names: list[str] = unittest.TestLoader().getTestCaseNames(self.cases)  # type: ignore[assignment]
        wanted: list[str] = self.options.k
        names = [name for name in names if not wanted or any(word in name for word in wanted)]
        part, parts = map(int, self.options.part.split("/"))
        return names[part - 1 :: parts]

    def run(self, name: str, folder: Path) -> Outcome:
        """Run a case as the suite does it, and find out what its exit status means."""
        self.words.used = []
        method = getattr(self.cases, name)
        if getattr(method, "__unittest_skip__", False):  # unittest looks here before it runs anything
            return Outcome("skipped", method.__unittest_skip_why__)
        self.set_up(name, folder)
        try:
            self.cases._run(self.comm.rank, name, str(folder / "store"), None)
        except SystemExit as end:
            if end.code in (0, None):
                return Outcome("passed")
            if end.code in self.skips:
                return Outcome("skipped", self.skips[end.code])
            return Outcome("failed", f"exited with {end.code}", short(traceback.format_exc()))
        except unittest.SkipTest as skip:
            return Outcome("skipped", str(skip))
        except Exception as error:
            kind = "failed" if isinstance(error, AssertionError) else "error"
            return Outcome(kind, reason(error), short(traceback.format_exc()))
        return Outcome("error", "the suite came back without an exit status")

    def set_up(self, name: str, folder: Path) -> None:
        """Do what `TestDistBackend.setUp` does in the process that starts the ranks of a case."""
        for inner in ("barrier", "test_dir", "init_dir"):
            (folder / inner).mkdir(parents=True, exist_ok=True)  # all ranks come here
        os.environ["TEMP_DIR"] = str(folder)
        self.module.INIT_METHOD = f"file://{folder}/init_dir/shared_init_file"
        self.module.Barrier.barrier_id = 0
        self.module.BACKEND = self.options.backend if name in TRUE_NAME else self.options.told

    def tidy(self, environment: dict[str, str]) -> None:
        """Take back what a case may have left: it counts on a process of its own."""
        dist = torch_distributed()
        if dist.is_initialized():  # it skipped itself after its group had been made
            dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(environment)
        dist.set_debug_level_from_env()

    def tricks(self, name: str) -> list[str]:
        """Return what the case met of `Words`, but for the group that is made for every case."""
        used = self.words.used[1:] if self.words.used[:1] == ["init_process_group"] else self.words.used
        told = ["BACKEND"] if name in TRUE_NAME and self.options.backend != self.options.told else []
        return sorted({*used, *told})


def set_conditions_aside() -> None:
    """Let every case run that torch keeps for some backend, like "Only MPI supports all_to_all"; heed world sizes.

    Such a condition tells nothing of a backend that torch does not know. Those that look for GPUs stay: these end a
    case while it runs, as do unittest's own, which name torch's issues.
    """
    common_utils: Any = importlib.import_module("torch.testing._internal.common_utils")
    heed = common_utils.skip_but_pass_in_sandcastle

    def skip(reason: str) -> Callable[[Any], Any]:
        return heed(reason) if "world size" in reason else lambda case: case

    def skip_if(condition: bool, reason: str) -> Callable[[Any], Any]:
        return skip(reason) if condition else lambda case: case

    common_utils.skip_but_pass_in_sandcastle = skip
    common_utils.skip_but_pass_in_sandcastle_if = skip_if


def torch_distributed() -> Any:
    """Return torch.distributed, without its types: some of what is used here is not public."""
    return importlib.import_module("torch.distributed")


def run_test(self: Any, name: str, pipe: object) -> None:
    """Run a case, in place of `MultiProcessTestCase.run_test`, which turns exceptions into an exit status."""
    common_utils: Any = importlib.import_module("torch.testing._internal.common_utils")
    common_utils.set_rng_seed()
    getattr(self, name)()


def reason(error: Exception) -> str:
    """Return one line for an exception; of a bare assertion the line of the suite, too."""
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith("_test.py")]
    where = f" at line {frames[-1].lineno}: {frames[-1].line}" if frames and isinstance(error, AssertionError) else ""
    return f"{type(error).__name__}: {text}{where}"


def short(text: str) -> str:
    """Return the end of a traceback, which tells most."""
    return text if len(text) <= MOST_TRACEBACK else f"[...]{text[-MOST_TRACEBACK:]}"


def agree(comm: MPI.Intracomm) -> None:
    """Wait for the other ranks, asleep: ranks may share a core. How long that may take is the driver's concern."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.001)


def main() -> None:
    """Run the cases behind --after, all ranks the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--told", required=True)
    parser.add_argument("--part", required=True)
    parser.add_argument("--strict-events", action="store_true")
    parser.add_argument("--heed", action="store_true")
    parser.add_argument("-k", action="append", default=[])
    parser.add_argument("--after", help="the last case that is already done")
    parser.add_argument("--folder", type=Path, required=True, help="where the groups of the cases meet")
    parser.add_argument("--log", required=True, help="the beginning of the names of this job's files")
    options = parser.parse_args()
    sys.argv[1:] = []  # the suite's modules must not take them for theirs

    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    with (
        open(f"{options.log}-rank-{comm.rank}.jsonl", "a", buffering=1) as log,
        open(f"{options.log}-rank-{comm.rank}.stacks", "w") as stacks,
    ):
        faulthandler.register(signal.SIGUSR1, stacks)  # the driver asks so where each rank is

        def tell(event: str, **more: object) -> None:
            log.write(json.dumps({"event": event, "time": time.time(), **more}) + "\n")

        suite = Suite(comm, options)
        names = suite.names()
        tell("ready", pid=os.getpid(), cases=names)
        agree(comm)
        for name in names[names.index(options.after) + 1 if options.after else 0 :]:
            environment = dict(os.environ)
            tell("begin", case=name)
            outcome = suite.run(name, options.folder / name)
            tell("end", case=name, tricks=suite.tricks(name), **outcome._asdict())
            while outcome.outcome not in ("passed", "skipped"):
                time.sleep(60)  # until the driver ends the job
            suite.tidy(environment)
            agree(comm)
        tell("done")


if __name__ == "__main__":
    main()
