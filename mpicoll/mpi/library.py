"""The MPI library: the only importer of mpi4py.

MPI is started here, by the first ``init_process_group`` and not by ``import mpicoll``. Whoever started MPI ends it:
mpicoll where nobody had before ``init_process_group``, mpi4py where the user's import of ``mpi4py.MPI`` did, else the
user.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.errors import ArgumentError, LaunchError, MPIError, NotInitializedError
from mpicoll.mpi import launcher

if TYPE_CHECKING:
    from mpi4py import MPI as MPI

    Comm = MPI.Intracomm
    Request = MPI.Request
    Status = MPI.Status

# The largest count that every MPI takes: an `int`. MPI-4's large counts are not in Open MPI 5.
_INT_MAX = 2**31 - 1
# Seconds that a launcher gets to pass on what a rank has written before it aborts.
_TO_PASS_ON = 0.2
LEVELS = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")


# The process that started MPI here, which is the one to end it: not a child forked from it.
_starter: int | None = None


def __getattr__(name: str) -> Any:
    # `library.MPI` is mpi4py.MPI, imported when it is first asked for.
    if name == "MPI":
        return _load()
    raise AttributeError(name)


def _load() -> Any:
    """Import mpi4py.MPI without starting MPI. If its import did, mpi4py would end MPI in forked children too."""
    import mpi4py

    if "mpi4py.MPI" not in sys.modules:
        wanted, mpi4py.rc.initialize = mpi4py.rc.initialize, False
        importlib.import_module("mpi4py.MPI")
        mpi4py.rc.initialize = wanted
    globals()["MPI"] = sys.modules["mpi4py.MPI"]
    return sys.modules["mpi4py.MPI"]


def start() -> None:
    """Start MPI unless somebody has. Asks for the thread level of ``mpi4py.rc``, which is MULTIPLE by default."""
    global _starter
    _refuse_in_worker_process()
    import mpi4py

    mpi = _load()
    if mpi.Is_finalized():
        raise NotInitializedError("MPI has been finalised and cannot start again in this process")
    if mpi.Is_initialized():
        return
    message = launcher.check_library(os.environ, name())
    if message is not None:
        raise LaunchError(message)
    wanted = mpi4py.rc.thread_level if mpi4py.rc.threads else "single"
    mpi.Init_thread(getattr(mpi, f"THREAD_{wanted.upper()}"))
    _starter = os.getpid()


def refuse_singleton() -> None:
    """Raise where MPI started alone although a launcher announces company."""
    world = MPI.COMM_WORLD
    message = launcher.check_world(os.environ, world.Get_rank(), world.Get_size(), name())
    if message is not None:
        raise LaunchError(message)


def _finish() -> None:
    if _starter == os.getpid() and is_running():
        MPI.Finalize()


# At import, so that it comes after whatever the user registers.
atexit.register(_finish)


# The rank that this process was forked from while MPI ran there.
_forked_from: int | None = None


def _after_fork() -> None:
    global _forked_from
    if _forked_from is None and is_running():
        _forked_from = os.getppid()


os.register_at_fork(after_in_child=_after_fork)


def refuse_in_fork() -> None:
    """Raise in a process that was forked from a rank."""
    if _forked_from is not None:
        raise LaunchError(
            f"process {os.getpid()} was forked from a rank (process {_forked_from}) and is none: it cannot use MPI."
            " Communicate in the rank itself and hand the child plain data"
        )


def _refuse_in_worker_process() -> None:
    refuse_in_fork()
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        raise LaunchError(
            f"process {os.getpid()} is a worker that multiprocessing started, not a rank of the job: starting MPI here"
            " would harm the job. Communicate in the rank itself and hand the worker plain data"
        )


def is_running() -> bool:
    """Whether MPI is started and not yet finalised."""
    module: Any = sys.modules.get("mpi4py.MPI")
    return module is not None and module.Is_initialized() and not module.Is_finalized()


def thread_level() -> int:
    """The thread level MPI runs at: an index into `LEVELS`."""
    order = (MPI.THREAD_SINGLE, MPI.THREAD_FUNNELED, MPI.THREAD_SERIALIZED, MPI.THREAD_MULTIPLE)
    return order.index(MPI.Query_thread())


def name() -> str:
    """The MPI library in a few words, as ``MPICH 5.0.2`` or ``Open MPI v5.0.11``."""
    first = MPI.Get_library_version().split("\n")[0].split(",")[0]
    return " ".join(first.replace("\x00", "").replace(" Library", "").replace("Version:", " ").split())


def tag_upper_bound() -> int:
    """The largest tag, which is an attribute of MPI.COMM_WORLD and in Open MPI not of communicators split from it."""
    bound: Any = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    return int(bound)


@cache
def sum_operation(integer_size: int) -> MPI.Op:
    """The operation that sums integers of so many bytes and wraps where they do not fit.

    Open MPI's own does not, for those of one and two bytes: its vector instructions saturate, in the part of a message
    that fills whole vectors, and that is to stay: https://github.com/open-mpi/ompi/issues/8045. numpy's addition takes
    its place. It lives as long as MPI.
    """
    if integer_size > 2 or MPI.get_vendor()[0] != "Open MPI":
        return MPI.SUM
    unsigned = np.dtype(f"u{integer_size}")  # which wrap to the same bits as signed ones

    def add(ours: Any, result: Any, datatype: MPI.Datatype) -> None:
        total = np.frombuffer(result, unsigned)
        np.add(np.frombuffer(ours, unsigned), total, out=total)

    return MPI.Op.Create(add, commute=True)


def max_count() -> int:
    """The largest count handed to MPI in one call. ``MPICOLL_MAX_COUNT`` lowers it, so that a test can cross it."""
    text = os.environ.get("MPICOLL_MAX_COUNT")
    if text is None:
        return _INT_MAX
    if not text.isdigit() or not 0 < int(text) <= _INT_MAX:
        raise ArgumentError(f"MPICOLL_MAX_COUNT: expected a number from 1 to {_INT_MAX}, got {text!r}")
    return int(text)


def abort(code: int) -> None:
    """End every process of the job. Does not return where MPI runs."""
    sys.stdout.flush()
    sys.stderr.flush()
    if is_running():
        # A busy mpirun of MPICH ends at once and has not passed on what this rank wrote last: the traceback.
        time.sleep(_TO_PASS_ON)
        MPI.COMM_WORLD.Abort(code)
    os._exit(code)


def as_error(error: BaseException) -> MPIError | None:
    """The MPIError for an exception of mpi4py's, None for any other exception."""
    module: Any = sys.modules.get("mpi4py.MPI")
    if module is None or not isinstance(error, module.Exception):
        return None
    return MPIError(f"{name()} reports: {error}")
