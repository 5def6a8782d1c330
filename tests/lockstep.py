"""A plugin for the folders whose tests run on n ranks, under `mpirun -n N python -m pytest --with-mpi FOLDER`.

Every rank runs the same tests in the same order. After each one all ranks agree, over a communicator that mpicoll
knows nothing of, on how it went: a test that fails on one rank fails on all, and rank 0, the only one that prints,
shows each failing rank's error. A test that hangs ends the job, with the stacks of every rank.

The conftest.py of such a folder calls `register`.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests.watchdog import Watchdog

if TYPE_CHECKING:
    from mpi4py import MPI

TO_START = 120.0  # seconds for the imports and the collection
TO_FINISH = 60.0  # seconds for what follows the last test
# A rank that failed often leaves the others waiting for it. It gives them so many seconds to end the test too.
GRACE = 20.0
PASSED, SKIPPED, FAILED = b"PSF"
MOST_OUTPUT = 4000  # characters of captured output that another rank's failure brings along


class FromRanks:
    """What the ranks had to say about a test, in the place of a report's traceback."""

    def __init__(self, texts: list[str | None], summary: str) -> None:
        self.reprcrash = SimpleNamespace(message=summary)
        alike: dict[str, list[int]] = {}
        for rank, text in enumerate(texts):
            if text is not None:
                alike.setdefault(text, []).append(rank)
        self.text = "\n".join(
            f"---- rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} of {len(texts)}\n{text}"
            for text, ranks in alike.items()
        )

    def __str__(self) -> str:
        return self.text


class Ranks:
    """The ranks of the test run, and what they agree on."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.comm: MPI.Intracomm = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.rank, self.comm.size
        vendor, version = MPI.get_vendor()
        self.library = f"{vendor} {'.'.join(map(str, version))}"
        self.watchdog = Watchdog(self.comm, os.dup(2))
        self.collect_errors: list[str] = []

    def verdicts(self, mine: int, why: Callable[[], str]) -> list[int]:
        """Return each rank's verdict. End the job, telling `why`, where this rank failed and others do not come."""
        mail = bytearray(self.size)
        request = self.comm.Iallgather(bytes([mine]), mail)
        give_up = time.monotonic() + GRACE
        polls = 0
        while not request.Test():
            polls += 1
            time.sleep(0.0 if polls < 50 else 0.0005)  # ranks may share a core, so none may spin
            if mine == FAILED and time.monotonic() > give_up:
                self.watchdog.give_up(why())
        return list(mail)

    def settle(self, report: pytest.TestReport) -> None:
        """Make this phase of a test end alike on all ranks."""
        mine = {"passed": PASSED, "skipped": SKIPPED, "failed": FAILED}[report.outcome]
        verdicts = self.verdicts(mine, lambda: self._left_alone(report))
        if FAILED in verdicts:
            texts: list[str | None] = self.comm.allgather(_account(report) if mine == FAILED else None)
            crashes = self.comm.allgather(_crash(report) if mine == FAILED else "")
            first = verdicts.index(FAILED)
            summary = f"rank {first}: {crashes[first]}"
        elif len(set(verdicts)) > 1:
            texts = [f"the test {'passed' if verdict == PASSED else 'was skipped'} here" for verdict in verdicts]
            summary = "passed on some ranks and was skipped on others"
        else:
            return
        if self.size > 1:
            report.outcome = "failed"
            report.longrepr = FromRanks(texts, summary)  # type: ignore[assignment]
            report.sections = []  # they are in the texts

    def _left_alone(self, report: pytest.TestReport) -> str:
        return (
            f"failed in {report.nodeid}. After {GRACE:.0f} s another rank has not come to the end of it, so the job"
            f" ends here. The failure:\n{_account(report)}"
        )

    def compare_collections(self, session: pytest.Session) -> None:
        """Stop where the ranks would not run the same tests."""
        mine = [item.nodeid for item in session.items], self.collect_errors
        everyone = self.comm.allgather(mine)
        if all(theirs == everyone[0] for theirs in everyone):
            return
        told = [f"rank {rank}: {len(ids)} tests, {len(errors)} errors" for rank, (ids, errors) in enumerate(everyone)]
        told += [f"rank {rank}: {error}" for rank, (_, errors) in enumerate(everyone) for error in errors]
        for rank, (ids, _) in enumerate(everyone):
            differing = [(here, there) for here, there in zip(everyone[0][0], ids, strict=False) if here != there]
            if differing:
                told.append(f"first difference: rank 0 has {differing[0][0]}, rank {rank} has {differing[0][1]}")
                break
        text = "\n".join(["the ranks collected different tests", *told, ""])
        pytest.exit(text, returncode=pytest.ExitCode.USAGE_ERROR)


