"""A rank that comes to the end of its program in good order, while others wait for it.

At the end of MPI a rank waits for the others. If they do not come within a second, it tells them that it leaves, and
how many operations it has taken part in. A rank that is in a later one, or waits for a message of a rank that has left,
would wait for ever: it says so and ends the job. It learns of it by a thread, for the main one sits in MPI.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from mpicoll.groups import world
from mpicoll.mpi import library
from mpicoll.transport import channel as channels
from mpicoll.transport.channel import LEAVES, Channel
from mpicoll.transport.messages import Message, waits
from mpicoll.transport.polling import wait_until
from mpicoll.transport.work import Work

if TYPE_CHECKING:
    from mpicoll.groups.group import ProcessGroup
    from mpicoll.groups.world import World

# Seconds after which a rank that waits for the others to end tells them that it leaves.
_LATE = 1.0
# Seconds that a wait for a rank which has left must go on before it counts: what was sent may be on its way.
_GRACE = 1.0


@dataclass(frozen=True)
class _Account:
    """What a rank that leaves tells the others, for each of its groups by its key.

    Attributes:
        operations: How many operations of all ranks it has taken part in.
        receives: Whether it still has a receive posted.
    """

    operations: dict[tuple[int, int], int]
    receives: dict[tuple[int, int], bool]


class _Departures:
    """Who has left a world, and who waits for them."""

    def __init__(self, here: World, channel: Channel) -> None:
        self._here = here
        self._channel = channel
        self._left: dict[int, _Account] = {}  # by global rank
        self._since: dict[object, float] = {}  # when each wait for ranks that have left was first seen
        channel.handle(LEAVES, self._note)
        channel.watch = self._look

    def tell(self) -> None:
        """Tell the others that this rank leaves."""
        open_world = world.existing() is self._here
        groups = list(self._here.groups.values()) if open_world else []
        account = _Account(
            {group.key: group.engine.total() for group in groups},
            {group.key: any(not message.sends for message in _messages(group)) for group in groups},
        )
        for rank in range(self._channel.size):
            if rank != self._channel.rank:
                self._channel.send(rank, LEAVES, account)

    def has_messages(self) -> bool:
        """Whether this rank has messages under way, for which it does not leave."""
        progress = self._here.context.progress
        progress.last = progress.messages()
        return bool(progress.last)

    def _note(self, rank: int, account: _Account) -> None:
        self._left[rank] = account

    def _look(self) -> None:
        if not self._left or world.existing() is not self._here:
            return
        found: dict[object, set[int]] = {}
        for group in list(self._here.groups.values()):
            number = group.engine.under_way()
            missing = {rank for rank in self._left if rank in group.ranks and number > self._operations(rank, group)}
            if number and missing:
                found[group.key, number] = missing
            for message in {*waits, *self._here.context.progress.last}:
                if message.mailbox is group.mailbox and (others := self._gone(message, group)):
                    found[message] = others
        now = time.monotonic()
        self._since = {wait: self._since.get(wait, now) for wait in found}
        for wait, since in self._since.items():
            if now - since > _GRACE:
                self._end(wait, found[wait])

    def _operations(self, rank: int, group: ProcessGroup) -> int:
        return self._left[rank].operations.get(group.key, 0)  # 0: it has destroyed the group

    def _gone(self, message: Message, group: ProcessGroup) -> set[int]:
        """The ranks that a message waits for, if all of those that it could come from or go to have left."""
        others = set(group.ranks) - {self._channel.rank} if message.rank is None else {group.ranks[message.rank]}
        if not others <= self._left.keys():
            return set()
        if message.sends and any(self._left[rank].receives.get(group.key) for rank in others):
            return set()
        return others

    def _end(self, wait: object, missing: set[int]) -> None:
        who = f"mpicoll: rank {self._channel.rank} of {self._channel.size}"
        if isinstance(wait, Message) and not wait.sends and wait not in waits:
            print(f"{who} leaves with a receive that {_ranks(missing)} sent nothing for", file=sys.stderr, flush=True)
            self._here.context.progress.give_up(wait)
            return
        text = f"{who} waits for {_ranks(missing)} in {_place()}, but {_has(missing)} come to the end of the program"
        print(f"{text}; ending the job", file=sys.stderr, flush=True)
        library.abort(1)


_departures: dict[Channel, _Departures] = {}


def watch(here: World) -> None:
    """Look out for ranks of a world that leave it, where there is a thread to do so."""
    if here.channel is not None:
        _departures[here.channel] = _Departures(here, here.channel)


def _leave() -> None:
    """Wait until all ranks have come to their end, and tell those that have not that this one has."""
    for channel in channels.opened():
        _wait_for_others(channel, _departures[channel])
        channel.end()


def _wait_for_others(channel: Channel, departures: _Departures) -> None:
    late = time.monotonic() + _LATE
    told = False
    all_are_here = None

    def together() -> bool:
        nonlocal told, all_are_here
        if all_are_here is None and not departures.has_messages():
            all_are_here = channel.start_barrier()
        if not told and time.monotonic() > late:
            told = True
            departures.tell()
        return all_are_here is not None and all_are_here()

    wait_until(together, None)


world.leave = _leave


def _messages(group: ProcessGroup) -> list[Message]:
    return group.engine.progress.messages(group.engine)


def _place() -> str:
    """What the main thread, or else another one, does with mpicoll, and where it was called."""
    frames = sys._current_frames()
    main = threading.main_thread().ident
    for thread in sorted(frames, key=lambda thread: thread != main):
        frame: FrameType | None = frames[thread]
        while frame is not None and not (_is_entry(frame) and frame.f_back and not _is_entry(frame.f_back)):
            frame = frame.f_back
        if frame is not None and frame.f_back is not None:
            work = frame.f_locals.get("self")
            name = f"wait() of {work.where}" if isinstance(work, Work) else frame.f_locals.get("name", "?") + "()"
            return f"{name} ({frame.f_back.f_code.co_filename}, line {frame.f_back.f_lineno})"
    return "what is under way"


def _is_entry(frame: FrameType) -> bool:
    """Whether the frame is of the code that the user calls."""
    module: str = frame.f_globals.get("__name__", "")
    return module.startswith(("mpicoll.api.", "mpicoll.torch_backend.", "mpicoll.transport.work"))


def _ranks(ranks: set[int]) -> str:
    listed = ", ".join(map(str, sorted(ranks)))
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"


def _has(ranks: set[int]) -> str:
    return "it has" if len(ranks) == 1 else "they have"
