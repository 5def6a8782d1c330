"""``python -m mpicoll run``: scripts written for torchrun, under mpirun."""

from pathlib import Path

import pytest

from .jobs import RunJob

pytestmark = pytest.mark.needs_torch

RUN = ("-m", "mpicoll", "run")
TAKE_OVER = (*RUN, "--backend", "mpicoll")
TOOLS = """\
import os, sys

def say(text):
    os.write(1, (text + "\\n").encode())
"""


def test_it_sets_what_torchrun_sets(job: RunJob) -> None:
    script = """
names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE"
say(" ".join(os.environ[name] for name in names.split()))
assert os.environ["MASTER_ADDR"] and int(os.environ["MASTER_PORT"]) > 0
import torch.distributed as td
assert td.is_torchelastic_launched()
"""
    end = job(script, n=3, start=TOOLS, before=RUN)
    assert (end.code, end.lines()) == (0, [f"{rank} {rank} 3 3 0 1 {rank} 3" for rank in range(3)]), end


def test_the_script_has_its_arguments_and_its_folder(job: RunJob, tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("word = 'found'")
    script = "import neighbour\nsay(f'{sys.argv[1:]} {__name__} {neighbour.word} {os.path.exists(__file__)}')"
    end = job(script, start=TOOLS, before=RUN, after=("--steps", "3", "-m"))
    assert (end.code, end.lines()) == (0, ["['--steps', '3', '-m'] __main__ found True"] * 2), end


BACKENDS = {
    "gloo": 'td.init_process_group("gloo")',
    "none": "td.init_process_group()",
    "by devices": 'td.init_process_group("cpu:gloo,cuda:nccl")',
    "env": 'td.init_process_group(backend="gloo", init_method="env://")',
    "from": "from torch.distributed import init_process_group\ninit_process_group('gloo')",
    "mesh": "td.init_device_mesh('cpu', (2,))",
}
ADD = """
import torch
x = torch.ones(2)
td.all_reduce(x)
say(f"{td.get_backend()} {x.tolist()}")
td.destroy_process_group()
"""


@pytest.mark.parametrize("call", BACKENDS)
def test_it_takes_the_place_of_the_backend_that_a_script_names(job: RunJob, call: str) -> None:
    end = job(f"import torch.distributed as td\n{BACKENDS[call]}{ADD}", start=TOOLS, before=TAKE_OVER)
    assert (end.code, end.lines()) == (0, ["mpicoll [2.0, 2.0]"] * 2), end


def test_the_scripts_own_backend_meets_by_mpi(job: RunJob) -> None:
    end = job(f"import torch.distributed as td\n{BACKENDS['gloo']}{ADD}", start=TOOLS, before=RUN)
    assert (end.code, end.lines()) == (0, ["gloo [2.0, 2.0]"] * 2), end


@pytest.mark.parametrize("before", [RUN, TAKE_OVER], ids=["gloo", "mpicoll"])
@pytest.mark.parametrize(
    "end_of_rank", ["raise ValueError('boom')", "sys.exit(3)", "raise SystemExit(3)", "os._exit(3)"]
)
def test_a_rank_that_dies_ends_the_job(job: RunJob, before: tuple[str, ...], end_of_rank: str) -> None:
    script = f"""
import torch, torch.distributed as td
td.init_process_group("gloo")
if td.get_rank() == 1:
    say("now")
    {end_of_rank}
td.barrier()
"""
    end = job(script, start=TOOLS, before=before)
    assert end.code not in (0, None)
    assert end.seconds_after("now") < 10
    if "exit" not in end_of_rank.lower():
        assert "ValueError: boom" in end.err


def test_a_rank_that_dies_before_the_start_ends_the_job(job: RunJob) -> None:
    script = """
import torch.distributed as td
if os.environ["RANK"] == "1":
    say("now")
    raise ValueError("boom")
td.init_process_group("gloo")
"""
    end = job(script, start=TOOLS, before=RUN)
    assert end.code not in (0, None)
    assert end.seconds_after("now") < 10
    assert "ValueError: boom" in end.err


def test_a_variable_that_mpi_denies_is_an_error(job: RunJob) -> None:
    end = job("say('never')", start=TOOLS, before=RUN, env={"WORLD_SIZE": "7"})
    assert end.code not in (0, None)
    assert end.out == ""
    assert "WORLD_SIZE=2" in end.err
    assert "WORLD_SIZE=7" in end.err


def test_a_script_that_is_not_there_is_named(job: RunJob, tmp_path: Path) -> None:
    end = job(tmp_path / "nowhere.py", before=RUN)
    assert end.code not in (0, None)
    assert "nowhere.py" in end.err
    assert "Traceback" not in end.err


def test_a_module_runs_too(job: RunJob, tmp_path: Path) -> None:
    (tmp_path / "somewhere.py").write_text("import sys; print(__name__, sys.argv[1:])")
    end = job("", start="", before=(*RUN, "-m", "somewhere"), env={"PYTHONPATH": str(tmp_path)}, launcher=[])
    assert end.code == 0, end
    assert end.out.startswith("__main__ ['")
