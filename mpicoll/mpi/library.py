"""The MPI library: the only importer of mpi4py.

MPI is started here, by the first ``init_process_group`` and not by ``import mpicoll``. Whoever started MPI ends it:
mpi4py itself where the import of ``mpi4py.MPI`` started it, mpicoll where ``mpi4py.rc.initialize`` was off, the user
otherwise.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING, Any

from mpicoll.errors import ArgumentError, LaunchError, MPIError, NotInitializedError

if TYPE_CHECKING:
    from mpi4py import MPI as MPI

    Comm = MPI.Intracomm
    Request = MPI.Request
    Status = MPI.Status

# The largest count that every MPI takes: an `int`. MPI-4's large counts are not in Open MPI 5.
_INT_MAX = 2**31 - 1
LEVELS = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")


def __getattr__(name: str) -> Any:
    # `library.MPI` is mpi4py.MPI once MPI is running. Importing mpi4py.MPI starts MPI, so it cannot be done at the top.
    if name == "MPI":
        from mpi4py import MPI

        globals()["MPI"] = MPI
        return MPI
    raise AttributeError(name)


def start() -> None:
    """Import mpi4py.MPI and start MPI unless somebody has. Asks for the thread level of ``mpi4py.rc`` (MULTIPLE)."""
    _refuse_in_worker_process()
    import mpi4py
    from mpi4py import MPI

    globals()["MPI"] = MPI
    if MPI.Is_finalized():
        raise NotInitializedError("MPI has been finalised and cannot start again in this process")
    if not MPI.Is_initialized():
        wanted = getattr(mpi4py.rc, "thread_level", "multiple") or "multiple"
        MPI.Init_thread(getattr(MPI, f"THREAD_{wanted.upper()}"))
        atexit.register(_finish)


def _refuse_in_worker_process() -> None:
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        raise LaunchError(
            f"process {os.getpid()} is a worker that multiprocessing started, not a rank of the job: starting MPI here"
            " would harm the job. Communicate in the rank itself and hand the worker plain data"
        )


def _finish() -> None:
    if not MPI.Is_finalized():
        MPI.Finalize()


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
        MPI.COMM_WORLD.Abort(code)
    os._exit(code)


def as_error(error: BaseException) -> MPIError | None:
    """The MPIError for an exception of mpi4py's, None for any other exception."""
    module: Any = sys.modules.get("mpi4py.MPI")
    if module is None or not isinstance(error, module.Exception):
        return None
    return MPIError(f"{name()} reports: {error}")
