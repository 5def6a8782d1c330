"""Waiting for what one has to look for: at first without a pause, then in ever longer ones."""

from __future__ import annotations

import time
from collections.abc import Callable

_SPINS, _YIELDS = 20, 200  # looks without a pause, and looks after which the pauses grow
_SHORTEST, _LONGEST = 2e-5, 1e-3  # seconds


def wait_until(done: Callable[[], object], limit: float | None) -> bool:
    """Look until `done` is true, for `limit` seconds at most. Returns whether it came to be."""
    deadline = None if limit is None else time.monotonic() + limit
    looks, pause = 0, 0.0
    while not done():
        if deadline is not None and time.monotonic() >= deadline:
            return False
        looks += 1
        if looks > _YIELDS:
            pause = min(max(pause * 1.5, _SHORTEST), _LONGEST)
        if looks > _SPINS:
            time.sleep(pause)  # 0 at first: leave the core to another rank
    return True
