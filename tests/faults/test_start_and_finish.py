"""Start and finish in every order: who starts MPI, who ends it, what is left out, what is called too late."""

import pytest

from .jobs import SAY, RunJob

CALLS = [
    "dist.get_rank()",
    "dist.get_world_size()",
    "dist.all_reduce(np.ones(2))",
    "dist.barrier()",
    "dist.all_gather_object([None] * 2, 1)",
    "dist.isend(np.ones(2), 0)",
    "dist.new_group([0])",
]
EXPECT_REFUSAL = """
for call in CALLS:
    try:
        eval(call)
    except dist.MpicollError as error:
        say(f"{type(error).__name__}: {call}")
"""


def test_a_missing_destroy_ends_cleanly(job: RunJob) -> None:
    # T75; Open MPI's own words for it are "exiting improperly".
    end = job("dist.all_reduce(np.ones(3))")
    assert (end.code, end.out, end.err) == (0, "", "")


def test_destroy_and_the_end(job: RunJob) -> None:
    end = job("dist.all_reduce(np.ones(3)); dist.destroy_process_group(); say(str(dist.is_initialized()))")
    assert (end.code, end.lines(), end.err) == (0, ["False", "False"], "")


def test_groups_left_behind_end_cleanly(job: RunJob) -> None:
    end = job("pair = dist.new_group([0, 1]); alone = dist.new_group([1]); dist.all_reduce(np.ones(3), group=pair)")
    assert (end.code, end.out) == (0, "")
    assert "Abort" not in end.err
    assert "leak" not in end.err


def test_an_operation_under_way_is_finished_at_exit(job: RunJob) -> None:
    end = job(
        """
        x = np.full(1_000_000, rank + 1.0)
        import atexit
        if rank == 0:
            time.sleep(0.5)
        dist.all_reduce(x, async_op=True)
        """
    )
    assert (end.code, end.err) == (0, "")


def test_destroy_finishes_what_is_under_way(job: RunJob) -> None:
    end = job(
        """
        x = np.full(1_000_000, rank + 1.0)
        if rank == 0:
            time.sleep(0.5)
        dist.all_reduce(x, async_op=True)
        dist.destroy_process_group()
        say(str(set(x.tolist())))
        """
    )
    assert (end.code, end.lines(), end.err) == (0, ["{3.0}", "{3.0}"], "")


def test_dropped_sends_arrive_and_the_job_ends_with_0(job: RunJob) -> None:
    # T64, mpi4py#233: the handle and the array are gone before the message has left. tests/ranks has it with tensors.
    end = job(
        """
        if rank == 0:
            for i in range(4):
                dist.isend(np.full(200_000, float(i)), 1)
            junk = [np.full(200_000, -1.0) for _ in range(20)]
        else:
            time.sleep(0.5)
            got = [np.empty(200_000) for _ in range(4)]
            for array in got:
                dist.recv(array, src=0)
            say(str([sorted(set(array.tolist())) for array in got]))
        """
    )
    assert (end.code, end.out, end.err) == (0, "[[0.0], [1.0], [2.0], [3.0]]\n", "")


def test_three_lives_in_one_process(job: RunJob) -> None:
    # T50, pytorch#55967, pytorch#74666.
    end = job(
        """
        for _ in range(3):
            dist.init_process_group()
            x = np.ones(1)
            dist.all_reduce(x)
            dist.destroy_process_group()
            say(f"{x[0]} {dist.is_initialized()}")
        """,
        start=SAY,
    )
    assert (end.code, end.lines(), end.err) == (0, ["2.0 False"] * 6, "")


@pytest.mark.parametrize("door", ["dist.init_process_group()", "td.init_process_group('mpicoll')"])
def test_lives_leave_nothing_behind(job: RunJob, door: str) -> None:
    """The user's communicator outlives the groups that stood for it, and sys.excepthook torch's hooks around it."""
    if "td" in door:
        pytest.importorskip("torch")
    end = job(
        f"""
        import gc
        if {"td" in door}:
            import torch.distributed as td
        from mpi4py import MPI
        comm = MPI.COMM_WORLD.Dup()

        def live(times):
            for _ in range(times):
                {door}
                dist.new_group([0, 1])
                for group in (comm, None):
                    dist.all_reduce(np.ones(1), group=group)
                    dist.all_reduce(np.ones(1), group=group, async_op=True).wait()
                dist.destroy_process_group()

        def count():
            gc.collect()
            return len(gc.get_objects()), threading.active_count(), len(os.listdir("/proc/self/fd"))

        live(12)  # what is kept from the first is not counted
        before = count()
        live(24)
        objects, threads, files = (after - before for after, before in zip(count(), before))
        say(f"{{objects if objects > 12 else 'few'}} objects, {{threads}} threads, {{files}} files")
        """,
        start=SAY,
    )
    assert (end.code, end.lines(), end.err) == (0, ["few objects, 0 threads, 0 files"] * 2, "")


