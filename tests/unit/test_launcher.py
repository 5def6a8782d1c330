"""What launchers leave in the environment: recorded on real ones; PALS, Flux and jsrun after what others published."""

import ast
import inspect
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from mpicoll.mpi import launcher
from mpicoll.mpi.launcher import Launcher, check_variables, check_world, detect

Env = Mapping[str, str]

MPICH = "MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25 20:45:26 UTC 2026\nMPICH ABI: 17:0:5"
OPEN_MPI = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11, repo rev: v5.0.11"
INTEL_MPI = "Intel(R) MPI Library 2021.18.1 for Linux* OS\n"
CRAY_MPICH = "MPI VERSION    : CRAY MPICH version 8.1.28.29 (ANL base 3.4a2)\nMPI BUILD INFO : Wed Nov 15 20:57 2023"
UNKNOWN_MPI = "Fujitsu MPI Library 4.0.1"

# Rank 3 of 4 on two nodes with two ranks each.
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "11", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
MPICH_5 = HYDRA | {"PMI_HOSTNAME": "node2"}
MPICH_4 = HYDRA | {"MPIR_CVAR_CH3_INTERFACE_HOSTNAME": "node2"}
INTEL = HYDRA | {"I_MPI_MPIRUN": "mpirun", "HYDRA_BSTRAP_LOCALHOST": "node2", "I_MPI_PIN_MAPPING": "2:0 0,1 1"}
OMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "prterun-vm-5176@1",
    "PMIX_HOSTNAME": "node2",
}
SRUN = {
    "SLURM_JOB_ID": "40",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_GTIDS": "2,3",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURMD_NODENAME": "node2",
}
SRUN_PMI2 = SRUN | {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "9", "PMI_JOBID": "40.0", "SLURM_MPI_TYPE": "pmi2"}
SRUN_PMIX = SRUN | {"PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.40.0", "PMIX_HOSTNAME": "node2"}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "0d8fb349-8aee-4995-b170-0c11be1bb503",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
}
PALS = {
    "PALS_APID": "6f1a",
    "PALS_NODEID": "1",
    "PALS_RANKID": "3",
    "PALS_LOCAL_RANKID": "1",
    "PALS_LOCAL_SIZE": "2",
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
    "PMI_LOCAL_RANK": "1",
    "PMI_LOCAL_SIZE": "2",
}
PALS_PMIX = {name: value for name, value in PALS.items() if not name.startswith("PMI_")} | {"PMIX_RANK": "3"}
FLUX = {
    "FLUX_JOB_ID": "f2Yv",
    "FLUX_JOB_NNODES": "2",
    "FLUX_JOB_SIZE": "4",
    "FLUX_TASK_RANK": "3",
    "FLUX_TASK_LOCAL_ID": "1",
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
    "PMI_FD": "8",
}
JSRUN = {
    "LSB_JOBID": "77",
    "JSM_NAMESPACE_RANK": "3",
    "JSM_NAMESPACE_SIZE": "4",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
}
GFORKER = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "12", "PMI_DEBUG": "0"}
PMIX_ALONE = {"PMIX_RANK": "3", "PMIX_NAMESPACE": "prun-1"}
BATCH = {"SLURM_JOB_ID": "40", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}


def in_slurm(procid: int, ntasks: int, nnodes: int, step_tasks: int | None) -> dict[str, str]:
    """What a launcher's daemon in a Slurm job hands on to its ranks: a row of the table of traps."""
    env = {"SLURM_JOB_ID": "40", "SLURM_PROCID": f"{procid}", "SLURM_LOCALID": "0", "SLURM_GTIDS": f"{procid}"}
    env |= {"SLURM_NTASKS": f"{ntasks}", "SLURM_NNODES": f"{nnodes}"}
    return env if step_tasks is None else env | {"SLURM_STEP_NUM_TASKS": f"{step_tasks}"}


class Seen(NamedTuple):
    """The numbers of a Launcher, without the variables."""

    name: str
    rank: int | None = 3
    size: int | None = 4
    local_rank: int | None = 1
    local_size: int | None = 2


