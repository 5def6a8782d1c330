"""Messages: sources, tags, order, shapes and dtypes, batches, and what is refused."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.ranks(min=2)


def exchange(dist: ModuleType, rank: int, size: int, mine: Any, got: Any, **kwargs: Any) -> None:
    """Send to the right and receive from the left."""
    work = dist.isend(mine, (rank + 1) % size, **kwargs)
    dist.recv(got, (rank - 1) % size, **kwargs)
    work.wait()


def test_send_returns_none_and_recv_the_source(dist: ModuleType, rank: int) -> None:
    x = np.arange(3.0) if rank == 0 else np.zeros(3)
    if rank == 0:
        assert dist.send(x, 1) is None
    elif rank == 1:
        assert dist.recv(x, 0) == 0
        assert x.tolist() == [0, 1, 2]


def test_round_the_ring(dist: ModuleType, rank: int, size: int) -> None:
    left, right = (rank - 1) % size, (rank + 1) % size
    got = np.zeros(1000)
    receive = dist.irecv(got, left)
    send = dist.isend(np.full(1000, float(rank)), right)
    assert receive.wait()
    assert send.wait()
    assert receive.source_rank() == left
    assert set(got.tolist()) == {float(left)}


def test_messages_of_one_tag_keep_their_order(dist: ModuleType, rank: int) -> None:
    sizes = [1, 100_000, 3, 50_000, 0, 7]  # above and below what MPI sends at once
    if rank == 0:
        works = [dist.isend(np.full(n, float(i)), 1) for i, n in enumerate(sizes)]
        for work in works:
            work.wait()
    elif rank == 1:
        got = [np.full(n, -1.0) for n in sizes]
        works = [dist.irecv(x, 0) for x in got]
        for work in reversed(works):
            work.wait()
        assert [set(x.tolist()) for x in got] == [{float(i)} if n else set() for i, n in enumerate(sizes)]


@pytest.mark.parametrize("n", [4, 100_000])
def test_tags_choose_the_message(dist: ModuleType, rank: int, n: int) -> None:
    if rank == 0:
        works = [dist.isend(np.full(n, float(tag)), 1, tag=tag) for tag in (1, 2, 30_000)]
        for work in works:
            work.wait()
    elif rank == 1:
        got = {tag: np.zeros(n) for tag in (30_000, 1, 2)}
        for tag, x in got.items():
            dist.recv(x, 0, tag=tag)
        assert all(set(x.tolist()) == {float(tag)} for tag, x in got.items())


def test_a_hundred_messages_before_the_first_receive(dist: ModuleType, rank: int, size: int) -> None:
    left, right = (rank - 1) % size, (rank + 1) % size
    sends = [dist.isend(np.full(10, 100.0 * rank + i), right) for i in range(100)]
    got = [np.zeros(10) for _ in range(100)]
    for x in got:
        dist.recv(x, left)
    for work in sends:
        work.wait()
    assert [x[0] for x in got] == [100.0 * left + i for i in range(100)]


def test_from_anybody(dist: ModuleType, rank: int, size: int) -> None:
    if rank == 0:
        got: dict[int, list[float]] = {}
        for _ in range(size - 1):
            x = np.zeros(2)
            source = dist.recv(x)
            got[source] = x.tolist()
        work = dist.irecv(x, tag=5)
        work.wait()
        dist.barrier()
        assert got == {r: [float(r)] * 2 for r in range(1, size)}
        assert (work.source_rank(), x.tolist()) == (size - 1, [9.0, 9.0])
    else:
        dist.send(np.full(2, float(rank)), 0)
        if rank == size - 1:
            dist.send(np.full(2, 9.0), 0, tag=5)
        dist.barrier()


@pytest.mark.ranks(min=3)
def test_ranks_in_a_group_and_in_the_world(dist: ModuleType, rank: int, size: int) -> None:
    last = size - 1
    group = dist.new_group([1, last])
    x = np.zeros(1)
    if rank == 1:
        dist.send(np.array([1.0]), dst=last, group=group)
        dist.send(np.array([2.0]), group_dst=1, group=group)
        dist.isend(np.array([3.0]), group_dst=1, group=group).wait()
    elif rank == last:
        sources = []
        values = []
        for where in ({"src": 1}, {"group_src": 0}, {}):
            sources.append(dist.recv(x, group=group, **where))
            values.append(x.item())
        assert (sources, values) == ([1, 1, 1], [1.0, 2.0, 3.0])
    dist.destroy_process_group(group)


def test_groups_are_separate_channels(dist: ModuleType, rank: int) -> None:
    group = dist.new_group([0, 1])
    if rank == 0:
        works = [dist.isend(np.array([1.0]), 1), dist.isend(np.array([2.0]), 1, group=group)]
        for work in works:
            work.wait()
    elif rank == 1:
        x, y = np.zeros(1), np.zeros(1)
        dist.recv(x, 0, group=group)
        dist.recv(y, 0)
        assert (x.item(), y.item()) == (2.0, 1.0)
    dist.destroy_process_group(group)


@pytest.mark.parametrize("shape", [(), (0,), (1, 0, 2), (1,), (3, 4, 5)], ids=str)
@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f8", "c16", "M8[s]", "S5", "i4,f8"])
def test_shapes_and_dtypes(dist: ModuleType, rank: int, size: int, shape: tuple[int, ...], dtype: str) -> None:
    def made(r: int) -> Any:
        return (np.arange(np.prod(shape, dtype=int)) + r).reshape(shape).astype(dtype)

    got = np.zeros_like(made(0))
    exchange(dist, rank, size, made(rank), got)
    assert got.tobytes() == made((rank - 1) % size).tobytes()


def test_strides_on_either_side(dist: ModuleType, rank: int, size: int) -> None:
    left = (rank - 1) % size
    mine = (np.arange(24.0) + 100 * rank).reshape(4, 6)
    wide = np.full((6, 8), -1.0)
    exchange(dist, rank, size, mine.T, wide[:, 1::2])
    assert np.array_equal(wide[:, 1::2], (np.arange(24.0) + 100 * left).reshape(4, 6).T)
    assert set(wide[:, ::2].ravel().tolist()) == {-1.0}


def test_the_same_elements_in_another_shape_fit(dist: ModuleType, rank: int, size: int) -> None:
    got = np.zeros((2, 3))
    exchange(dist, rank, size, np.arange(6.0), got)
    assert got.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("sent", "buffer", "values"),
    [
        (np.zeros(3, "f4"), np.ones(3, "i4"), ("float32", "int32")),
        (np.zeros(3, "f8"), np.ones(6, "f4"), ("float64", "float32")),
        (np.zeros(3, "f4"), np.ones(2, "f4"), ("3", "2")),
        (np.zeros(2, "f4"), np.ones(3, "f4"), ("2", "3")),
        (np.zeros(0, "f4"), np.ones(3, "f4"), ("0", "3")),
        (np.zeros(100_000, "f4"), np.ones(3, "f4"), ("100000", "3")),
    ],
    ids=["dtype", "dtype_of_equal_bytes", "longer", "shorter", "empty", "much_longer"],
)
@pytest.mark.parametrize("blocking", [True, False])
def test_a_message_that_does_not_fit_is_an_error_with_both_values(
    dist: ModuleType, rank: int, sent: Any, buffer: Any, values: tuple[str, str], blocking: bool
) -> None:
    buffer = buffer.copy()
    if rank == 0:
        dist.send(sent, 1)
        dist.send(np.array([7.0]), 1)
    elif rank == 1:
        if blocking:
            with pytest.raises(dist.MessageError, match=r"^recv\(") as caught:
                dist.recv(buffer, 0)
            error = caught.value
        else:
            work = dist.irecv(buffer, 0)
            for _ in range(2):  # it raises each time
                with pytest.raises(dist.MessageError, match=r"^irecv\(") as caught:
                    work.wait()
            error = caught.value
            assert work.is_completed()
            assert not work.is_success()
            assert work.exception() is error
        after = np.zeros(1)
        dist.recv(after, 0)  # the channel is still good
        assert all(value in str(error) for value in values)
        assert set(buffer.tolist()) == {1}
        assert after.item() == 7.0


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", ["?", "f2", "i8", "c8"])
def test_recv_tensor_learns_shape_and_dtype(dist: ModuleType, rank: int, shape: tuple[int, ...], dtype: str) -> None:
    sent = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    if rank == 0:
        dist.send(sent, 1)
        dist.isend(sent.T, 1, tag=4).wait()
    elif rank == 1:
        got, turned = dist.recv_tensor(0), dist.recv_tensor(tag=4)
        assert type(got) is np.ndarray
        assert (got.shape, got.dtype, got.tobytes()) == (sent.shape, sent.dtype, sent.tobytes())
        assert (turned.shape, turned.tolist()) == (sent.T.shape, sent.T.tolist())
        assert got.flags.writeable


@pytest.mark.needs_torch
def test_recv_tensor_gives_a_tensor_where_one_was_sent(dist: ModuleType, rank: int) -> None:
    import torch

    if rank == 0:
        dist.send(torch.arange(6).reshape(2, 3).to(torch.bfloat16).t(), 1)
    elif rank == 1:
        got = dist.recv_tensor(0)
        assert isinstance(got, torch.Tensor)
        assert (got.dtype, got.tolist()) == (torch.bfloat16, [[0, 3], [1, 4], [2, 5]])


@pytest.mark.needs_torch
def test_numpy_and_torch_understand_each_other(dist: ModuleType, rank: int) -> None:
    import torch

    if rank == 0:
        x = torch.arange(3, dtype=torch.int16)
        dist.send(x, 1)
        dist.recv(x, 1)
        assert x.tolist() == [10, 11, 12]
    elif rank == 1:
        y = np.zeros(3, np.int16)
        dist.recv(y, 0)
        dist.send(y + np.int16(10), 0)
        assert y.tolist() == [0, 1, 2]


# Batches


def test_a_batch_round_the_ring(dist: ModuleType, rank: int, size: int) -> None:
    left, right = (rank - 1) % size, (rank + 1) % size
    mine, got = np.full(50_000, float(rank)), np.zeros(50_000)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, got, left)])
    for work in works:
        work.wait()
    assert set(got.tolist()) == {float(left)}


def test_a_batch_both_ways_with_tags_and_a_group(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group()
    left, right = (rank - 1) % size, (rank + 1) % size
    from_left, from_right = np.zeros(3), np.zeros(3)
    operations = [
        dist.P2POp(dist.irecv, from_left, left, group, 1),
        dist.P2POp(dist.irecv, from_right, group=group, tag=2, group_peer=right),
        dist.P2POp(dist.isend, np.full(3, rank + 0.25), left, group=group, tag=2),
        dist.P2POp(dist.isend, np.full(3, rank + 0.5), right, group=group, tag=1),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert from_left.tolist() == [left + 0.5] * 3
    assert from_right.tolist() == [right + 0.25] * 3
    dist.destroy_process_group(group)


@pytest.mark.parametrize("wrong", [[], None, [1, 2], "ops"], ids=str)
def test_what_is_no_batch_is_refused(dist: ModuleType, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^batch_isend_irecv\("):
        dist.batch_isend_irecv(wrong)


def test_only_isend_and_irecv_make_a_batch(dist: ModuleType, rank: int) -> None:
    for wrong in (dist.send, dist.all_reduce, "isend"):
        with pytest.raises(ValueError, match=r"isend.*irecv"):
            dist.P2POp(wrong, np.ones(1), 1 - rank if rank < 2 else 0)


# What is refused, on this rank, before anything is sent


@pytest.mark.parametrize("name", ["send", "isend", "recv", "irecv"])
def test_wrong_peers_are_refused(dist: ModuleType, rank: int, size: int, name: str) -> None:
    call = getattr(dist, name)
    side = "dst" if "send" in name else "src"
    other = (rank + 1) % size
    wrong: list[dict[str, int]] = [
        {side: size},
        {side: -1},
        {f"group_{side}": size},
        {side: other, f"group_{side}": other},
        {side: other, "tag": -1},
    ]
    if side == "dst":
        wrong.append({})
    for arguments in wrong:
        with pytest.raises(dist.ArgumentError, match=rf"^{name}\(group=.*rank {rank} of {size}\)"):
            call(np.ones(2), **arguments)


@pytest.mark.parametrize(
    "what",
    [[1.0, 2.0], 3, None, "text", np.array([object()])],
    ids=["list", "number", "none", "text", "array_of_objects"],
)
@pytest.mark.parametrize("name", ["send", "isend", "recv", "irecv"])
def test_what_is_no_array_is_refused(dist: ModuleType, rank: int, size: int, name: str, what: Any) -> None:
    with pytest.raises(dist.DTypeError, match=rf"^{name}\("):
        getattr(dist, name)(what, (rank + 1) % size)


@pytest.mark.parametrize("name", ["recv", "irecv"])
def test_what_can_not_be_written_is_refused(dist: ModuleType, rank: int, size: int, name: str) -> None:
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    overlapping = np.lib.stride_tricks.as_strided(np.zeros(3), (2, 2), (8, 8))
    for buffer in (read_only, overlapping):
        with pytest.raises(ValueError, match=rf"^{name}\("):
            getattr(dist, name)(buffer, (rank + 1) % size)


def test_what_can_not_be_written_can_be_sent(dist: ModuleType, rank: int, size: int) -> None:
    read_only = np.full(3, float(rank))
    read_only.flags.writeable = False
    got = np.zeros(3)
    exchange(dist, rank, size, read_only, got)
    assert got.tolist() == [(rank - 1.0) % size] * 3
