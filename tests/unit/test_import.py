"""What `import mpicoll` does not do, and that a numpy program never pays for torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# What a launcher or a torchrun leaves behind would make this a rank of some job.
FOREIGN = ("PMI", "OMPI_COMM", "SLURM_", "MPICOLL_", "MPI_LOCAL")
FOREIGN_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}

LOOK = """
import json, os, sys, threading

def look():
    mpi = sys.modules.get("mpi4py.MPI")
    return {
        "torch": any(name.split(".")[0] == "torch" for name in sys.modules),
        "mpi_started": mpi is not None and mpi.Is_initialized(),
        "python_threads": [thread.name for thread in threading.enumerate()],
        "threads": len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else None,
        "environment": dict(os.environ),
    }
"""


def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh Python that nothing has touched."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN) and k not in FOREIGN_NAMES}
    kept["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", script], env=kept | variables, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize("statement", ["import mpicoll", "from mpicoll import *"])
def test_import_starts_nothing(statement: str) -> None:
    script = f"{LOOK}\nimport numpy, mpi4py\nbefore = look()\n{statement}\nprint(json.dumps([before, look()]))"
    ended = run(script)
    assert ended.returncode == 0, ended.stderr
    before, after = json.loads(ended.stdout)
    assert not after["torch"]
    assert not after["mpi_started"]
    assert after["python_threads"] == ["MainThread"]
    assert after == before  # no thread of C code's, no change to the environment
    assert not ended.stderr


NUMPY_PROGRAM = """
import sys
import numpy as np
import mpicoll as dist

dist.init_process_group()
x = np.arange(6.0).reshape(2, 3)
dist.all_reduce(x.T)
dist.broadcast(x, src=0)
work = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
work.wait()
parts = [np.empty_like(x)]
dist.all_gather(parts, x)
assert parts[0].tolist() == [[0, 1, 2], [3, 4, 5]]
objects = [None]
dist.all_gather_object(objects, {"x": x})
assert objects[0]["x"].tolist() == x.tolist()
group = dist.new_group([0])
dist.barrier(group=group)
dist.destroy_process_group()
assert not [name for name in sys.modules if name.split(".")[0] == "torch"]
print("done")
"""


def test_a_numpy_program_never_imports_torch() -> None:
    ended = run(NUMPY_PROGRAM, MPICOLL_ALLOW_SINGLETON="1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "done\n"


@pytest.mark.parametrize("names", [["mpicoll", "native"], ["native", "mpicoll"]], ids=" first, then ".join)
def test_ignite_takes_the_backend_for_one_of_its_own(names: list[str], tmp_path: Path) -> None:
    # Where it does not, its auto_model leaves a model without DDP. tests/clients has the real one.
    package = tmp_path / "ignite" / "distributed" / "comp_models"
    package.mkdir(parents=True)
    (package / "native.py").write_text('MPI = "mpi"')
    lines = {"mpicoll": "import mpicoll", "native": "from ignite.distributed.comp_models import native"}
    ended = run("\n".join([*(lines[name] for name in names), "print(native.MPI)"]), PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert (ended.returncode, ended.stdout) == (0, "mpicoll\n"), ended.stderr
