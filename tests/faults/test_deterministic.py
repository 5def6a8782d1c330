"""With MPICOLL_DETERMINISTIC=1 a reduction's bits are those of adding in rank order, whatever the size and the MPI."""

import pytest

from .jobs import RunJob

RANK_ORDER = """
OP = dist.ReduceOp

def value(r, n, dtype=np.float32):
    generator = np.random.default_rng(1000 * r + n)
    return (generator.standard_normal(n) * 10.0 ** generator.integers(-3, 4, n)).astype(dtype)

def in_order(n, dtype=np.float32, compute=None):
    total = value(0, n, dtype).astype(compute or dtype)
    for r in range(1, size):
        total = total + value(r, n, dtype).astype(compute or dtype)
    return total

def check(name, got, want):
    if got.tobytes() != want.tobytes():
        say(f"WRONG {name} on {rank}: {np.count_nonzero(got != want)} of {got.size} differ")

for n in (1, 2, 5, 8, 1000, 4099, 100_003, 1 << 20):
    want = in_order(n)
    x = value(rank, n); dist.all_reduce(x); check(f"all_reduce {n}", x, want)
    x = value(rank, n); dist.reduce(x, size - 1)
    check(f"reduce {n}", x, want if rank == size - 1 else value(rank, n))
    x = value(rank, n); dist.all_reduce(x, async_op=True).wait(); check(f"async {n}", x, want)
    x = value(rank, n); dist.all_reduce(x, op=OP.AVG); check(f"avg {n}", x, want / np.float32(size))
for n in (5, 4099):
    x = value(rank, n, np.float64); dist.all_reduce(x); check(f"float64 {n}", x, in_order(n, np.float64))
    x = value(rank, n, np.float16); dist.all_reduce(x)
    check(f"float16 {n}", x, in_order(n, np.float16, np.float32).astype(np.float16))
    x = value(rank, size * n); out = np.zeros(n, np.float32); dist.reduce_scatter_tensor(out, x)
    check(f"reduce_scatter_tensor {n}", out, in_order(size * n)[rank * n : (rank + 1) * n])
    out = np.zeros(n, np.float32); dist.reduce_scatter(out, list(x.reshape(size, n)))
    check(f"reduce_scatter {n}", out, in_order(size * n)[rank * n : (rank + 1) * n])
    xs = [value(rank, n), value(rank, n + 1)]; dist.all_reduce_coalesced(xs)
    check(f"coalesced {n}", np.concatenate(xs), np.concatenate([in_order(n), in_order(n + 1)]))
say("all compared")
"""


@pytest.mark.parametrize("n", [3, 4])
def test_the_bits_are_those_of_rank_order(job: RunJob, n: int) -> None:
    end = job(RANK_ORDER, n=n, env={"MPICOLL_DETERMINISTIC": "1"})
    assert (end.code, end.lines(), end.err) == (0, ["all compared"] * n, "")


def test_the_bits_do_not_depend_on_the_pieces(job: RunJob) -> None:
    end = job(
        RANK_ORDER.replace("100_003, 1 << 20", "10_007"),
        n=3,
        env={"MPICOLL_DETERMINISTIC": "1", "MPICOLL_MAX_COUNT": "777"},
    )
    assert (end.code, end.lines(), end.err) == (0, ["all compared"] * 3, "")
