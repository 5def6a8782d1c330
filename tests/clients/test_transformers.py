"""transformers over mpicoll has the values of one process. The models are made from a config: nothing is downloaded."""

from __future__ import annotations

from .ways import both_ways, same_as_one_process


@both_ways
def test_trainer(way: str) -> None:
    same_as_one_process("transformers_trainer.py", way, rel=1e-4, abs=1e-5)


def test_tensor_parallel_model() -> None:
    same_as_one_process("transformers_parallel.py", "own lines")
