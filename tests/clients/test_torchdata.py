"""torchdata's loaders under MPI give the ranks together what they give one process."""

from __future__ import annotations

from .ways import values


def test_loaders() -> None:
    [wanted] = values("torchdata_loader.py", "alone")
    assert values("torchdata_loader.py", "own lines") == [wanted, wanted]
