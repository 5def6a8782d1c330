"""What torch builds on a process group gives the values of one process, with mpicoll as the backend.

    mpirun -n N python -m pytest --with-mpi tests/torch_backend

runs at any N; some tests need 2 or 4 ranks. How ranks run tests together is in tests/lockstep.py, which backend is
tested in backend.py. All tests share one default process group, so none may leave it broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests import lockstep

from .backend import BACKEND, start


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Start MPI, after pytest's own plugins have been configured."""
    lockstep.register(config)
    # torch 2.13 gives the functions new names; mpicoll runs from torch 2.9 on, which has the old ones only.
    config.addinivalue_line("filterwarnings", r"ignore:.*torch\.distributed\..* is deprecated:FutureWarning")
    config.addinivalue_line("filterwarnings", r"ignore:`torch\.jit\.:DeprecationWarning")  # torch's own imports


def pytest_report_header() -> str:
    """Tell which backend this is."""
    return f"torch {torch.__version__}, backend {BACKEND}"


@pytest.fixture(scope="session", autouse=True)
def process_group(pytestconfig: pytest.Config) -> Iterator[None]:
    """Make torch's default process group for all tests."""
    torch.set_num_threads(1)
    start(pytestconfig.stash[lockstep.RANKS].comm)
    assert dist.get_backend() == BACKEND
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def world(process_group: None) -> dist.ProcessGroup:
    """Return the default group."""
    group = dist.group.WORLD
    assert group is not None
    return group


@pytest.fixture(scope="session")
def mesh(process_group: None, size: int) -> DeviceMesh:
    """Return all ranks in one row."""
    return init_device_mesh("cpu", (size,), mesh_dim_names=("ranks",))


@pytest.fixture
def shared_path(pytestconfig: pytest.Config, tmp_path: Path) -> Path:
    """Return a folder of this test's, the same one on all ranks."""
    path: Path = pytestconfig.stash[lockstep.RANKS].comm.bcast(tmp_path)
    return path