DETECTED = {
    "mpich 5 hydra": (MPICH_5, Seen("MPICH/Intel Hydra")),
    "mpich 4 hydra": (MPICH_4, Seen("MPICH/Intel Hydra")),
    "intel hydra": (INTEL, Seen("MPICH/Intel Hydra")),
    "open mpi": (OMPI, Seen("Open MPI mpirun")),
    "srun none": (SRUN, Seen("Slurm srun")),
    "srun pmi2": (SRUN_PMI2, Seen("Slurm srun")),
    "srun pmix": (SRUN_PMIX, Seen("Slurm srun")),
    "torchrun": (TORCHRUN, Seen("torchrun")),
    "pals": (PALS, Seen("PALS")),
    "pals pmix": (PALS_PMIX, Seen("PALS", size=None)),
    "flux": (FLUX, Seen("Flux", local_size=None)),
    "jsrun": (JSRUN, Seen("LSF jsrun")),
    "gforker": (GFORKER, Seen("PMI launcher", local_rank=None, local_size=None)),
    "pmix alone": (PMIX_ALONE, Seen("PMIx launcher", size=None, local_rank=None, local_size=None)),
    "nothing": ({"HOME": "/root"}, Seen("none", None, None, None, None)),
    # The table of traps: in a Slurm job SLURM_* tells of the launcher's daemons.
    "mpich in slurm": (in_slurm(1, 2, 2, 2) | MPICH_5, Seen("MPICH/Intel Hydra")),
    "mpich by ssh in slurm": (in_slurm(0, 4, 2, None) | MPICH_5, Seen("MPICH/Intel Hydra")),
    "intel in slurm": (in_slurm(1, 4, 2, 2) | INTEL, Seen("MPICH/Intel Hydra")),
    "open mpi in slurm, node 2": (in_slurm(0, 1, 1, 1) | OMPI, Seen("Open MPI mpirun")),
    "open mpi in slurm, node 1": (in_slurm(0, 4, 2, None) | OMPI, Seen("Open MPI mpirun")),
    "batch script": (BATCH, Seen("none", None, None, None, None)),
    # Other nestings, the inner one last.
    "torchrun in srun": (in_slurm(1, 2, 2, 2) | TORCHRUN, Seen("torchrun")),
    "torchrun in open mpi": ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"} | TORCHRUN, Seen("torchrun")),
    "flux in srun": (in_slurm(1, 2, 2, 2) | FLUX, Seen("Flux", local_size=None)),
    "flux with cray pals": (PALS | FLUX, Seen("Flux", local_size=None)),
    "mpich in flux": ({"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1"} | MPICH_5, Seen("MPICH/Intel Hydra")),
    # Values that are no numbers count as not set.
    "no number": (HYDRA | {"PMI_SIZE": "four", "MPI_LOCALNRANKS": ""}, Seen("MPICH/Intel Hydra", 3, None, 1, None)),
}


@pytest.mark.parametrize(("env", "seen"), DETECTED.values(), ids=DETECTED)
def test_each_launcher_is_told_by_its_variables(env: Env, seen: Seen) -> None:
    found = detect(env)
    assert Seen(found.name, found.rank, found.size, found.local_rank, found.local_size) == seen


@pytest.mark.parametrize("env", [env for env, _ in DETECTED.values()], ids=DETECTED)
def test_the_named_variables_hold_the_announced_numbers(env: Env) -> None:
    found = detect(env)
    numbers = {key: getattr(found, key) for key in ("rank", "size", "local_rank", "local_size")}
    assert found.variables.keys() == {key for key, number in numbers.items() if number is not None}
    for key, name in found.variables.items():
        expected = len(env[name].split(",")) if name == "SLURM_GTIDS" else int(env[name])
        assert numbers[key] == expected


def test_variables_names_the_sources() -> None:
    assert detect(SRUN).variables == {
        "rank": "SLURM_PROCID",
        "size": "SLURM_STEP_NUM_TASKS",
        "local_rank": "SLURM_LOCALID",
        "local_size": "SLURM_GTIDS",
    }
    assert detect(PALS_PMIX).variables["local_size"] == "PALS_LOCAL_SIZE"


@pytest.mark.parametrize(
    ("found", "least"),
    [
        (Launcher("none"), 1),
        (Launcher("x", rank=0), 1),
        (Launcher("x", rank=3), 4),
        (Launcher("x", rank=0, local_size=2), 2),
        (Launcher("x", rank=0, local_rank=1), 2),
        (Launcher("x", rank=3, size=8, local_size=2), 8),
    ],
)
def test_least_size_is_what_the_numbers_allow(found: Launcher, least: int) -> None:
    assert found.least_size == least


