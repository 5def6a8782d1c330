"""A rank that leaves in good order, or with a status, while others wait for it: the job ends and says so."""

import pytest

from .jobs import START, RunJob

SOON = 10.0
# What the others wait in, and how their report names it.
WAITS = {
    "all_reduce": ("dist.all_reduce(np.ones(4))", "all_reduce()"),
    "recv": ("dist.recv(np.zeros(4), src=1)", "recv()"),
    "recv from anybody": ("dist.recv(np.zeros(4))", "recv()"),
    "irecv": ("dist.irecv(np.zeros(4), src=1).wait()", "wait() of irecv(group=world"),
    "asynchronous": ("dist.all_reduce(np.ones(4), async_op=True).wait()", "wait() of all_reduce(group=world"),
    "new_group": ("dist.new_group()", "new_group()"),
    "monitored_barrier": ("dist.monitored_barrier()", "monitored_barrier()"),
}
LEAVES = """
if rank == 1:
    say("LEAVES")
    {leave}
else:
    {wait}
"""


@pytest.mark.parametrize("wait", WAITS)
def test_a_rank_that_is_waited_for_leaves_in_good_order(job: RunJob, wait: str) -> None:
    call, name = WAITS[wait]
    end = job(LEAVES.format(leave="sys.exit(0)", wait=call))
    assert end.code not in (0, None)
    assert end.seconds_after("LEAVES") < SOON
    assert f"rank 0 of 2 waits for rank 1 in {name}" in end.err
    assert f"line {len(START.splitlines()) + 6}" in end.err


def test_a_large_message_for_a_rank_that_leaves(job: RunJob) -> None:
    end = job(LEAVES.format(leave="sys.exit(0)", wait="dist.send(np.zeros(1 << 22), dst=1); say('SENT')"))
    assert end.seconds_after("LEAVES") < SOON
    if "SENT" in end.out:  # as by Intel MPI, whose ranks take in what nobody has asked for
        assert end.code == 0
    else:
        assert end.code not in (0, None)
        assert "rank 0 of 2 waits for rank 1 in send()" in end.err


@pytest.mark.parametrize("leave", ["pass", "raise SystemExit", "dist.destroy_process_group()"])
def test_however_it_leaves(job: RunJob, leave: str) -> None:
    end = job(LEAVES.format(leave=leave, wait="dist.all_reduce(np.ones(4))"), n=3)
    assert end.code not in (0, None)
    assert end.seconds_after("LEAVES") < SOON
    assert "waits for rank 1 in all_reduce()" in end.err


@pytest.mark.needs_torch
@pytest.mark.parametrize("wait", ["all_reduce(torch.ones(4))", "recv(torch.ones(4), src=1)"])
def test_at_the_second_door(job: RunJob, wait: str) -> None:
    start = "import torch, torch.distributed as td\ntd.init_process_group('mpicoll')\nrank = td.get_rank()\n"
    script = LEAVES.format(leave="pass", wait=f"td.{wait}").replace("say", "print")
    end = job(script, start="import mpicoll\n" + start)
    assert end.code not in (0, None)
    assert "waits for rank 1 in" in end.err


@pytest.mark.parametrize("leave", ["raise SystemExit(3)", "sys.exit(3)", "exit(3)"])
def test_a_status_is_the_jobs(job: RunJob, leave: str) -> None:
    end = job(LEAVES.format(leave=leave, wait="dist.barrier()"))
    assert end.code == 3
    assert end.seconds_after("LEAVES") < SOON
    assert "rank 1 of 2 called exit(3)" in end.err


def test_an_exit_from_before_the_start_ends_the_job(job: RunJob) -> None:
    # Up to Python 3.11 its status is not seen, and the rank leaves as if it had none.
    end = job(LEAVES.format(leave="early(3)", wait="dist.barrier()"), start="from sys import exit as early\n" + START)
    assert end.code in (1, 3)
    assert end.seconds_after("LEAVES") < SOON


def test_a_status_ends_the_job_of_ranks_that_wait_for_nobody(job: RunJob) -> None:
    end = job(LEAVES.format(leave="raise SystemExit(3)", wait="time.sleep(60)"))
    assert end.code == 3
    assert end.seconds_after("LEAVES") < SOON


def test_a_caught_exit_is_no_failure(job: RunJob) -> None:
    end = job(
        """
        for status in (3, None, "text"):
            try:
                raise SystemExit(status)
            except SystemExit as leaving:
                assert leaving.code == status
                leaving.code = 5
                assert leaving.code == 5
        thread = threading.Thread(target=lambda: sys.exit(3))
        thread.start()
        thread.join()
        child = os.fork()
        if child == 0:
            raise SystemExit(7)
        say(f"child {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")
        dist.barrier()
        """
    )
    assert (end.code, end.err, end.lines()) == (0, "", ["child 7"] * 2)


def test_a_rank_that_nobody_waits_for_may_leave_early(job: RunJob) -> None:
    end = job(
        """
        pair = dist.new_group([0, 2])
        posted = dist.irecv(np.zeros(2), src=1)  # which nobody waits for
        if rank != 1:
            time.sleep(4)
            x = np.ones(1)
            dist.all_reduce(x, group=pair)
            dist.send(x, dst=2 - rank) if rank == 0 else dist.recv(x, src=0)
            say(f"sum {x[0]:g}")
        else:
            for other in (0, 2):
                dist.isend(np.ones(2), other)
            dist.isend(np.ones(2), 1)
        """,
        n=3,
    )
    assert (end.code, end.err, end.lines()) == (0, "", ["sum 2"] * 2)


def test_a_message_for_a_rank_that_has_left_with_a_receive_posted_arrives(job: RunJob) -> None:
    end = job(
        """
        if rank == 1:
            dist.irecv(x, src=0)
        else:
            time.sleep(4)
            dist.send(x + 1, dst=1)
        """,
        start=START.replace(
            "dist.init", "import atexit\nx = np.zeros(1 << 20)\natexit.register(lambda: say(f'{x.sum():g}'))\ndist.init"
        ),
    )
    assert (end.code, end.err, end.lines()) == (0, "", ["0", f"{1 << 20:g}"])


def test_a_receive_that_nobody_sends_for_does_not_hold_the_end(job: RunJob) -> None:
    end = job("dist.irecv(np.zeros(4), src=1 - rank)\nsay('LEAVES')")
    assert end.code == 0
    assert end.seconds_after("LEAVES") < SOON
    for rank in range(2):
        assert f"rank {rank} of 2 leaves with a receive that rank {1 - rank} sent nothing for" in end.err


def test_an_operation_that_the_others_never_join_does_not_hold_the_end(job: RunJob) -> None:
    end = job("dist.all_reduce(np.ones(4), async_op=True) if rank == 0 else None\nsay('LEAVES')")
    assert end.code not in (0, None)
    assert end.seconds_after("LEAVES") < SOON
    assert "rank 0 of 2 waits for rank 1 in what is under way" in end.err


def test_a_world_after_another_one(job: RunJob) -> None:
    end = job(
        """
        dist.destroy_process_group()
        dist.init_process_group()
        dist.all_reduce(np.ones(1))
        if rank == 0:
            dist.all_reduce(np.ones(1))
        """
    )
    assert end.code not in (0, None)
    assert "rank 0 of 2 waits for rank 1 in all_reduce()" in end.err