def _account(report: pytest.TestReport) -> str:
    output = "\n".join(f"-- {title}\n{text}" for title, text in report.sections)
    return f"{report.longreprtext}\n{output[-MOST_OUTPUT:]}".rstrip()


def _crash(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longreprtext).split("\n")[0]


class Breakdowns:
    """Ends the job where pytest itself broke down on one rank, for the others would wait for it."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def pytest_internalerror(self, excrepr: object) -> None:
        """Tell of it past pytest's terminal, which goes nowhere on most ranks."""
        if self.ranks.size > 1:
            self.ranks.watchdog.give_up(f"pytest itself broke down:\n{excrepr}")


RANKS = pytest.StashKey[Ranks]()


def register(config: pytest.Config) -> None:
    """Make the tests of this run those of n ranks."""
    if not config.pluginmanager.has_plugin(__name__):
        config.pluginmanager.register(sys.modules[__name__], __name__)


def pytest_configure(config: pytest.Config) -> None:
    """Start MPI, for the number of ranks decides what is collected; leave the terminal to rank 0."""
    ranks = config.stash[RANKS] = Ranks()
    ranks.watchdog.arm("the collection of the tests", TO_START)
    config.pluginmanager.register(Breakdowns(ranks))
    if ranks.rank > 0:
        config.option.counts = None
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        config.pluginmanager.unregister(reporter)
        config.pluginmanager.register(pytest.TerminalReporter(config, io.StringIO()), "terminalreporter")


def pytest_report_header(config: pytest.Config) -> str:
    """Tell which MPI this is."""
    ranks = config.stash[RANKS]
    return f"MPI: {ranks.library}, n = {ranks.size}"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Keep the errors, to show those that only some ranks have."""
    report = yield
    if report.failed:
        collector.config.stash[RANKS].collect_errors.append(f"{report.nodeid}: {report.longreprtext}")
    return report


def _runs_at(item: pytest.Item, size: int) -> bool:
    for mark in item.iter_markers("ranks"):
        least, most = mark.kwargs.get("min", 1), mark.kwargs.get("max", size)
        if not (least <= size <= most) or (mark.args and size not in mark.args):
            return False
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that are for other numbers of ranks."""
    size = config.stash[RANKS].size
    left_out = [item for item in items if not _runs_at(item, size)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if _runs_at(item, size)]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check that all ranks run the same tests."""
    session.config.stash[RANKS].compare_collections(session)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Start the clock of a test."""
    mark = item.get_closest_marker("time_limit")
    seconds = mark.args[0] if mark else item.config.getoption("--time-limit")
    item.config.stash[RANKS].watchdog.arm(item.nodeid, seconds)
    if item.config.option.counts:
        Path(f"{item.config.option.counts}.now").write_text(item.nodeid)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Agree twice on each test: where it ends, and where its teardown does."""
    report = yield
    if report.when != "setup" or not report.passed:  # a set-up that did not pass takes the place of the call
        item.config.stash[RANKS].settle(report)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Watch over the end too, and keep pytest-mpi from printing how the MPI was built."""
    plugins = session.config.pluginmanager
    session.config.stash[RANKS].watchdog.arm("the end of the session", TO_FINISH)
    for plugin in [plugin for plugin in plugins.get_plugins() if type(plugin).__name__ == "MPIPlugin"]:
        plugins.unregister(plugin)
    # MPI_Finalize comes after everything of Python's. If it hangs, the kernel ends it.
    signal.alarm(int(TO_FINISH) + 30)


@pytest.fixture(scope="session")
def rank(pytestconfig: pytest.Config) -> int:
    """Return this process's rank in the world."""
    return pytestconfig.stash[RANKS].rank


@pytest.fixture(scope="session")
def size(pytestconfig: pytest.Config) -> int:
    """Return the number of ranks."""
    return pytestconfig.stash[RANKS].size


@pytest.fixture
def allow_seconds(request: pytest.FixtureRequest) -> Callable[[float], None]:
    """Return a function that gives the running test so many seconds from now, on the rank that calls it."""
    watchdog = request.config.stash[RANKS].watchdog
    return lambda seconds: watchdog.arm(request.node.nodeid, seconds)
