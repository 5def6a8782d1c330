"""Below THREAD_MULTIPLE everything works; below THREAD_SERIALIZED all but what is asynchronous, refused by name."""

import pytest

from .jobs import SAY, RunJob

# The level is asked of mpi4py before MPI starts; an MPI may give more, so a script says what it has.
AT_LEVEL = (
    """
import mpi4py
mpi4py.rc.thread_level = "{level}"
"""
    + SAY
    + """
dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
from mpi4py import MPI
LEVELS = [MPI.THREAD_SINGLE, MPI.THREAD_FUNNELED, MPI.THREAD_SERIALIZED, MPI.THREAD_MULTIPLE]
NAMES = ["single", "funneled", "serialized", "multiple"]
say("level " + NAMES[LEVELS.index(MPI.Query_thread())])
"""
)
SYNCHRONOUS = """
x = np.full(3, rank + 1.0)
dist.all_reduce(x)
rows = np.zeros((2, 3))
dist.all_gather(list(rows), np.full(3, float(rank)))
objects = [None, None]
dist.all_gather_object(objects, {"rank": rank})
if rank == 0:
    dist.send(np.arange(4), 1)
else:
    y = np.zeros(4, int)
    dist.recv(y, 0)
    assert y.tolist() == [0, 1, 2, 3]
pair = dist.new_group([0, 1])
dist.barrier(pair)
say(f"sync {x.tolist()} {rows.tolist()} {objects}")
"""
SYNC_LINE = "sync [3.0, 3.0, 3.0] [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]] [{'rank': 0}, {'rank': 1}]"
ASYNCHRONOUS = """
big = np.full(300_000, rank + 1.0)
small, got = np.full(2, rank + 1.0), np.zeros(5)
works = [dist.all_reduce(big, async_op=True), dist.irecv(got, 1 - rank), dist.isend(np.full(5, float(rank)), 1 - rank)]
works.append(dist.all_reduce(small, group=pair, async_op=True))
other = np.ones(1)
dist.all_reduce(other)  # a synchronous call amid asynchronous ones
own = np.zeros(100_000)
works += [dist.isend(np.full(100_000, 7.0), rank, tag=1), dist.irecv(own, rank, tag=1)]
works.append(dist.barrier(async_op=True))
for work in reversed(works):
    work.wait()
right = got.tolist() == [1.0 - rank] * 5 and set(own.tolist()) == {7.0}
say(f"async {set(big.tolist())} {small.tolist()} {right} {other.tolist()}")
"""
ASYNC_LINE = "async {3.0} [3.0, 3.0] True [2.0]"
REFUSALS = """
for name, call in {
    "all_reduce": lambda: dist.all_reduce(np.ones(2), async_op=True),
    "broadcast": lambda: dist.broadcast(np.ones(2), 0, async_op=True),
    "barrier": lambda: dist.barrier(async_op=True),
}.items():
    try:
        call()
        say(f"{name} accepted")
    except dist.ThreadLevelError as error:
        say(f"{name} refused {name in str(error)} {NAMES[LEVELS.index(MPI.Query_thread())] in str(error).lower()}")
after = np.ones(1)
dist.all_reduce(after)
say(f"after {after[0]}")
"""


@pytest.mark.parametrize("level", ["multiple", "serialized"])
def test_everything_works(job: RunJob, level: str) -> None:
    end = job(SYNCHRONOUS + ASYNCHRONOUS, start=AT_LEVEL.format(level=level))
    assert (end.code, end.err) == (0, "")
    assert end.lines().count(SYNC_LINE) == 2
    assert end.lines().count(ASYNC_LINE) == 2
    given = {line.removeprefix("level ") for line in end.lines() if line.startswith("level ")}
    assert given <= {"serialized", "multiple"}


@pytest.mark.parametrize("level", ["funneled", "single"])
def test_synchronous_calls_work_and_asynchronous_ones_are_refused_by_name(job: RunJob, level: str) -> None:
    end = job(SYNCHRONOUS + REFUSALS, start=AT_LEVEL.format(level=level))
    assert (end.code, end.err) == (0, "")
    assert end.lines().count(SYNC_LINE) == 2
    given = {line.removeprefix("level ") for line in end.lines() if line.startswith("level ")}
    if given & {"serialized", "multiple"}:
        assert end.lines().count("all_reduce accepted") == 2, f"this MPI gave {given}, which serves"
        return
    assert given == {level}
    for name in ("all_reduce", "broadcast", "barrier"):
        assert end.lines().count(f"{name} refused True True") == 2
    assert end.lines().count("after 2.0") == 2


def test_threads_of_the_user_take_turns(job: RunJob) -> None:
    """Calls from several threads at the default level, each thread on a group of its own."""
    end = job(
        """
        groups = [dist.new_group([0, 1]) for _ in range(3)]
        sums = [np.full(1000, float(rank + i)) for i in range(3)]

        def work(i):
            for _ in range(20):
                dist.all_reduce(sums[i], op=dist.ReduceOp.MAX, group=groups[i])
            dist.all_reduce(sums[i], group=groups[i], async_op=True).wait()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say(str([set(x.tolist()) for x in sums]))
        """
    )
    assert (end.code, end.err) == (0, "")
    assert end.lines() == [str([{2.0 + 2 * i} for i in range(3)])] * 2
