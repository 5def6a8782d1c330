"""ignite over mpicoll has the values of one process."""

from __future__ import annotations

from .ways import both_ways, same_as_one_process


@both_ways
def test_training(way: str) -> None:
    same_as_one_process("ignite_train.py", way)
