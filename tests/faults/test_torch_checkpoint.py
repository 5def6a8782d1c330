"""A checkpoint of torch.distributed.checkpoint, written by one job and read by another of another size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .jobs import Ended, RunJob

BACKEND = os.environ.get("MPICOLL_PARITY_BACKEND", "mpicoll")


def half(job: RunJob, name: str, folder: Path, n: int) -> Ended:
    """Run one half of tests/torch_backend/programs/checkpoint.py."""
    script = f"from tests.torch_backend.programs import checkpoint\ncheckpoint.{name}({str(folder)!r})\n"
    return job(script, n=n, start="", env={"MPICOLL_PARITY_BACKEND": BACKEND}, limit=120.0)


@pytest.mark.needs_torch
def test_a_checkpoint_of_four_ranks_is_read_by_two(job: RunJob, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    saved = half(job, "save", folder, 4)
    assert saved.code == 0, saved
    writers = {path.name.split("_")[2] for path in folder.glob("*.distcp")}
    assert writers == {"0", "1", "2", "3"}, "not every rank has written its part"

    loaded = half(job, "load", folder, 2)
    assert (loaded.code, loaded.out) == (0, "loaded on 2 ranks\n"), loaded
