"""Two doors, one world: start and finish at either, in every order of imports, and what beside mpicoll there may be."""

from pathlib import Path

import pytest

from .jobs import RunJob

pytestmark = pytest.mark.needs_torch

TOOLS = """\
import os, sys, time

def say(text):
    os.write(1, (text + "\\n").encode())

def listening():
    paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    own = {os.readlink(path) for path in paths if os.path.lexists(path)}
    rows = [row.split() for name in ("tcp", "tcp6") for row in open(f"/proc/net/{name}").readlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]
"""
IMPORTS = {
    "torch first": "import torch.distributed as td\nimport mpicoll as dist\n",
    "mpicoll first": "import mpicoll as dist\nimport torch.distributed as td\n",
}
DOORS = {"first": "dist.init_process_group()", "second": "td.init_process_group('mpicoll')"}
WORKS = """
import torch
for door in (dist, td):
    x = torch.ones(3)
    door.all_reduce(x)
    assert x.tolist() == [2.0, 2.0, 2.0]
assert dist.group.WORLD is td.group.WORLD
assert (td.get_rank(), td.get_world_size(), td.get_backend()) == (dist.get_rank(), 2, "mpicoll")
"""


@pytest.mark.parametrize("imports", IMPORTS)
@pytest.mark.parametrize("door", DOORS)
def test_either_door_opens_both(job: RunJob, imports: str, door: str) -> None:
    end = job(IMPORTS[imports] + DOORS[door] + WORKS + "\nsay('done')", start=TOOLS)
    assert (end.code, end.lines()) == (0, ["done", "done"]), end


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("exit", ["dist", "td"])
def test_either_door_closes_both_and_opens_again(job: RunJob, door: str, exit: str) -> None:
    script = f"""
for _ in range(3):
    {DOORS[door]}
    pair = td.new_group([0, 1])
    other = dist.new_group([1, 0])
    {exit}.destroy_process_group()
    assert not dist.is_initialized() and not td.is_initialized()
    assert pair.closed and other.closed
say("done")
"""
    end = job(IMPORTS["torch first"] + script, start=TOOLS)
    assert (end.code, end.lines()) == (0, ["done", "done"]), end


def test_torch_imported_after_the_start_is_initialised(job: RunJob) -> None:
    script = (
        "import mpicoll as dist\ndist.init_process_group()\nimport torch.distributed as td" + WORKS + "\nsay('done')"
    )
    end = job(script, start=TOOLS)
    assert (end.code, end.lines()) == (0, ["done", "done"]), end


def test_torch_can_be_left_alone(job: RunJob) -> None:
    script = """
import torch.distributed as td, mpicoll as dist
dist.init_process_group(torch=False)
assert dist.is_initialized() and not td.is_initialized()
td.init_process_group("mpicoll")
assert td.group.WORLD is dist.group.WORLD
say("done")
"""
    end = job(script, start=TOOLS)
    assert (end.code, end.lines()) == (0, ["done", "done"]), end


def test_torch_can_be_asked_for(job: RunJob) -> None:
    script = """
import mpicoll as dist
dist.init_process_group(torch=True)
say(str(sys.modules["torch.distributed"].is_initialized()))
"""
    end = job(script, start=TOOLS)
    assert (end.code, end.lines()) == (0, ["True", "True"]), end


def test_another_default_group_of_torchs_is_left_alone(job: RunJob) -> None:
    script = """
import torch, torch.distributed as td, mpicoll as dist
td.init_process_group("gloo", init_method="mpi://")
dist.init_process_group()
assert td.get_backend() == "gloo"
ours = td.new_group([0, 1], backend="mpicoll")
for group in (None, ours):
    x = torch.ones(2)
    td.all_reduce(x, group=group)
    assert x.tolist() == [2.0, 2.0]
dist.all_reduce(x, group=ours)
assert x.tolist() == [4.0, 4.0]
dist.destroy_process_group()
assert td.is_initialized()
td.destroy_process_group()
dist.init_process_group(torch=False)
try:
    td.init_process_group("gloo", init_method="mpi://")
    dist.destroy_process_group()
    dist.init_process_group(torch=True)
except dist.ArgumentError as error:
    say(str(error).partition(":")[0] + str("'gloo'" in str(error)))
"""
    end = job(script, start=TOOLS)
    assert (end.code, end.lines()) == (0, ["init_process_group()True"] * 2), end


