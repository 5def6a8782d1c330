"""accelerate over mpicoll: the test scripts that it ships, and a training that has the values of one process."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from .ways import PROGRAMS, RUN, both_ways, launch, same_as_one_process

SCRIPTS = [
    "test_ddp_comm_hook",
    "test_distributed_data_loop",
    "test_ops",
    "test_script",
    "test_sync",
    "external_deps.test_metrics",
]
NOT_HERE = {
    "test_cli": "prints the number of GPUs, and communicates nothing",
    "test_merge_weights": "FSDP, which accelerate has for GPUs alone",
    "test_notebook": "notebook_launcher starts its processes itself",
    "external_deps.test_checkpointing": "loads a model and a data set from the network",
    "external_deps.test_ds_alst_ulysses_sp": "DeepSpeed",
    "external_deps.test_ds_multiple_model": "DeepSpeed",
    "external_deps.test_peak_memory_usage": "measures a GPU's memory",
    "external_deps.test_performance": "loads a model and a data set from the network",
    "external_deps.test_zero3_integration": "DeepSpeed",
}


def test_every_script_is_run_or_its_reason_is_known() -> None:
    folder = Path("accelerate", "test_utils", "scripts")
    files = [path for path in importlib.metadata.files("accelerate") or [] if path.is_relative_to(folder)]
    shipped = {".".join(path.relative_to(folder).with_suffix("").parts) for path in files if path.match("test_*.py")}
    assert shipped == {*SCRIPTS, *NOT_HERE}


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str) -> None:
    job = launch([*RUN, "--backend", "mpicoll", str(PROGRAMS / "accelerate_script.py"), name], 2)
    assert job.code == 0, f"{job.out}\n{job.err[-4000:]}"


@both_ways
def test_training(way: str) -> None:
    same_as_one_process("accelerate_train.py", way)
