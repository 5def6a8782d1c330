"""Tests that run on n ranks: `mpirun -n N python -m pytest --with-mpi tests/ranks`. See tests/lockstep.py."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests import lockstep


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Start MPI, after pytest's own plugins have been configured."""
    lockstep.register(config)


@pytest.fixture(scope="session", autouse=True)
def process_group() -> Iterator[None]:
    """Initialise mpicoll for all tests. A test that destroys the group makes a new one before it ends."""
    import mpicoll

    mpicoll.init_process_group()
    yield
    mpicoll.destroy_process_group()


@pytest.fixture(scope="session")
def dist(process_group: None) -> ModuleType:
    """Return mpicoll."""
    import mpicoll

    return mpicoll
