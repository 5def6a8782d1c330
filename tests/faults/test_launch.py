"""What the launcher and the environment say against what MPI says: a clash is an error with both numbers."""

import os
import sys
from pathlib import Path

import pytest

from .jobs import SAY, RunJob, is_open_mpi, mpirun_path

START_OR_SAY_WHY = """
try:
    dist.init_process_group()
    say(f"size {dist.get_world_size()}")
except dist.LaunchError as error:
    say(f"refused: {error}".replace(chr(10), " "))
"""
NAMES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]

# Environments that promise four ranks to a process that nobody's MPI has joined to others.
PROMISES = {
    "by_hand": {"RANK": "0", "WORLD_SIZE": "4"},
    "torchrun": {
        "TORCHELASTIC_RUN_ID": "none",
        "RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "4",
    },
    "open_mpi": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
    "pmi": {"PMI_RANK": "0", "PMI_SIZE": "4"},
    "slurm_step": {
        "SLURM_JOB_ID": "7",
        "SLURM_JOBID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_NTASKS": "4",
        "SLURM_NPROCS": "4",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
    },
}


def test_the_environment_after_the_start(job: RunJob) -> None:
    # T74: on one host the local rank is the rank.
    end = job(f"say(' '.join([str(rank)] + [os.environ[name] for name in {NAMES}]))")
    assert (end.code, end.lines(), end.err) == (0, ["0 0 2 0 2", "1 1 2 1 2"], "")


def test_the_master_is_the_same_on_every_rank(job: RunJob) -> None:
    end = job(
        """
        mine = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        everyones = [None] * size
        dist.all_gather_object(everyones, mine)
        say(f"{len(set(everyones))} {len(mine[0]) > 0} {0 < mine[1] < 65536}")
        """,
        n=3,
    )
    assert (end.code, end.lines(), end.err) == (0, ["1 True True"] * 3, "")


def test_variables_that_are_set_and_agree_are_kept(job: RunJob) -> None:
    end = job(
        "say(' '.join(os.environ[name] for name in ['WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT']))",
        env={"WORLD_SIZE": "2", "MASTER_ADDR": "head.example", "MASTER_PORT": "29999"},
    )
    assert (end.code, end.lines(), end.err) == (0, ["2 head.example 29999"] * 2, "")


def test_variables_that_clash_are_an_error_that_names_both_values(job: RunJob) -> None:
    # T74, on both ranks.
    end = job(START_OR_SAY_WHY, start=SAY, env={"RANK": "5", "WORLD_SIZE": "9"})
    assert end.code == 0
    for rank, line in enumerate(sorted(end.lines(), key=lambda text: "rank 1" in text or "RANK=1" in text)):
        assert line.startswith("refused: ")
        assert ("5" in line and str(rank) in line) or ("9" in line and "2" in line)
    assert len(end.lines()) == 2


def test_variables_that_clash_end_a_job_that_does_not_look(job: RunJob) -> None:
    end = job("say('never')", env={"RANK": "5", "WORLD_SIZE": "9"})
    assert end.code not in (0, None)
    assert "LaunchError" in end.err
    assert end.out == ""


@pytest.mark.parametrize("variable", ["LOCAL_RANK", "LOCAL_WORLD_SIZE"])
def test_local_variables_that_clash_are_an_error(job: RunJob, variable: str) -> None:
    end = job(START_OR_SAY_WHY, start=SAY, env={variable: "7"})
    assert end.code == 0
    assert len(end.lines()) == 2
    assert all(line.startswith("refused: ") and variable in line and "7" in line for line in end.lines())


@pytest.mark.parametrize("arguments", ["rank=5", "world_size=9"])
def test_arguments_that_clash_are_an_error(job: RunJob, arguments: str) -> None:
    end = job(
        f"""
        try:
            dist.init_process_group({arguments})
        except dist.MpicollError as error:
            say(f"{{type(error).__name__}} {{any(number in str(error) for number in '59')}}")
        """,
        start=SAY,
    )
    assert (end.code, len(end.lines())) == (0, 2)
    assert all(line.endswith("Error True") for line in end.lines())


def test_arguments_that_agree_and_torchs_words_are_accepted(job: RunJob) -> None:
    end = job(
        """
        from mpi4py import MPI
        world = MPI.COMM_WORLD
        dist.init_process_group("gloo", init_method="env://", world_size=world.size, rank=world.rank)
        say(f"{dist.get_rank() == world.rank} {dist.get_backend()}")
        """,
        start=SAY,
    )
    assert (end.code, end.lines(), end.err) == (0, ["True mpicoll"] * 2, "")


def test_a_plain_python_is_a_world_of_one(job: RunJob) -> None:
    end = job(START_OR_SAY_WHY, start=SAY, launcher=[])
    assert (end.code, end.out, end.err) == (0, "size 1\n", "")


@pytest.mark.parametrize("promise", PROMISES)
def test_a_lone_process_that_was_promised_company_is_refused(job: RunJob, promise: str) -> None:
    end = job(START_OR_SAY_WHY, start=SAY, launcher=[], env=PROMISES[promise])
    assert end.code == 0
    assert end.out.startswith("refused: ")
    assert "1" in end.out
    assert "4" in end.out
    assert "MPI" in end.out  # the library's name
    assert "MPICOLL_ALLOW_SINGLETON" in end.out


@pytest.mark.parametrize("promise", PROMISES)
def test_a_lone_process_that_means_it(job: RunJob, promise: str) -> None:
    end = job(START_OR_SAY_WHY, start=SAY, launcher=[], env={**PROMISES[promise], "MPICOLL_ALLOW_SINGLETON": "1"})
    assert (end.code, end.out) == (0, "size 1\n")


def test_torchrun_is_told_what_is_wrong(job: RunJob) -> None:
    pytest.importorskip("torch")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python"]
    end = job(START_OR_SAY_WHY, start=SAY, launcher=launcher)
    assert end.code == 0
    assert len(end.lines()) == 2
    assert all(line.startswith("refused: ") and "1" in line and "2" in line for line in end.lines())


def other_mpi() -> tuple[str, str]:
    """Find an environment with another MPI beside this one: its mpirun and its Python.

    MPICH's and Intel's understand each other, so one of the two must be Open MPI's.
    """
    named = os.environ.get("MPICOLL_TEST_OTHER_VENV")
    mine = Path(sys.executable).parent
    beside = [path.parent.parent for path in mine.parent.parent.glob("*/bin/mpirun")]
    for venv in [Path(named)] if named else sorted(beside):
        mpirun, python = venv / "bin" / "mpirun", venv / "bin" / "python"
        if mpirun.exists() and python.exists() and is_open_mpi(str(mpirun)) != is_open_mpi(mpirun_path()):
            return str(mpirun), str(python)
    pytest.skip("only one MPI here; name another virtual environment in MPICOLL_TEST_OTHER_VENV")


@pytest.mark.parametrize("theirs", ["mpirun", "python"])
def test_another_mpis_mpirun_is_told_what_is_wrong(job: RunJob, theirs: str) -> None:
    mpirun, python = other_mpi()
    end = job(START_OR_SAY_WHY, start=SAY, **({"mpirun": mpirun} if theirs == "mpirun" else {"python": python}))
    assert len(end.lines()) == 2
    assert all(line.startswith("refused: ") and "1" in line and "2" in line for line in end.lines())
