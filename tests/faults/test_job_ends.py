"""One rank fails while others wait for it: the whole job ends, soon, with a non-zero status and that rank's traceback.

From the reported case T41 (pytorch#76760; the live thread: mpi-sppy#853) and its relatives.
"""

import pytest

from .jobs import RunJob

SOON = 10.0

WAITS = {
    "barrier": "dist.barrier()",
    "all_gather": "dist.all_gather([np.zeros(4) for _ in range(size)], np.ones(4))",
    "recv": "dist.recv(np.zeros(4), src=1)",
    "async_wait": "dist.all_reduce(np.ones(4), async_op=True).wait()",
    "irecv_wait": "dist.irecv(np.zeros(4), src=1).wait()",
    "object": "dist.broadcast_object_list([None], src=1)",
    "sleep": "time.sleep(60)",
}
FAIL = """
if rank == 1:
    time.sleep(0.3)  # the others are in their call by now
    say("FAILS")
    raise RuntimeError("boom")
"""
USER_HOOK = """
before = sys.excepthook
def mine(kind, error, trace):
    say(f"mine saw {error}")
    before(kind, error, trace)
sys.excepthook = mine
"""


@pytest.mark.parametrize("wait", WAITS)
def test_an_uncaught_exception_ends_the_job_while_others_wait(job: RunJob, wait: str) -> None:
    end = job(FAIL + WAITS[wait], n=3)
    assert end.code not in (0, None)
    assert end.seconds_after("FAILS") < SOON
    assert "boom" in end.err
    assert "Traceback" in end.err


def test_a_live_user_thread_does_not_hold_the_job(job: RunJob) -> None:
    end = job("threading.Thread(target=time.sleep, args=(60,)).start()\n" + FAIL + WAITS["barrier"], n=3)
    assert end.code not in (0, None)
    assert end.seconds_after("FAILS") < SOON
    assert "boom" in end.err


@pytest.mark.parametrize("leave", ["sys.exit(3)", "exit(3)", "sys.exit('boom')"])
@pytest.mark.parametrize("thread", [False, True], ids=["", "live_thread"])
def test_leaving_with_a_status_ends_the_job(job: RunJob, leave: str, thread: bool) -> None:
    live = "threading.Thread(target=time.sleep, args=(60,)).start()\n" if thread else ""
    end = job(live + FAIL.replace('raise RuntimeError("boom")', leave) + WAITS["barrier"], n=2)
    assert end.code not in (0, None)
    assert end.seconds_after("FAILS") < SOON


def test_ctrl_c_in_python_code_ends_the_job(job: RunJob) -> None:
    end = job(FAIL.replace('raise RuntimeError("boom")', "os.kill(os.getpid(), signal.SIGINT)") + WAITS["barrier"])
    assert end.code not in (0, None)
    assert end.seconds_after("FAILS") < SOON
    assert "KeyboardInterrupt" in end.err


@pytest.mark.parametrize("wait", ["barrier", "all_gather", "recv", "async_wait"])
def test_ctrl_c_reaches_a_rank_that_sits_in_a_call(job: RunJob, wait: str) -> None:
    end = job(
        f"""
        pids = [None] * size
        dist.all_gather_object(pids, os.getpid())
        if rank == 1:
            time.sleep(0.5)  # rank 0 is in its call by now
            say("FAILS")
            os.kill(pids[0], signal.SIGINT)
            time.sleep(60)
        {WAITS[wait]}
        """
    )
    assert end.code not in (0, None)
    assert end.seconds_after("FAILS") < SOON
    assert "KeyboardInterrupt" in end.err


def test_the_users_own_excepthook_still_runs(job: RunJob) -> None:
    end = job(USER_HOOK + FAIL + WAITS["barrier"])
    assert end.code not in (0, None)
    assert end.seconds_after("FAILS") < SOON
    assert "mine saw boom" in end.out
    assert "boom" in end.err


def test_an_error_of_mpicoll_that_nobody_catches_ends_the_job(job: RunJob) -> None:
    end = job(
        """
        if rank == 1:
            time.sleep(0.3)
            say("FAILS")
            dist.send(np.ones(3), dst=7)
        dist.barrier()
        """
    )
    assert end.code not in (0, None)
    assert end.seconds_after("FAILS") < SOON
    assert "ArgumentError" in end.err
    assert "7" in end.err


def test_a_receive_that_timed_out_leaves_the_process_able_to_end(job: RunJob) -> None:
    # T40. No message ever comes; MPI itself knows no time-out.
    end = job(
        """
        if rank == 0:
            work = dist.irecv(np.zeros(2), src=1)
            began = time.monotonic()
            try:
                work.wait(timeout=1.0)
            except dist.CollectiveTimeoutError as error:
                say(f"raised TimeoutError {isinstance(error, TimeoutError)}")
                say(f"in time {1.0 <= time.monotonic() - began < 3.0}")
        say("ENDS")
        sys.exit(5 if rank == 0 else 0)
        """
    )
    assert "raised TimeoutError True" in end.out
    assert "in time True" in end.out
    assert end.code not in (0, None)
    assert end.seconds_after("ENDS") < SOON


def test_an_uncaught_time_out_ends_the_job(job: RunJob) -> None:
    # T40, with nobody to catch it.
    end = job(
        """
        if rank == 0:
            work = dist.irecv(np.zeros(2), src=1)
            say("WAITS")
            work.wait(timeout=1.0)
        dist.barrier()
        """
    )
    assert end.code not in (0, None)
    assert end.seconds_after("WAITS") < 1.0 + SOON
    assert "CollectiveTimeoutError" in end.err
