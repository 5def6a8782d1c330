"""torchmetrics over mpicoll computes what one process computes of all the rows."""

from __future__ import annotations

from .ways import same_as_one_process


def test_metrics() -> None:
    same_as_one_process("metrics.py", "own lines")
