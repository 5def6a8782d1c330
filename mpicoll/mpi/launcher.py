"""What the launcher left in the environment, and whether MPI's world agrees with it.

Everything here is a pure function of a mapping (usually ``os.environ``): no MPI is started and nothing is set. The
launchers are rows of one table, `_KINDS`, tried from top to bottom. The order is what makes it right, because
launchers are nested and the inner one inherits the variables of the outer one:

* ``srun torchrun script.py``: Slurm's variables tell of torchrun's agents, so torchrun is asked first.
* ``mpirun`` in a Slurm job starts its daemons with ``srun``; ``SLURM_*`` then tells of the daemons, so Open MPI's and
  Hydra's variables are asked before Slurm's.
* ``srun flux start``: Flux is asked before PALS, jsrun and Slurm.
* ``srun --mpi=pmi2`` and ``--mpi=pmix`` set ``PMI_*`` or ``PMIX_RANK`` as well, so the bare protocols come last.
* A batch script has ``SLURM_NTASKS`` but is no task of a step: only ``SLURM_STEP_NUM_TASKS`` is a sign of srun.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["Launcher", "check_variables", "check_world", "detect"]

ALLOW_SINGLETON = "MPICOLL_ALLOW_SINGLETON"


@dataclass(frozen=True)
class Launcher:
    """What a launcher announces to one of the processes that it started.

    Attributes:
        name: the launcher, as in ``"Slurm srun"``; ``"none"`` where no launcher left a trace.
        rank: rank in the world, None where it is not announced.
        size: number of processes in the world, None where it is not announced.
        local_rank: rank among the processes of this launch on this node, or None.
        local_size: number of processes of this launch on this node, or None.
        variables: the variable that each of these came from, as in ``{"rank": "PMI_RANK"}``.
    """

    name: str
    rank: int | None = None
    size: int | None = None
    local_rank: int | None = None
    local_size: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def least_size(self) -> int:
        """The announced size, or where there is none the smallest size that the other numbers allow."""
        if self.size is not None:
            return self.size
        ranks = [rank + 1 for rank in (self.rank, self.local_rank) if rank is not None]
        return max(1, self.local_size or 1, *ranks)


@dataclass(frozen=True)
class _Kind:
    """One launcher: the variables it sets and what to say when MPI did not join its processes.

    Of each tuple of variables the first one that holds a number is taken. `cause` and `remedies` are formatted with
    the MPI library's name (`library`) and the number of processes (`n`); remedies are keyed by the family of the MPI
    library, with ``""`` for all others.
    """

    name: str
    sign: str
    rank: tuple[str, ...] = ()
    size: tuple[str, ...] = ()
    local_rank: tuple[str, ...] = ()
    local_size: tuple[str, ...] = ()
    cause: str = "it does not serve {library}"
    remedies: Mapping[str, str] = field(default_factory=dict)


_MPIRUN = "launch with `mpirun -n {n} python script.py`, the mpirun that belongs to {library}"
_OTHER_MPI = "this mpirun does not belong to the MPI that mpi4py loaded"
_NO_PMI = "it offered no PMI that this MPI speaks"

_SRUN: Mapping[str, str] = {
    "mpich": "launch with `srun --mpi=pmi2 -n {n} python script.py`",
    "openmpi": "launch with `srun --mpi=pmix -n {n} python script.py`",
    "intel": "launch with `srun --mpi=pmi2 -n {n} python script.py`, or set I_MPI_PMI_LIBRARY to Slurm's libpmi2.so",
    "cray": "launch with `srun --mpi=cray_shasta -n {n} python script.py`",
    "": "launch with `srun --mpi=TYPE -n {n} python script.py`, TYPE being one of `srun --mpi=list` that it speaks",
}
_FLUX: Mapping[str, str] = {
    "openmpi": "launch with `flux run -o pmi=pmix -n {n} python script.py`",
    "cray": "launch with `flux run -o pmi=cray-pals -n {n} python script.py`",
    "": "launch with `flux run -o pmi=simple -n {n} python script.py`",
}
_PALS: Mapping[str, str] = {"openmpi": "launch with `mpiexec --pmi=pmix -n {n} python script.py`", "": _MPIRUN}

_KINDS: tuple[_Kind, ...] = (
    _Kind(
        name="torchrun",
        sign="TORCHELASTIC_RUN_ID",
        rank=("RANK",),
        size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_size=("LOCAL_WORLD_SIZE",),
        cause="torchrun starts processes, but no MPI",
        remedies={"": "launch with `mpirun -n {n} python script.py`"},
    ),
    _Kind(
        name="Open MPI mpirun",
        sign="OMPI_COMM_WORLD_SIZE",
        rank=("OMPI_COMM_WORLD_RANK",),
        size=("OMPI_COMM_WORLD_SIZE",),
        local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
        local_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
        cause=_OTHER_MPI,
        remedies={"": _MPIRUN},
    ),
    _Kind(
        name="MPICH/Intel Hydra",
        sign="MPI_LOCALRANKID",  # PMI_RANK alone may be srun's, Flux's or PALS's
        rank=("PMI_RANK", "PMIX_RANK"),
        size=("PMI_SIZE",),
        local_rank=("MPI_LOCALRANKID",),
        local_size=("MPI_LOCALNRANKS",),
        cause=_OTHER_MPI,
        remedies={"": _MPIRUN},
    ),
    _Kind(
        name="Flux",
        sign="FLUX_TASK_RANK",
        rank=("FLUX_TASK_RANK",),
        size=("FLUX_JOB_SIZE",),
        local_rank=("FLUX_TASK_LOCAL_ID",),
        cause=_NO_PMI,
        remedies=_FLUX,
    ),
    _Kind(
        name="PALS",
        sign="PALS_RANKID",
        rank=("PALS_RANKID",),
        size=("PMI_SIZE",),  # PALS has no variable of its own for it, and with --pmi=pmix there is none
        local_rank=("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"),
        local_size=("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
        cause=_NO_PMI,
        remedies=_PALS,
    ),
    _Kind(
        name="LSF jsrun",
        sign="JSM_NAMESPACE_RANK",
        rank=("JSM_NAMESPACE_RANK",),
        size=("JSM_NAMESPACE_SIZE",),
        local_rank=("JSM_NAMESPACE_LOCAL_RANK",),
        local_size=("JSM_NAMESPACE_LOCAL_SIZE",),
        cause=_NO_PMI,
        remedies={"": _MPIRUN},
    ),
    _Kind(
        name="Slurm srun",
        sign="SLURM_STEP_NUM_TASKS",
        rank=("SLURM_PROCID",),
        size=("SLURM_STEP_NUM_TASKS",),
        local_rank=("SLURM_LOCALID",),
        local_size=("SLURM_GTIDS",),
        cause=_NO_PMI,
        remedies=_SRUN,
    ),
    _Kind(name="PMIx launcher", sign="PMIX_RANK", rank=("PMIX_RANK",), cause=_NO_PMI, remedies={"": _MPIRUN}),
    _Kind(
        name="PMI launcher",
        sign="PMI_RANK",
        rank=("PMI_RANK",),
        size=("PMI_SIZE",),
        local_rank=("PMI_LOCAL_RANK",),
        local_size=("PMI_LOCAL_SIZE",),
        cause=_NO_PMI,
        remedies={"": _MPIRUN},
    ),
    _Kind(
        name="the environment",
        sign="WORLD_SIZE",
        rank=("RANK",),
        size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_size=("LOCAL_WORLD_SIZE",),
        cause="these variables start no MPI",
        remedies={"": "launch with `mpirun -n {n} python script.py`"},
    ),
)

# Text in the first line of the library's version -> family, the more special ones first: Cray's says MPICH too.
_FAMILIES: Mapping[str, str] = {
    "open mpi": "openmpi",
    "intel": "intel",
    "cray": "cray",
    "mpich": "mpich",
    "mvapich": "mpich",
}


def detect(env: Mapping[str, str]) -> Launcher:
    """Tell which launcher started this process and what it announces.

    Args:
        env: the environment, as in ``os.environ``.

    Returns:
        The innermost launcher that left its sign in `env`. A variable that holds no number counts as not set.
    """
    kind = _kind(env)
    if kind is None:
        return Launcher("none")
    candidates = {
        "rank": kind.rank,
        "size": kind.size,
        "local_rank": kind.local_rank,
        "local_size": kind.local_size,
    }
    numbers: dict[str, int] = {}
    variables: dict[str, str] = {}
    for what, names in candidates.items():
        for name in names:
            number = _READERS.get(name, _integer)(env.get(name, ""))
            if number is not None:
                numbers[what], variables[what] = number, name
                break
    return Launcher(kind.name, variables=variables, **numbers)


def check_world(env: Mapping[str, str], rank: int, size: int, mpi_library: str) -> str | None:
    """Say what is wrong when MPI started alone although a launcher announces company.

    Args:
        env: the environment, as in ``os.environ``.
        rank: this process's rank in ``MPI.COMM_WORLD``.
        size: the size of ``MPI.COMM_WORLD`` (not of a communicator that the user made smaller).
        mpi_library: the MPI that mpi4py loaded, by name or as ``MPI.Get_library_version()`` gives it.

    Returns:
        A text with both sizes, the library, the likely cause and the command line to use. None where the world has
        more than one process, where no launcher announces more, or where ``MPICOLL_ALLOW_SINGLETON=1`` is set.
    """
    kind = _kind(env)
    if size != 1 or kind is None or _singleton_allowed(env):
        return None
    launcher = detect(env)
    announced = launcher.least_size
    if announced <= 1:
        return None
    library = _short_name(mpi_library)
    count = f"{announced}" if launcher.size is not None else f"at least {announced}"
    who = f"rank {launcher.rank} of {count}" if launcher.rank is not None else f"a world of {count}"
    told_by = " and ".join(launcher.variables[key] for key in ("rank", "size") if key in launcher.variables)
    words = {"n": str(announced) if launcher.size is not None else "N", "library": library}
    remedy = kind.remedies.get(_family(library), kind.remedies[""]).format(**words)
    return (
        f"MPI started alone: expected {who} (by {told_by or kind.sign} of {kind.name}), got rank {rank} of {size} from "
        f"{library}: {kind.cause.format(**words)}.\n"
        f"{remedy}; {ALLOW_SINGLETON}=1 allows each process a world of its own"
    )


def check_library(env: Mapping[str, str], mpi_library: str) -> str | None:
    """Say what is wrong where this launcher makes the start of MPI itself abort, after which nobody could say it.

    Args:
        env: the environment, as in ``os.environ``.
        mpi_library: the MPI that mpi4py loaded, by name or as ``MPI.Get_library_version()`` gives it.

    Returns:
        A text, or None. MPICH 5 aborts under the mpirun of Open MPI 5, whose PMIx it takes for one that it speaks.
    """
    fatal = detect(env).name == "Open MPI mpirun" and _family(_short_name(mpi_library)) == "mpich"
    return check_world(env, 0, 1, mpi_library) if fatal else None


def check_variables(env: Mapping[str, str], values: Mapping[str, int]) -> str | None:
    """Say which of torch's variables are set to something else than MPI's value.

    Args:
        env: the environment, as in ``os.environ``.
        values: MPI's value of each variable, as in ``{"RANK": 0, "WORLD_SIZE": 2}``.

    Returns:
        A text that gives every disagreeing variable with MPI's value and its own, or None where all agree. A
        variable that is set and holds no integer disagrees.
    """
    if values.get("WORLD_SIZE") == 1 and _singleton_allowed(env):
        return None
    wrong = {name: env[name] for name, value in values.items() if name in env and _integer(env[name]) != value}
    if not wrong:
        return None
    expected = " ".join(f"{name}={values[name]}" for name in wrong)
    got = " ".join(f"{name}={_shown(text)}" for name, text in wrong.items())
    agree = "launch so that they agree"
    meant = _integer(wrong.get("WORLD_SIZE", "")) or 0
    if values.get("WORLD_SIZE") == 1 < meant:  # started by hand or by multiprocessing, as torch's own backends allow
        agree = f"launch with `mpirun -n {meant} python script.py`"
    return (
        f"the environment disagrees with MPI: expected {expected}, got {got}.\n"
        f"`unset {' '.join(wrong)}` before the launch, or {agree}"
    )


def _singleton_allowed(env: Mapping[str, str]) -> bool:
    return env.get(ALLOW_SINGLETON, "0") not in ("", "0")


def _kind(env: Mapping[str, str]) -> _Kind | None:
    return next((kind for kind in _KINDS if kind.sign in env), None)


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\s*-?[0-9]+\s*", text) else None


def _length(text: str) -> int | None:
    """Count the entries of a list like ``2,3``."""
    return text.count(",") + 1 if text else None


# SLURM_GTIDS lists the ranks on this node; Slurm gives their number in no simpler form.
_READERS: Mapping[str, Callable[[str], int | None]] = {"SLURM_GTIDS": _length}


def _shown(text: str) -> str:
    return text if _integer(text) is not None else f"{text!r} (no integer)"


def _short_name(mpi_library: str) -> str:
    """Cut the first line, as in ``MPICH Version:      5.0.2``, down to ``MPICH 5.0.2``."""
    first = re.split(r"\n|,| for ", mpi_library.strip(), maxsplit=1)[0]
    return " ".join(re.sub(r"\bversion\b\s*:?", " ", first, flags=re.IGNORECASE).split()) or "an unknown MPI"


def _family(library: str) -> str:
    return next((family for text, family in _FAMILIES.items() if text in library.lower()), "")
