"""The backend under test.

`MPICOLL_PARITY_BACKEND=gloo` runs the same tests on torch's own backend, which shows that the tests are right.
"""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from mpi4py import MPI

BACKEND = os.environ.get("MPICOLL_PARITY_BACKEND", "mpicoll")


def start(comm: MPI.Intracomm) -> None:
    """Make torch's default process group of all ranks."""
    if BACKEND == "mpicoll":
        import mpicoll  # noqa: F401  makes the backend known to torch

        dist.init_process_group("mpicoll")
    else:
        folder = comm.bcast(tempfile.mkdtemp(prefix="mpicoll-tests-store-") if comm.rank == 0 else None)
        where = f"file://{folder}/store"
        limit = timedelta(seconds=60)
        dist.init_process_group(BACKEND, init_method=where, rank=comm.rank, world_size=comm.size, timeout=limit)