def test_initialising_twice_is_refused(job: RunJob) -> None:
    end = job(
        """
        try:
            dist.init_process_group()
        except dist.MpicollError as error:
            say(f"refused {isinstance(error, ValueError)}")
        dist.all_reduce(np.ones(1))
        """
    )
    assert (end.code, end.lines()) == (0, ["refused True"] * 2)


def test_mpi_that_the_user_starts_and_ends(job: RunJob) -> None:
    # T75, pytorch#33943.
    end = job(
        """
        import mpi4py
        mpi4py.rc(initialize=False, finalize=False)
        from mpi4py import MPI
        MPI.Init()
        dist.init_process_group()
        x = np.ones(1)
        dist.all_reduce(x)
        dist.destroy_process_group()
        say(f"{x[0]} {MPI.Is_finalized()} {MPI.COMM_WORLD.allreduce(1)}")
        MPI.Finalize()
        """,
        start=SAY,
    )
    assert (end.code, end.lines(), end.err) == (0, ["2.0 False 2"] * 2, "")


@pytest.mark.parametrize("finalize", ["MPI.Finalize()", "pass"])
def test_mpi_that_the_user_starts_without_a_destroy(job: RunJob, finalize: str) -> None:
    end = job(
        f"""
        import mpi4py
        mpi4py.rc(initialize=False, finalize=True)
        from mpi4py import MPI
        MPI.Init()
        dist.init_process_group()
        x = np.ones(1)
        dist.all_reduce(x)
        say(str(x[0]))
        {finalize}
        """,
        start=SAY,
    )
    assert (end.code, end.lines(), end.err) == (0, ["2.0"] * 2, "")


@pytest.mark.parametrize(
    "imports",
    ["from mpi4py import MPI\nimport mpicoll as dist", "import mpicoll as dist\nfrom mpi4py import MPI"],
    ids=["mpi4py_first", "mpicoll_first"],
)
@pytest.mark.parametrize("destroy", [True, False], ids=["destroy", "no_destroy"])
def test_either_import_order(job: RunJob, imports: str, destroy: bool) -> None:
    script = """
dist.init_process_group()
x = np.ones(1)
dist.all_reduce(x)
say(f"{x[0]} {MPI.COMM_WORLD.allreduce(2)}")
"""
    end = job(
        imports + script + ("dist.destroy_process_group()" if destroy else ""),
        start=SAY.replace("import mpicoll as dist", ""),
    )
    assert (end.code, end.lines(), end.err) == (0, ["2.0 4"] * 2, "")


def test_mpi4py_imported_after_everything_runs_finds_mpi_started(job: RunJob) -> None:
    end = job("from mpi4py import MPI\nsay(f'{MPI.Is_initialized()} {MPI.COMM_WORLD.size}')")
    assert (end.code, end.lines(), end.err) == (0, ["True 2"] * 2, "")


def test_calls_before_the_start_are_refused(job: RunJob) -> None:
    end = job(f"CALLS = {CALLS}" + EXPECT_REFUSAL, start=SAY, launcher=[])
    assert (end.code, end.lines()) == (0, sorted(f"NotInitializedError: {call}" for call in CALLS))


def test_calls_after_destroy_are_refused(job: RunJob) -> None:
    end = job("dist.destroy_process_group()\n" + f"CALLS = {CALLS}" + EXPECT_REFUSAL)
    assert (end.code, end.lines(), end.err) == (0, sorted(f"NotInitializedError: {call}" for call in CALLS * 2), "")


def test_a_group_that_outlived_the_world_is_refused(job: RunJob) -> None:
    end = job(
        """
        group = dist.new_group([0, 1])
        dist.destroy_process_group()
        dist.init_process_group()
        try:
            dist.all_reduce(np.ones(1), group=group)
        except dist.MpicollError as error:
            say("refused")
        x = np.ones(1)
        dist.all_reduce(x)
        say(str(x[0]))
        """
    )
    assert (end.code, end.lines(), end.err) == (0, ["2.0"] * 2 + ["refused"] * 2, "")


