"""A child process is no rank: it gets a clear error where it calls into MPI, and harms nobody.

From the reported case T72 (mlcommons/storage#415): a child that imports mpi4py.MPI becomes a second rank 0 on Open MPI
and ends the job on MPICH.
"""

import re

import pytest

from .jobs import SAY, RunJob

# A spawned child runs the script's top level again, under another __name__.
CHILD = """
def child(queue):
    import mpicoll
    answers = []
    for call in (mpicoll.get_rank, mpicoll.barrier, mpicoll.init_process_group):
        try:
            call()
            answers.append("went through")
        except mpicoll.MpicollError as error:
            answers.append(type(error).__name__)
    queue.put(answers)

def main(method):
    import multiprocessing
    dist.init_process_group()
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    answers = queue.get(timeout=30)
    process.join(30)
    x = np.ones(1)
    dist.all_reduce(x)
    say(f"{' '.join(answers)} {process.exitcode} {x[0]}")
    dist.all_reduce(x, async_op=True).wait()
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_child_is_refused_and_the_job_goes_on(job: RunJob, method: str) -> None:
    end = job(CHILD + f"if __name__ == '__main__': main({method!r})\n", start=SAY)
    # A spawned child starts from nothing, so that "not initialised" is as true there as "a worker process".
    calls = "LaunchError" if method == "fork" else "(LaunchError|NotInitializedError)"
    assert end.code == 0
    assert len(end.lines()) == 2
    assert all(re.fullmatch(f"{calls} {calls} LaunchError 0 2.0", line) for line in end.lines())
    assert "Abort" not in end.err


def test_a_forked_child_that_ends_does_not_end_the_job(job: RunJob) -> None:
    """The child inherits the handlers that end a job at exit; they must know that it is no rank."""
    end = job(
        """
        dist.all_reduce(np.ones(1), async_op=True).wait()  # whatever helper there is has started
        pid = os.fork()
        if pid == 0:
            raise RuntimeError("only the child")
        _, status = os.waitpid(pid, 0)
        x = np.ones(1)
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        say(f"{os.waitstatus_to_exitcode(status)} {x[0]}")
        """
    )
    assert (end.code, end.lines()) == (0, ["1 4.0"] * 2)


def test_a_forked_child_that_forks_keeps_its_files(job: RunJob) -> None:
    """What the first fork has closed is not closed again: the numbers are those of the child's own files by then."""
    end = job(
        """
        pid = os.fork()
        if pid == 0:
            files = [open(os.devnull, "w") for _ in range(8)]
            signal.set_wakeup_fd(files[0].fileno() if os.set_blocking(files[0].fileno(), False) is None else -1)
            pid = os.fork()
            if pid == 0:
                for file in files:
                    os.fstat(file.fileno())
                os._exit(7 if signal.set_wakeup_fd(-1) == files[0].fileno() else 8)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        say(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        dist.barrier()
        """
    )
    assert (end.code, end.lines()) == (0, ["7"] * 2), end


@pytest.mark.parametrize("torch", [False, True])
def test_a_forked_child_cannot_start_again(job: RunJob, torch: bool) -> None:
    """A child of os.fork, which multiprocessing does not know of, would take part in its parent's traffic."""
    if torch:
        pytest.importorskip("torch")
    end = job(
        f"""
        if {torch}:
            import torch.distributed as td
        if rank == 0:
            pid = os.fork()
            if pid == 0:
                calls = [dist.init_process_group, lambda: dist.all_reduce(np.ones(1))]
                if {torch}:
                    calls += [lambda: td.barrier(), lambda: td.destroy_process_group()]
                for call in calls:
                    try:
                        call()
                    except dist.LaunchError as error:
                        say(str("forked from a rank" in str(error)))
                os._exit(0)
            os.waitpid(pid, 0)
        x = np.ones(1)
        dist.all_reduce(x)
        say(f"{{x[0]}}")
        """
    )
    assert (end.code, end.lines()) == (0, ["2.0"] * 2 + ["True"] * (4 if torch else 2)), end


def test_a_subprocess_can_be_started(job: RunJob) -> None:
    end = job(
        """
        import subprocess
        line = [sys.executable, "-c", "import mpicoll, sys; print('mpi4py.MPI' in sys.modules)"]
        say(subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip())
        x = np.ones(1)
        dist.all_reduce(x)
        """
    )
    assert (end.code, end.lines(), end.err) == (0, ["False"] * 2, "")


def test_data_loader_workers_beside_an_all_reduce_per_batch(job: RunJob) -> None:
    pytest.importorskip("torch")
    end = job(
        """
        import torch
        from torch.utils.data import DataLoader
        total = torch.zeros(())
        loader = DataLoader(torch.arange(100.0), batch_size=10, num_workers=2, multiprocessing_context="fork")
        for batch in loader:
            part = batch.sum()
            dist.all_reduce(part)
            total += part
        say(str(total.item()))
        """
    )
    assert (end.code, end.lines()) == (0, ["9900.0"] * 2)
