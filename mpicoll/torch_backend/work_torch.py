"""A Work that torch takes for one of its own. Imports torch."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed

from mpicoll.torch_backend import versions_torch
from mpicoll.transport.work import Timeout, Work, seconds


class TorchWork(Work, torch.distributed.Work):
    """An operation under way, for either door.

    From C++ torch calls `wait` and `get_future` alone.
    """

    def __init__(self, where: str, outputs: list[Any], ranks: Sequence[int] = (), limit: float | None = None) -> None:
        torch.distributed.Work.__init__(self)
        Work.__init__(self, where, outputs, ranks, limit)

    def wait(self, timeout: Timeout = None) -> bool:
        """Wait, as `Work.wait`. A time-out of zero is torch's way not to give one."""
        return Work.wait(self, None if timeout is None or not seconds(timeout) else timeout)

    def get_future(self) -> Any:
        """A ``torch.futures.Future`` of the outputs."""
        future: Any = torch.futures.Future()
        self.when_done(lambda: self._resolve(future))
        return future

    def get_future_result(self) -> Any:
        """A future that is done when the operation is, with 0 where it went well."""
        future: Any = torch.futures.Future()
        self.when_done(lambda: future.set_result(0 if self._error is None else 2))  # torch's WorkResult
        return future

    def _source_rank(self) -> int:
        """The rank in the group that a message came from: torch makes a global rank of it."""
        self.wait()
        return -1 if self.source is None else self.source


versions_torch.keep_compiler_out(TorchWork)


def joined(where: str, works: Sequence[Work], limit: float) -> TorchWork:
    """A Work that is done when all of some are, with the first error among them."""
    outputs = [output for work in works for output in work.outputs]
    whole = TorchWork(where, outputs, limit=limit)
    left, lock = len(works), threading.Lock()

    def one_is_done() -> None:
        nonlocal left
        with lock:
            left -= 1
            last = not left
        if last:
            whole.finish(next((error for work in works if (error := work.exception()) is not None), None))

    if not works:
        whole.finish()
    for work in works:
        work.when_done(one_is_done, quick=True)
    return whole
