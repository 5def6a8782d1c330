"""A rank that fails ends the job also where the program tidies up, or has hooks and handlers of its own."""

import pytest

from .jobs import RunJob

SOON = 10.0
FAIL = """
if rank == 1:
    time.sleep(0.3)  # the other is in its call by now
    say("FAILS")
    {fail}
dist.barrier()
"""


@pytest.mark.parametrize("fail", ["raise RuntimeError('boom')", "sys.exit(3)"])
def test_destroying_the_group_on_the_way_out_does_not_hold_the_job(job: RunJob, fail: str) -> None:
    indented = FAIL.format(fail=fail).replace("\n", "\n    ")
    end = job(f"try:{indented}\nfinally:\n    dist.destroy_process_group()")
    assert end.code not in (0, None)
    assert end.seconds_after("FAILS") < SOON


def test_a_hook_that_replaces_ours_does_not_hold_the_job(job: RunJob) -> None:
    end = job(
        "sys.excepthook = lambda kind, error, trace: say(f'hook: {error}')" + FAIL.format(fail="raise OSError('x')")
    )
    assert end.code not in (0, None)
    assert end.seconds_after("FAILS") < SOON
    assert "hook: x" in end.out


def test_a_handler_of_the_users_keeps_ctrl_c_to_itself(job: RunJob) -> None:
    end = job(
        """
        signal.signal(signal.SIGINT, lambda number, frame: say("handled"))
        dist.barrier()
        if rank == 0:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(3.5)  # longer than a rank is given to act on it
        dist.barrier()
        """
    )
    assert (end.code, end.lines(), end.err) == (0, ["handled"], "")


def test_ctrl_c_in_a_forked_child_is_not_the_ranks(job: RunJob) -> None:
    end = job(
        """
        if rank == 0:
            child = os.fork()
            if child == 0:
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(1)
                except KeyboardInterrupt:
                    os._exit(7)
            say(f"child {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")
            time.sleep(3.5)
        dist.barrier()
        """
    )
    assert (end.code, end.lines(), end.err) == (0, ["child 7"], "")