def test_a_communicator_at_torchs_door(job: RunJob) -> None:
    script = """
import torch, torch.distributed as td, mpicoll as dist
from mpi4py import MPI
world = MPI.COMM_WORLD
backwards = world.Split(0, -world.Get_rank())
td.init_process_group("mpicoll", pg_options=backwards)
assert td.get_rank() == dist.get_rank() == 2 - world.Get_rank()
pair = backwards.Split(0 if backwards.Get_rank() < 2 else MPI.UNDEFINED)
group = td.new_group([0, 1], pg_options=None if pair == MPI.COMM_NULL else pair)
if td.get_rank() < 2:
    assert group.comm == pair
    x = torch.ones(1)
    td.all_reduce(x, group=group)
    say(str(x.item()))
"""
    end = job(script, n=3, start=TOOLS)
    assert (end.code, end.lines()) == (0, ["2.0", "2.0"]), end


@pytest.mark.parametrize("argument", ["world_size=3, rank=RANK", "world_size=2, rank=1 - RANK", "pg_options=7"])
def test_a_place_that_mpi_denies_is_refused_on_every_rank(job: RunJob, argument: str) -> None:
    script = f"""
from mpi4py import MPI
import torch.distributed as td, mpicoll as dist
RANK = MPI.COMM_WORLD.Get_rank()
try:
    td.init_process_group("mpicoll", {argument})
except dist.MpicollError as error:
    say(type(error).__name__)
from mpicoll.torch_backend.store_torch import LazyStore
assert LazyStore.take() is None  # it would be the next group's
"""
    end = job(script, start=TOOLS)
    expected = "ArgumentError" if "pg_options" in argument else "LaunchError"
    assert (end.code, end.lines()) == (0, [expected] * 2), end


OPEN_BOTH = IMPORTS["torch first"] + DOORS["first"] + "\nimport torch\nbefore = listening()\n"


def test_mpicoll_alone_opens_no_listening_socket(job: RunJob) -> None:
    # Before MPI starts and after: the MPI library may open sockets of its own, which is its business.
    script = """
from mpi4py import MPI
MPIS = listening()
import torch, torch.distributed as td, mpicoll as dist
from torch.nn.parallel import DistributedDataParallel
td.init_process_group("mpicoll")
group = td.new_group([0, 1])
model = DistributedDataParallel(torch.nn.Linear(3, 3))
model(torch.ones(2, 3)).sum().backward()
td.barrier()
say(str(set(listening()) - set(MPIS)))
td.destroy_process_group()
"""
    end = job(script, start=TOOLS)
    assert (end.code, end.lines()) == (0, ["set()", "set()"]), end


@pytest.mark.parametrize(("ranks", "wait"), [([0, 1, 2], False), ([1, 2], True), ([1, 2], False), ([2, 0], False)])
def test_a_gloo_group_beside_mpicoll(job: RunJob, ranks: list[int], wait: bool) -> None:
    # Rank 0 opens the store whether it is in the group or not, while it computes or is at its end before the others.
    script = f"""
group = td.new_group({ranks}, backend="gloo")
if dist.get_rank() in {ranks}:
    x = torch.ones(2)
    td.all_reduce(x, group=group)
    say(td.get_backend(group) + str(x.tolist()))
elif {wait}:
    until = time.monotonic() + 3
    while time.monotonic() < until:
        sum(range(1000))
td.destroy_process_group()
"""
    end = job(OPEN_BOTH + script, n=3, start=TOOLS)
    assert (end.code, end.lines()) == (0, [f"gloo[{len(ranks)}.0, {len(ranks)}.0]"] * len(ranks)), end


def test_a_group_of_another_backend_is_named_as_such_at_the_first_door(job: RunJob) -> None:
    script = """
group = td.new_group([0, 1], backend="gloo")
try:
    dist.all_reduce(torch.ones(1), group=group)
except dist.ArgumentError as error:
    say("ProcessGroup" in str(error) and str(error).partition(":")[0])
"""
    end = job(OPEN_BOTH + script, start=TOOLS)
    assert (end.code, end.lines()) == (0, ["all_reduce()"] * 2), end


def test_mpi_url_gives_any_backend_its_store(job: RunJob) -> None:
    script = """
import torch, torch.distributed as td, mpicoll
td.init_process_group("gloo", init_method="mpi://")
x = torch.ones(1)
td.all_reduce(x)
say(f"{td.get_backend()} {x.item()} {td.get_rank()} of {td.get_world_size()}")
"""
    end = job(script, n=3, start=TOOLS)
    assert (end.code, end.lines()) == (0, [f"gloo 3.0 {rank} of 3" for rank in range(3)]), end


@pytest.mark.parametrize("arguments", ['"mpicoll"', '"gloo", init_method="mpi://"'])
def test_an_uncaught_exception_ends_the_job_with_its_traceback(job: RunJob, arguments: str) -> None:
    script = f"""
import torch, torch.distributed as td, mpicoll
td.init_process_group({arguments})
if td.get_rank() == 1:
    say("now")
    raise ValueError("boom")
td.barrier()
"""
    end = job(script, start=TOOLS)
    assert end.code not in (0, None)
    assert "ValueError: boom" in end.err
    assert "rank 1 of 2 ended with ValueError" in end.err
    assert end.seconds_after("now") < 10


