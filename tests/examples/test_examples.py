"""Every example runs under mpirun and prints what its docstring promises."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.faults.jobs import Ended, clean_environment, launch_line, mpirun_path, run_timed

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GRIDS = {1: "1 x 1", 2: "1 x 2", 3: "1 x 3", 4: "2 x 2"}


def run_example(n: int, name: str, *arguments: str) -> Ended:
    """Run an example on `n` ranks."""
    mpirun = mpirun_path()
    line = [*launch_line(mpirun, n), sys.executable, str(EXAMPLES / name), *arguments]
    return run_timed(line, clean_environment(mpirun), limit=300.0)


def found(pattern: str, job: Ended) -> list[str]:
    """Return what the pattern's group matched, line by line."""
    return re.findall(pattern, job.out, re.MULTILINE)


def test_no_example_goes_untested() -> None:
    by_torch = {"ddp.py", "fsdp.py", "tensor_parallel.py", "ddp_unmodified.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"train_digits.py", "tour.py", "heat_numpy.py"} | by_torch


@pytest.mark.needs_torch
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_digits_match_one_process_and_are_recognised(n: int, tmp_path: Path) -> None:
    picture = tmp_path / "new" / "digits.png"
    job = run_example(n, "train_digits.py", "--out", str(picture))
    assert job.code == 0, job
    assert "100%" in job.err, "no progress bar"
    assert found(r"^rank (\d+) \(process \d+\): computing \S+ s, all_reduce \S+ s$", job) == [str(r) for r in range(n)]

    [difference] = found(r"^largest difference from the one-process weights, over all ranks: (\S+)$", job)
    [accuracy] = found(r"^test accuracy (\S+)% on 360 digits$", job)
    assert float(difference) <= 1e-6
    assert float(accuracy) >= 95.0

    assert found(r"^picture: (.+)$", job) == [str(picture)]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000


@pytest.mark.needs_torch
def test_digits_match_one_process_where_the_parts_differ_in_size(tmp_path: Path) -> None:
    # 1,437 digits in batches of 41 leave a last batch of 2: on three ranks the parts are 14, 14, 13, then 1, 1, 0.
    job = run_example(3, "train_digits.py", "--epochs", "8", "--batch", "41", "--out", str(tmp_path / "digits.png"))
    assert job.code == 0, job


@pytest.mark.needs_torch
def test_digits_end_with_1_where_the_training_was_too_short(tmp_path: Path) -> None:
    job = run_example(2, "train_digits.py", "--epochs", "1", "--out", str(tmp_path / "digits.png"))
    assert job.code == 1, job
    assert found(r"^test accuracy (\d)", job), job
    assert "Traceback" not in job.err, job


@pytest.mark.needs_torch
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_tour_uses_every_function_on_both_kinds_of_array(n: int) -> None:
    job = run_example(n, "tour.py")
    assert (job.code, job.err) == (0, ""), job
    assert found(r"^  functions that the tour forgot +(.*)$", job) == ["[]"]
    assert found(r"^  all_reduce  +(\[\d.*)$", job) == [str([n * (n + 1) // 2, n])] * 2
    ring = "  ".join(f"{rank}: [{(rank - 1) % n}]" for rank in range(n))
    assert found(r"^  isend, irecv round a ring +(.*)$", job) == ([ring] * 2 if n > 1 else [])


@pytest.mark.parametrize("options", [[], ["--rows", "7", "--columns", "5", "--steps", "40"]], ids=["default", "uneven"])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_heat_equals_one_process(n: int, options: list[str]) -> None:
    job = run_example(n, "heat_numpy.py", *options)
    assert (job.code, job.err) == (0, ""), job
    assert found(r"points on a (.+) grid of ranks", job) == [GRIDS[n]]
    assert found(r"^largest difference from the one-process solution: (\S+)$", job) == ["0.0e+00"]


def by_torch(n: int, name: str) -> Ended:
    """Run an example of torch's own parallelism; check what all three of them print."""
    job = run_example(n, name)
    assert job.code == 0, job
    [first, last] = re.findall(rf"^{n} ranks: loss (\S+) at first, (\S+) after 60 steps$", job.out, re.MULTILINE)[0]
    assert float(last) < 0.1 * float(first), "it has learnt nothing"
    [difference] = found(r"^largest difference from the one-process weights, over all ranks: (\S+)$", job)
    assert float(difference) <= 1e-5
    return job


@pytest.mark.needs_torch
@pytest.mark.parametrize("n", [2, 4])
def test_ddp_matches_one_process(n: int) -> None:
    by_torch(n, "ddp.py")


@pytest.mark.needs_torch
@pytest.mark.parametrize(("n", "held"), [(2, "[1122, 1122]"), (4, "[561, 561, 561, 561]")])
def test_fsdp_matches_one_process_and_cuts_the_weights(n: int, held: str) -> None:
    assert found(r"^weights on each rank: (.+)$", by_torch(n, "fsdp.py")) == [held]


@pytest.mark.needs_torch
@pytest.mark.parametrize(("n", "units"), [(2, "[32, 32]"), (4, "[16, 16, 16, 16]")])
def test_tensor_parallel_matches_one_process_and_cuts_the_layers(n: int, units: str) -> None:
    assert found(r"^inner units on each rank: (.+)$", by_torch(n, "tensor_parallel.py")) == [units]


@pytest.mark.needs_torch
def test_unmodified_ddp_has_the_losses_of_torchrun_and_gloo() -> None:
    mpirun, script = mpirun_path(), str(EXAMPLES / "ddp_unmodified.py")
    run = [*launch_line(mpirun, 4), sys.executable, "-m", "mpicoll", "run"]
    lines = {
        "one process": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"],
        "mpirun, gloo": run,
        "mpirun, mpicoll": [*run, "--backend", "mpicoll"],
    }
    losses = {}
    for name, line in lines.items():
        job = run_timed([*line, script], clean_environment(mpirun), limit=120.0)
        assert job.code == 0, job
        losses[name] = [float(loss) for loss in found(r"^step \d+: loss (\d\.\d{6})$", job)]
        assert len(losses[name]) == 10
        assert losses[name] == pytest.approx(losses["one process"], abs=2e-6)
    assert losses["torchrun"][-1] < 0.1 * losses["torchrun"][0], "it has learnt nothing"