# Environment, MPI library, and what the text must hold beside both sizes.
ALONE = {
    "torchrun, mpich": (TORCHRUN, MPICH, "MPICH 5.0.2", "torchrun starts processes, but no MPI", "`mpirun -n 4 python"),
    "torchrun in srun": (in_slurm(0, 1, 1, 1) | TORCHRUN, OPEN_MPI, "Open MPI v5.0.11", "torchrun", "`mpirun -n 4 "),
    "srun none, mpich": (SRUN, MPICH, "MPICH 5.0.2", "no PMI that this MPI speaks", "`srun --mpi=pmi2 -n 4 python"),
    "srun pmix, mpich": (SRUN_PMIX, MPICH, "MPICH 5.0.2", "no PMI that this MPI speaks", "`srun --mpi=pmi2 -n 4 "),
    "srun none, open mpi": (SRUN, OPEN_MPI, "Open MPI v5.0.11", "no PMI", "`srun --mpi=pmix -n 4 python script.py`"),
    "srun pmi2, open mpi": (SRUN_PMI2, OPEN_MPI, "Open MPI v5.0.11", "no PMI", "`srun --mpi=pmix -n 4 "),
    "srun none, intel": (SRUN, INTEL_MPI, "Intel(R) MPI Library 2021.18.1:", "`srun --mpi=pmi2 ", "I_MPI_PMI_LIBRARY"),
    "srun pmix, intel": (SRUN_PMIX, INTEL_MPI, "Intel(R) MPI Library", "`srun --mpi=pmi2 ", "I_MPI_PMI_LIBRARY"),
    "srun none, cray": (SRUN, CRAY_MPICH, "CRAY MPICH 8.1.28.29", "no PMI", "`srun --mpi=cray_shasta -n 4 "),
    "srun none, unknown": (SRUN, UNKNOWN_MPI, "Fujitsu MPI Library 4.0.1", "`srun --mpi=TYPE", "`srun --mpi=list`"),
    "hydra, open mpi": (MPICH_5, OPEN_MPI, "`mpirun -n 4 ", "belongs to Open MPI v5.0.11", "that mpi4py loaded"),
    "intel hydra, open mpi": (INTEL, OPEN_MPI, "`mpirun -n 4 ", "belongs to Open MPI v5.0.11", "that mpi4py loaded"),
    "open mpi, mpich": (OMPI, MPICH, "`mpirun -n 4 ", "belongs to MPICH 5.0.2", "that mpi4py loaded"),
    "open mpi, intel": (OMPI, INTEL_MPI, "`mpirun -n 4 ", "belongs to Intel(R) MPI", "that mpi4py loaded"),
    "open mpi in slurm, mpich": (in_slurm(0, 1, 1, 1) | OMPI, MPICH, "OMPI_COMM_WORLD_SIZE", "`mpirun -n 4 ", "MPICH"),
    "flux, mpich": (FLUX, MPICH, "FLUX_JOB_SIZE", "`flux run -o pmi=simple -n 4 ", "MPICH 5.0.2"),
    "flux, open mpi": (FLUX, OPEN_MPI, "FLUX_JOB_SIZE", "`flux run -o pmi=pmix -n 4 ", "Open MPI v5.0.11"),
    "flux, cray": (FLUX, CRAY_MPICH, "FLUX_JOB_SIZE", "`flux run -o pmi=cray-pals -n 4 ", "CRAY MPICH"),
    "pals, open mpi": (PALS, OPEN_MPI, "PALS_RANKID", "`mpiexec --pmi=pmix -n 4 ", "Open MPI v5.0.11"),
    "pals, mpich": (PALS, MPICH, "PALS_RANKID", "`mpirun -n 4 ", "belongs to MPICH 5.0.2"),
    "jsrun, mpich": (JSRUN, MPICH, "JSM_NAMESPACE_SIZE", "`mpirun -n 4 ", "belongs to MPICH 5.0.2"),
    "gforker, open mpi": (GFORKER, OPEN_MPI, "PMI_SIZE", "`mpirun -n 4 ", "belongs to Open MPI v5.0.11"),
}


@pytest.mark.parametrize(("env", "library", "pieces"), [(e, lib, p) for e, lib, *p in ALONE.values()], ids=ALONE)
def test_mpi_alone_under_a_launcher_names_numbers_cause_and_remedy(env: Env, library: str, pieces: list[str]) -> None:
    text = check_world(env, rank=0, size=1, mpi_library=library)
    assert text is not None
    for piece in ("expected rank 3 of 4", "got rank 0 of 1", detect(env).name, "MPICOLL_ALLOW_SINGLETON=1", *pieces):
        assert piece in text
    assert len(text.splitlines()) <= 2


