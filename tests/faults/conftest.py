"""The fixture that runs a script as a job of its own."""

import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from .jobs import START, Ended, RunJob, clean_environment, launch_line, mpirun_path, run_timed


@pytest.fixture
def job(tmp_path: Path) -> RunJob:
    """Return a function that runs a script as a job of `n` ranks and tells how it ended.

    The script is a text, `start` goes before it, or a file. `env` goes on top of a clean environment; `mpirun` and
    `python` replace the usual two; `launcher=[]` starts the script with no launcher at all. The words of `before` and
    `after` go around the script on the command line.
    """

    def run(
        script: str | Path,
        n: int = 2,
        *,
        start: str = START,
        env: Mapping[str, str] | None = None,
        limit: float = 60.0,
        launcher: Sequence[str] | None = None,
        mpirun: str | None = None,
        python: str = sys.executable,
        before: Sequence[str] = (),
        after: Sequence[str] = (),
    ) -> Ended:
        if isinstance(script, Path):
            path = script
        else:
            path = tmp_path / f"script{len(list(tmp_path.iterdir()))}.py"
            path.write_text(start + textwrap.dedent(script))
        mpirun = mpirun or mpirun_path()
        line = launch_line(mpirun, n) if launcher is None else list(launcher)
        return run_timed(
            [*line, python, *before, str(path), *after], clean_environment(mpirun) | dict(env or {}), limit
        )

    return run
