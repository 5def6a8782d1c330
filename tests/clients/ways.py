"""Runs a program of tests/clients/programs in the ways in which a user would, and tells the values that it left."""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.faults.jobs import Ended, clean_environment, launch_line, mpirun_path, run_timed

PROGRAMS = Path(__file__).parent / "programs"
RUN = ["-m", "mpicoll", "run"]
Values = dict[str, Any]


def launch(words: list[str], ranks: int) -> Ended:
    """Run a Python with these words on its line, under mpirun where `ranks` is not 0. No client may ask the network."""
    mpirun = mpirun_path()
    line = [*(launch_line(mpirun, ranks) if ranks else []), sys.executable, *words]
    return run_timed(line, clean_environment(mpirun) | {"HF_HUB_OFFLINE": "1"}, limit=200.0)


@lru_cache
def values(program: str, way: str) -> list[Values]:
    """What each rank of a program told.

    The ways: `alone`, one process; `own lines`, with the lines that mpicoll asks for, on two ranks; `left as it is`,
    by ``python -m mpicoll run --backend mpicoll``, which the program knows nothing of.
    """
    with TemporaryDirectory(prefix="mpicoll-clients-") as folder:
        path = str(PROGRAMS / program)
        if way == "alone":
            job = launch([path, "alone", folder], 0)
        elif way == "own lines":
            job = launch([path, "mpicoll", folder], 2)
        else:
            job = launch([*RUN, "--backend", "mpicoll", path, "gloo", folder], 2)
        assert job.code == 0, f"{job.out}\n{job.err[-4000:]}"
        told = [json.loads(path.read_text()) for path in Path(folder).glob("*.values")]
    assert len(told) == (1 if way == "alone" else 2), job
    assert {one.pop("backend") for one in told} == {None if way == "alone" else "mpicoll"}
    return told


def same_as_one_process(program: str, way: str, rel: float = 1e-5, abs: float = 1e-6) -> None:
    """Check that every rank told what one process tells of the same program."""
    [wanted] = values(program, "alone")
    for told in values(program, way):
        assert told.keys() == wanted.keys()
        for name, value in wanted.items():
            assert told[name] == pytest.approx(value, rel=rel, abs=abs), name


both_ways = pytest.mark.parametrize("way", ["own lines", "left as it is"])
