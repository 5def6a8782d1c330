"""Runs PyTorch's own tests of torch.distributed, those of its wheel, on a backend, under mpirun.

    python tests/torch_backend/suite.py -n 4 [--backend gloo] [--part 1/3] [-k substring] [--json FILE]

The mpirun is the one beside this Python. A case that hangs or kills its job does not end the run: the next job begins
behind it. So does one that failed, for it may have left the ranks apart. The exit status is 0 if every case passed,
was skipped by the suite itself, or stands in EXPECTED. The suite needs expecttest.
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
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
# Cases that cannot pass on a machine without GPUs, or without what the suite has not asked for.
EXPECTED = {
    "test_all_to_all_cuda": "needs CUDA",
    "test_all_to_all_cuda_complex": "needs CUDA",
    "test_all_to_all_full_group_cuda": "needs CUDA",
    "test_all_to_all_group_cuda": "needs CUDA",  # runs with --told mpi only
    "test_batch_isend_irecv_op_err": "needs CUDA",
    "test_batch_isend_irecv_mixed_backend_err": "needs NCCL",
    "test_SyncBatchNorm_process_group": "needs torchvision",
}
BAD = ["failed", "error", "hung", "died"]
TO_START = 180.0  # seconds for the imports of all ranks
TO_FINISH = 60.0  # seconds for what follows the last case
# A rank that failed often leaves the others waiting for it. The suite's own file barrier gives up after 10 s.
GRACE = 15.0


class Result(NamedTuple):
    """How a case went, over all ranks."""

    case: str
    outcome: str
    reason: str
    seconds: float
    tricks: list[str] = []  # what the case met of the stand-ins in suite_ranks.Words  # noqa: RUF012

    @property
    def bad(self) -> bool:
        """Whether this must not be."""
        return self.outcome in BAD and self.case not in EXPECTED


@dataclass
class Case:
    """What the ranks have told of a case so far."""

    name: str
    begun: float
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    left: bool = False  # a rank has gone on to what comes next, which it does after all have agreed on it

    def failures(self) -> list[tuple[int, dict[str, Any]]]:
        """Return who failed, the first one first: the others often fail for its sake."""
        bad = [(rank, end) for rank, end in self.ends.items() if end["outcome"] in BAD]
        return sorted(bad, key=lambda one: one[1]["time"])


class Job:
    """An mpirun with the cases behind `after`."""

    def __init__(self, number: int, options: argparse.Namespace, logs: Path, folder: Path, after: str | None) -> None:
        self.size: int = options.n
        self.log = logs / f"job-{number}"
        self.output = logs / f"job-{number}.out"
        self.cases: list[Case] = []
        self._by_name: dict[str, Case] = {}
        self.names: list[str] = []
        self.pids: dict[int, int] = {}
        self.done = 0
        self.since = time.time()
        self._read = [0] * self.size
        command = [str(Path(sys.executable).parent / "mpirun"), "-n", str(self.size), sys.executable]
        command += [str(HERE / "suite_ranks.py"), "--backend", options.backend, "--told", options.told]
        command += ["--part", options.part, "--folder", str(folder), "--log", str(self.log)]
        command += ["--strict-events"] * options.strict_events
        command += ["--heed"] * options.heed
        command += [word for k in options.k for word in ("-k", k)] + (["--after", after] if after else [])
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={"OMP_NUM_THREADS": "1", **os.environ},
            )

    def listen(self) -> None:
        """Read what the ranks have written since the last time."""
        for rank in range(self.size):
            path = Path(f"{self.log}-rank-{rank}.jsonl")
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._read[rank])
                whole = file.read().rpartition(b"\n")[0]
            self._read[rank] += len(whole) + 1 if whole else 0
            for line in whole.splitlines():
                self._note(rank, json.loads(line))

    def _note(self, rank: int, event: dict[str, Any]) -> None:
        self.since = max(self.since, event["time"])
        if event["event"] == "ready":
            self.pids[rank] = event["pid"]
            self.names = event["cases"]
        elif event["event"] == "begin":
            if event["case"] not in self._by_name:
                self._leave()
                self.cases.append(Case(event["case"], event["time"]))
                self._by_name[event["case"]] = self.cases[-1]
        elif event["event"] == "end":
            self._by_name[event["case"]].ends[rank] = event
        else:
            self.done += 1
            self._leave()

    def _leave(self) -> None:
        if self.cases:
            self.cases[-1].left = True

    def stacks(self) -> str:
        """Return where every rank is, by faulthandler, which answers in MPI and with the GIL in hand too."""
        told = []
        for rank, pid in sorted(self.pids.items()):
            path = Path(f"{self.log}-rank-{rank}.stacks")
            try:
                os.kill(pid, signal.SIGUSR1)
                time.sleep(0.5)
            except ProcessLookupError:
                told.append(f"-- rank {rank} has ended\n")
                continue
            told.append(f"-- rank {rank} is here:\n{path.read_text()}")
        return "\n".join(told)

    def last_words(self) -> str:
        """Return the line of the job's output that tells most of why it ended."""
        lines = [line.strip() for line in self.output.read_text(errors="replace").splitlines() if line.strip(" =|")]
        lines = [line for line in lines if "Warning" not in line]
        telling = [line for line in lines if any(word in line for word in ("rror", "terminate", "bort", "signal"))]
        return (telling or lines or ["no output"])[-1]

    def stop(self) -> None:
        """End the job. mpirun passes SIGTERM on to its ranks; killing it at once would leave them behind."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        for pid in self.pids.values():
            try:
                if b"suite_ranks.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                continue


class Run:
    """All jobs of a run, and their results."""

    def __init__(self, options: argparse.Namespace, logs: Path) -> None:
        self.options, self.logs = options, logs
        self.results: list[Result] = []
        self.names: list[str] = []

    def note(self, result: Result, details: str = "") -> None:
        """Keep a result, on the disk too, and tell of it if it is not good."""
        self.results.append(result)
        with (self.logs / "results.jsonl").open("a") as file:
            file.write(json.dumps(result._asdict()) + "\n")
        if result.outcome in BAD:
            print(f"{result.outcome:<8} {result.case}: {result.reason}", flush=True)
            with (self.logs / "failures.log").open("a") as file:
                file.write(f"======== {result.case}: {result.outcome}: {result.reason}\n{details}\n\n")

    def all(self, folder: Path) -> None:
        """Run jobs until every case has its result."""
        after: str | None = None
        number = 0
        while True:
            number += 1
            job = Job(number, self.options, self.logs, folder / str(number), after)
            try:
                for result, details in self.watch(job):
                    self.note(result, details)
            finally:
                job.stop()
            self.names = job.names or self.names
            if not job.cases or job.cases[-1].name == job.names[-1]:
                return
            after = job.cases[-1].name

    def watch(self, job: Job) -> Iterator[tuple[Result, str]]:
        """Yield the results of a job, until it ends or must be ended."""
        settled = 0
        while True:
            exited = job.process.poll()  # before the files are read, so that they are whole then
            job.listen()
            # The ranks' files are read one after the other: the end of a case may be seen only the next time.
            while settled < len(job.cases) and job.cases[settled].left and len(job.cases[settled].ends) == job.size:
                yield over(job.cases[settled]), ""
                settled += 1
            if settled < len(job.cases):
                verdict = self.judge(job, job.cases[settled], exited)
                if verdict:
                    yield verdict
                    return
            elif exited is not None:
                if exited or job.done < job.size:
                    yield self.broken(job, "died", f"the job ended with exit status {exited}: {job.last_words()}")
                return
            elif time.time() > job.since + (TO_FINISH if job.done else TO_START):
                yield self.broken(job, "hung", "the job did not " + ("end" if job.done else "start"))
                return
            time.sleep(0.05)

    def judge(self, job: Job, case: Case, exited: int | None) -> tuple[Result, str] | None:
        """Return the result of a case that will not go on, or None while it may."""
        now = time.time()
        failures = case.failures()
        if failures:
            rank, first = failures[0]
            waiting = [str(rank) for rank in range(job.size) if rank not in case.ends]
            if waiting and exited is None and now < first["time"] + GRACE:
                return None
            details = "".join(f"---- rank {rank} of {job.size}\n{end['traceback']}\n" for rank, end in failures)
            if waiting:
                details += job.stacks() if exited is None else f"the job ended with exit status {exited}\n"
            reason = f"rank {rank}: {first['reason']}"
            if waiting:
                reason += f" (ranks still in it {GRACE:.0f} s later: {', '.join(waiting)})"
            return Result(case.name, first["outcome"], reason, now - case.begun, first["tricks"]), details
        if exited is not None:
            where = "after the case" if len(case.ends) == job.size else "in it"
            reason = f"the job ended {where} with exit status {exited}: {job.last_words()}"
            return Result(case.name, "died", reason, now - case.begun), job.output.read_text(errors="replace")[-6000:]
        if now > case.begun + self.options.limit:
            where = ", ".join(str(rank) for rank in range(job.size) if rank not in case.ends)
            reason = f"not done after {self.options.limit:.0f} s on ranks {where}" if where else "hung after its end"
            return Result(case.name, "hung", reason, now - case.begun), job.stacks()
        return None

    def broken(self, job: Job, outcome: str, reason: str) -> tuple[Result, str]:
        """Return the result of a job that broke outside of any case."""
        details = job.stacks() + job.output.read_text(errors="replace")[-6000:]
        return Result(f"(job {job.log.name[4:]})", outcome, reason, 0.0), details

    def table(self, seconds: float) -> str:
        """Return all that a reader wants to know, the totals last."""
        by = {word: [r for r in self.results if r.outcome == word] for word in ["passed", *BAD, "skipped"]}
        lines = []
        for word in BAD:
            for r in by[word]:
                excuse = f" [expected: {EXPECTED[r.case]}]" if r.case in EXPECTED else ""
                lines.append(f"{word:<8} {r.case}: {r.reason}{excuse}")
        lines += [f"passed though listed as impossible: {r.case}" for r in by["passed"] if r.case in EXPECTED]
        for trick in sorted({trick for r in self.results for trick in r.tricks}):
            met = [r.case for r in self.results if trick in r.tricks]
            lines.append(f"stand-in {trick}, see suite_ranks.Words: {len(met)} cases: {', '.join(met)}")
        missing = set(self.names) - {r.case for r in self.results}
        lines += [f"not run: {', '.join(sorted(missing))}"] * bool(missing)
        whys = Counter(r.reason for r in by["skipped"])
        lines += [f"skipped  {number:>3}: {why}" for why, number in whys.most_common()]
        ran = sum(len(by[word]) for word in ["passed", *BAD])
        counts = ", ".join(f"{len(by[word])} {word}" for word in ["passed", *BAD])
        options = self.options
        lines.append(
            f"{options.backend} on {options.n} ranks (the suite was told {options.told}): {ran} run: {counts};"
            f" {len(by['skipped'])} skipped; {sum(r.bad for r in self.results)} unexpected; {seconds:.0f} s"
        )
        return "\n".join(lines)


def over(case: Case) -> Result:
    """Return the result of a case that all ranks have left: passed, or skipped if it was skipped on rank 0."""
    first = case.ends[0]
    others = {end["outcome"] for end in case.ends.values()} - {first["outcome"]}
    reason = first["reason"] + f" ({others.pop()} on other ranks)" if others else first["reason"]
    seconds = max(end["time"] for end in case.ends.values()) - case.begun
    tricks = sorted({trick for end in case.ends.values() for trick in end["tricks"]})
    return Result(case.name, first["outcome"], reason, round(seconds, 2), tricks)


def main() -> int:
    """Run what the command line asks for. Return 1 if anything went wrong that is not expected, or nothing ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=4, metavar="RANKS", help="how many ranks (4)")
    parser.add_argument("--backend", default="mpicoll", help="what the groups are (mpicoll), or gloo")
    parser.add_argument(
        "--told", help="what the suite takes it for: its conditions ask for that (mpi; gloo below 3 ranks)"
    )
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every N-th case, from the I-th on")
    parser.add_argument("-k", action="append", default=[], metavar="WORD", help="only cases with this in their names")
    parser.add_argument("--limit", type=float, default=60.0, metavar="S", help="seconds for each case (60)")
    parser.add_argument("--strict-events", action="store_true", help="want profiler events to end on another thread")
    parser.add_argument("--heed", action="store_true", help="heed the conditions that name a backend, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE")
    options = parser.parse_args()
    # Below 8 ranks the suite leaves its cases on subgroups to MPI; on two ranks, which they do not fit, to nobody.
    options.told = options.told or ("mpi" if options.n > 2 else "gloo")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the job is ended first
    start = time.monotonic()
    logs = Path(tempfile.mkdtemp(prefix="mpicoll-suite-"))
    print(f"logs: {logs}, failures with tracebacks: {logs}/failures.log", flush=True)
    run = Run(options, logs)
    with tempfile.TemporaryDirectory(prefix="mpicoll-suite-groups-") as folder:
        run.all(Path(folder))
    print(f"\n{run.table(time.monotonic() - start)}", flush=True)
    if options.json:
        options.json.write_text(json.dumps([result._asdict() for result in run.results], indent=1))
    return int(len(run.results) < max(1, len(run.names)) or any(result.bad for result in run.results))


if __name__ == "__main__":
    sys.exit(main())