@pytest.mark.parametrize("env", [PALS_PMIX, PMIX_ALONE], ids=["pals pmix", "pmix alone"])
def test_a_rank_above_zero_gives_a_world_of_unknown_size_away(env: Env) -> None:
    text = check_world(env, rank=0, size=1, mpi_library=MPICH)
    assert text is not None
    assert "expected rank 3 of at least 4" in text
    assert "`mpirun -n N python script.py`" in text


def test_a_size_without_a_rank_is_enough() -> None:
    text = check_world({"SLURM_STEP_NUM_TASKS": "2"}, rank=0, size=1, mpi_library=MPICH)
    assert text is not None
    assert "expected a world of 2 (by SLURM_STEP_NUM_TASKS of Slurm srun), got rank 0 of 1" in text


def test_the_whole_text() -> None:
    assert check_world(SRUN, rank=0, size=1, mpi_library=MPICH) == (
        "MPI started alone: expected rank 3 of 4 (by SLURM_PROCID and SLURM_STEP_NUM_TASKS of Slurm srun), got rank 0 "
        "of 1 from MPICH 5.0.2: it offered no PMI that this MPI speaks.\n"
        "launch with `srun --mpi=pmi2 -n 4 python script.py`; "
        "MPICOLL_ALLOW_SINGLETON=1 allows each process a world of its own"
    )


@pytest.mark.parametrize("value", ["1", "yes"])
@pytest.mark.parametrize("env", [row[0] for row in ALONE.values()], ids=ALONE)
def test_allow_singleton_overrides(env: Env, value: str) -> None:
    assert check_world({**env, "MPICOLL_ALLOW_SINGLETON": value}, rank=0, size=1, mpi_library=MPICH) is None


@pytest.mark.parametrize("value", ["", "0"])
def test_allow_singleton_of_zero_does_not(value: str) -> None:
    assert check_world({**SRUN, "MPICOLL_ALLOW_SINGLETON": value}, rank=0, size=1, mpi_library=MPICH) is not None


@pytest.mark.parametrize(
    "env",
    [{}, BATCH, {"PMIX_RANK": "0"}, in_slurm(0, 1, 1, 1), {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}],
    ids=["nothing", "batch script", "pmix rank 0", "srun -n 1", "mpirun -n 1"],
)
def test_a_run_of_one_process_is_fine(env: Env) -> None:
    assert check_world(env, rank=0, size=1, mpi_library=MPICH) is None


@pytest.mark.parametrize("env", [env for env, _ in DETECTED.values()], ids=DETECTED)
def test_a_world_of_more_than_one_is_fine(env: Env) -> None:
    assert check_world(env, rank=3, size=4, mpi_library=MPICH) is None


MINE = {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}


@pytest.mark.parametrize(
    "env", [{}, {name: str(value) for name, value in MINE.items()}, {"RANK": " 1 "}, {"PATH": "x"}]
)
def test_unset_and_agreeing_variables_pass(env: Env) -> None:
    assert check_variables(env, MINE) is None


@pytest.mark.parametrize("name", MINE)
@pytest.mark.parametrize(
    ("value", "shown"),
    [("7", "7"), ("-1", "-1"), ("two", "'two' (no integer)"), ("", "'' (no integer)"), ("1.0", "'1.0' (no integer)")],
)
def test_one_wrong_variable_is_named_with_both_values(name: str, value: str, shown: str) -> None:
    env = {key: str(number) for key, number in MINE.items()} | {name: value}
    assert check_variables(env, MINE) == (
        f"the environment disagrees with MPI: expected {name}={MINE[name]}, got {name}={shown}.\n"
        f"`unset {name}` before the launch, or launch so that they agree"
    )


def test_all_wrong_variables_are_listed_together() -> None:
    text = check_variables({"RANK": "5", "WORLD_SIZE": "9", "LOCAL_RANK": "1"}, MINE)
    assert text is not None
    assert "expected RANK=1 WORLD_SIZE=2, got RANK=5 WORLD_SIZE=9." in text
    assert "`unset RANK WORLD_SIZE`" in text
    assert "LOCAL_RANK" not in text


def test_processes_started_by_hand_are_told_to_use_mpirun() -> None:
    text = check_variables({"RANK": "2", "WORLD_SIZE": "4"}, {"RANK": 0, "WORLD_SIZE": 1})
    assert text is not None
    assert "`mpirun -n 4 python script.py`" in text


def test_the_module_starts_nothing() -> None:
    tree = ast.parse(inspect.getsource(launcher))
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules <= {"re", "collections.abc", "dataclasses"}