def test_torchs_hook_does_not_keep_the_traceback(job: RunJob) -> None:
    # torch's excepthook collects what the one before it prints; the first door's is the one before it.
    script = "\nif dist.get_rank() == 0: raise ValueError('boom')\ndist.barrier()"
    end = job(IMPORTS["torch first"] + DOORS["first"] + script, start=TOOLS)
    assert end.code not in (0, None)
    assert "ValueError: boom" in end.err


@pytest.mark.parametrize("level", ["serialized", "funneled", "single"])
def test_thread_levels(job: RunJob, level: str) -> None:
    script = f"""
import mpi4py
mpi4py.rc.thread_level = "{level}"
import torch, torch.distributed as td, mpicoll
td.init_process_group("mpicoll")
x = torch.ones(2)
td.all_reduce(x)
group = td.new_group([0, 1], backend="gloo")
td.all_reduce(x, group=group)
say(str(x.tolist()))
td.destroy_process_group()
"""
    end = job(script, start=TOOLS)
    assert (end.code, end.lines()) == (0, ["[4.0, 4.0]"] * 2), end


def test_a_group_under_ranks_that_mpi_does_not_know_is_refused(job: RunJob, tmp_path: Path) -> None:
    # Its src= would be a rank of torch's default group, and another process in mpicoll's.
    script = f"""
import torch.distributed as td, mpicoll as dist
dist.init_process_group(torch=False)
td.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=1 - dist.get_rank(), world_size=2)
try:
    td.new_group([0, 1], backend="mpicoll")
except dist.LaunchError as error:
    say(str(error).partition(":")[0])
td.destroy_process_group()
"""
    end = job(script, start=TOOLS)
    assert (end.code, end.lines()) == (0, ["rank and size of torch's default group"] * 2), end


# A device that has no operations, which is all that it takes here.
ACCELERATOR = """
import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
_setup_privateuseone_for_python_backend("toy")
import torch.distributed as td, mpicoll as dist
toy = torch.device("toy", 0)
"""


def test_a_device_is_kept_for_all_groups(job: RunJob) -> None:
    script = """
for open_doors in (
    lambda: td.init_process_group("mpicoll", device_id=toy),
    lambda: dist.init_process_group(device_id=toy),
    lambda: dist.init_process_group(device_id=0, torch=False) or td.init_process_group("mpicoll"),
):
    open_doors()
    groups = [dist.group.WORLD, td.new_group(), dist.new_group(), td.new_group(device_id=toy)]
    groups += [dist.new_group(device_id=0), dist.new_subgroups(1)[0], dist.split_group(split_ranks=[[0], [1]])]
    say(str({group.bound_device_id for group in groups}))
    td.barrier()
    td.destroy_process_group()
"""
    end = job(script, start=TOOLS + ACCELERATOR)
    assert (end.code, end.lines()) == (0, ["{device(type='toy', index=0)}"] * 6), end


def test_torch_divides_a_group_that_has_a_device(job: RunJob) -> None:
    script = """
td.init_process_group("mpicoll", device_id=toy)
part = td.split_group(split_ranks=[[0], [1, 2]], group_desc="part")
x = torch.ones(1)
td.all_reduce(x, group=part)
dist.all_reduce(x, group=part)
assert part.bound_device_id == toy and td.get_backend(part) == "mpicoll" and part.group_desc == "part"
# For a group of NCCL's beside it torch would have NCCL split it.
assert td.distributed_c10d._get_split_source(td.group.WORLD) is None
say(f"{x.item()} {td.get_process_group_ranks(part)}")
"""
    end = job(script, n=3, start=TOOLS + ACCELERATOR)
    assert (end.code, end.lines()) == (0, ["1.0 [0]", "4.0 [1, 2]", "4.0 [1, 2]"]), end


def test_a_device_that_is_not_there_is_refused(job: RunJob) -> None:
    script = """
for device in (1, -1, torch.device("toy"), torch.device("toy", 1), torch.device("cuda", 0), "toy:0"):
    for make in (dist.init_process_group, dist.new_group):
        if make is dist.new_group:
            dist.init_process_group()
        try:
            make(device_id=device)
        except dist.ArgumentError as error:
            assert "device_id: expected a torch.device among toy:0, got" in str(error), str(error)
        else:
            say(f"{make} took {device}")
    dist.destroy_process_group()
say("done")
"""
    end = job(script, start=TOOLS + ACCELERATOR)
    assert (end.code, end.lines()) == (0, ["done", "done"]), end