def test_calls_after_finalize_are_refused(job: RunJob) -> None:
    refused = [call for call in CALLS if "get_" not in call]
    end = job(
        "from mpi4py import MPI\ndist.barrier()\nMPI.Finalize()\n"
        + f"CALLS = {refused}"
        + EXPECT_REFUSAL.replace("{type(error).__name__}", "{'MPI has been finalised' in str(error)}")
    )
    assert (end.code, end.lines()) == (0, sorted(f"True: {call}" for call in refused * 2))


def test_starting_after_finalize_is_refused(job: RunJob) -> None:
    end = job(
        """
        from mpi4py import MPI
        MPI.Finalize()
        try:
            dist.init_process_group()
        except dist.MpicollError as error:
            say(f"{'MPI has been finalised' in str(error)}")
        """,
        start=SAY,
    )
    assert (end.code, end.lines()) == (0, ["True"] * 2)


def test_a_world_inside_the_users_communicator(job: RunJob) -> None:
    end = job(
        """
        from mpi4py import MPI
        half = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank // 2, -MPI.COMM_WORLD.rank)
        dist.init_process_group(comm=half)
        x = np.full(1, float(MPI.COMM_WORLD.rank))
        dist.all_reduce(x)
        say(f"{MPI.COMM_WORLD.rank}: {dist.get_rank()} of {dist.get_world_size()}, sum {x[0]}")
        dist.destroy_process_group()
        half.barrier()  # still the user's
        """,
        n=4,
        start=SAY,
    )
    expected = ["0: 1 of 2, sum 1.0", "1: 0 of 2, sum 1.0", "2: 1 of 2, sum 5.0", "3: 0 of 2, sum 5.0"]
    assert (end.code, end.lines(), end.err) == (0, expected, "")


def test_a_communicator_of_one_that_the_user_chose(job: RunJob) -> None:
    end = job(
        """
        from mpi4py import MPI
        dist.init_process_group(comm=MPI.COMM_SELF)
        x = np.ones(1)
        dist.all_reduce(x)
        say(f"{dist.get_rank()} of {dist.get_world_size()}, sum {x[0]}")
        """,
        start=SAY,
    )
    assert (end.code, end.lines(), end.err) == (0, ["0 of 1, sum 1.0"] * 2, "")


def test_nobody_listens_on_a_socket(job: RunJob) -> None:
    end = job(
        """
        from mpi4py import MPI

        def listening():
            inodes = set()
            for table in ("tcp", "tcp6"):
                rows = open(f"/proc/self/net/{table}").read().splitlines()[1:]
                inodes |= {row.split()[9] for row in rows if row.split()[3] == "0A"}
            links = []
            for name in os.listdir("/proc/self/fd"):
                try:
                    links.append(os.readlink(f"/proc/self/fd/{name}"))
                except OSError:
                    pass
            return sum(f"socket:[{inode}]" in links for inode in inodes)

        before = listening()  # what the MPI library itself has opened
        dist.init_process_group()
        dist.all_reduce(np.ones(1), async_op=True).wait()
        dist.all_gather_object([None] * 2, "x")
        say(str(listening() - before))
        """,
        start=SAY,
    )
    assert (end.code, end.lines(), end.err) == (0, ["0", "0"], "")


GIVES_UP = """
if rank == 0:
    {start}
    try:
        work.wait(timeout=1)
    except dist.CollectiveTimeoutError:
        say("gave up")
"""


def test_a_receive_that_was_given_up_is_taken_back_at_the_end(job: RunJob) -> None:
    end = job(GIVES_UP.format(start="work = dist.irecv(np.zeros(4), src=1)"))
    assert (end.code, end.lines(), end.err) == (0, ["gave up"], "")


@pytest.mark.parametrize(
    "start",
    [
        "work = dist.all_reduce(np.zeros(4), async_op=True)",
        "first, work = (dist.all_reduce(np.zeros(4), async_op=True) for _ in range(2))",
        "work = dist.isend(np.zeros(4_000_000), dst=1)",
    ],
    ids=["one", "second", "send"],
)
@pytest.mark.parametrize("destroy", [False, True], ids=["", "destroy"])
def test_an_operation_that_was_given_up_does_not_hold_the_end(job: RunJob, start: str, destroy: bool) -> None:
    end = job(GIVES_UP.format(start=start) + ("dist.destroy_process_group()" if destroy else ""))
    assert end.code not in (0, None)
    assert "gave up" in end.out or "given up on" in end.err or "never ended" in end.err
    assert end.seconds_after("gave up") < 10.0
