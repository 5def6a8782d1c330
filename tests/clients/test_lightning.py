"""lightning's Trainer over mpicoll has the values of one process."""

from __future__ import annotations

from .ways import both_ways, same_as_one_process


@both_ways
def test_ddp(way: str) -> None:
    same_as_one_process("lightning_ddp.py", way)


def test_fsdp2() -> None:
    same_as_one_process("lightning_fsdp2.py", "own lines")
