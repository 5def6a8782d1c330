"""A barrier with a clock, which names the ranks that have not come."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

import numpy as np

from mpicoll.errors import CollectiveTimeoutError, mismatch
from mpicoll.mpi import library
from mpicoll.transport.polling import wait_until

if TYPE_CHECKING:
    from mpicoll.groups.group import ProcessGroup

# A message: what it says, and the sender's number of the barrier.
_MESSAGE = struct.Struct("<iq")
_HERE, _GONE, _ALL_CAME, _SOME_DID_NOT = range(4)


def monitored_barrier(group: ProcessGroup, timeout: float, wait_all_ranks: bool) -> None:
    """What `mpicoll.monitored_barrier` does, with a time-out in seconds.

    Every rank tells rank 0 that it is here and waits for the answer. One that gives up tells that too: where rank 0
    finds both messages as it comes, they are of a barrier that it was not in. Messages carry a number that their sender
    never gives twice, so that a late one is not taken for another barrier: of this group, or of one made after this
    one has been freed, to which MPI may give what was left behind.
    """
    with group.engine.beside():
        if group.rank() == 0:
            _count_the_others(group, timeout, wait_all_ranks)
        else:
            _report_to_rank_0(group, timeout)


def _count_the_others(group: ProcessGroup, timeout: float, wait_all_ranks: bool) -> None:
    if timeout <= 0:
        raise CollectiveTimeoutError(f"Rank 0 timed out in monitoredBarrier after {timeout:g} s")
    waiting: dict[int, int] = {}  # the number that each gave its barrier
    gave_up: set[int] = set()

    def all_wait() -> bool:
        while (message := _next_message(group, None)) is not None:
            rank, said, number = message
            if said == _HERE:
                waiting[rank] = number
            elif waiting.get(rank) == number:
                del waiting[rank]
                gave_up.add(rank)
        return len(waiting) == group.size() - 1

    all_wait()
    gave_up.clear()  # before this rank came
    passed = wait_until(all_wait, timeout)
    for rank, number in waiting.items():
        _send(group, rank, _ALL_CAME if passed else _SOME_DID_NOT, number)
    if passed:
        return
    missing = [rank for rank in range(1, group.size()) if rank not in waiting]
    # One that came and gave up, having come before this rank, is not the one to look for.
    missing = [rank for rank in missing if rank not in gave_up] or missing
    who = f"Ranks {', '.join(map(str, missing))}" if wait_all_ranks else f"Rank {missing[0]}"
    raise CollectiveTimeoutError(
        mismatch(
            f"{who} failed to pass monitoredBarrier",
            f"all ranks within {timeout:g} s",
            f"{group.size() - len(missing)} of {group.size()}",
            "Look at what those ranks do instead",
        )
    )


def _report_to_rank_0(group: ProcessGroup, timeout: float) -> None:
    number = time.monotonic_ns()
    _send(group, 0, _HERE, number)
    answer = -1

    def answered() -> bool:
        nonlocal answer
        while (message := _next_message(group, 0)) is not None:
            if message[2] == number:
                answer = message[1]
        return answer != -1

    if not wait_until(answered, timeout):
        _send(group, 0, _GONE, number)
    if answer != _ALL_CAME:
        reason = "which tells which ranks did not come" if answer == _SOME_DID_NOT else "which did not answer in time"
        raise CollectiveTimeoutError(
            f"Rank {group.rank()} successfully reached monitoredBarrier, but received errors while waiting for"
            f" send/recv from rank 0: expected all ranks within {timeout:g} s. Look at the text of rank 0, {reason}"
        )


def _send(group: ProcessGroup, rank: int, says: int, number: int) -> None:
    message = np.frombuffer(_MESSAGE.pack(says, number), np.uint8)
    # Sixteen bytes are gone at once, whether the other side has come or not.
    group.engine.progress.call(lambda: group.private.Send(message, rank, group.mailbox.tags.monitor))


def _next_message(group: ProcessGroup, rank: int | None) -> tuple[int, int, int] | None:
    """A message that has come: its sender, what it says and the number; None where none has."""

    def look() -> tuple[int, int, int] | None:
        status = library.MPI.Status()
        source = library.MPI.ANY_SOURCE if rank is None else rank
        found = group.private.Improbe(source, group.mailbox.tags.monitor, status)
        if found is None:
            return None
        message = np.empty(_MESSAGE.size, np.uint8)
        found.Recv(message)
        says, number = _MESSAGE.unpack(message.tobytes())
        return status.Get_source(), says, number

    answer: tuple[int, int, int] | None = group.engine.progress.call(look)
    return answer
