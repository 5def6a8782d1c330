"""Which rank ends up with what: every function takes all ranks' parts and gives all ranks' results.

``None`` in a result says that this rank's tensor is not written. Ranks are ranks in the group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .dtypes import DType, Raw
from .reduction import reduced

Parts = Sequence[Raw]
Lists = Sequence[Sequence[Raw]]


def broadcast(parts: Parts, root: int) -> list[Raw]:
    """Everybody has the root's."""
    return [parts[root] for _ in parts]


def all_reduce(parts: Parts, dtype: DType, op: str) -> list[Raw]:
    """Everybody has the reduction."""
    total = reduced(parts, dtype, op)
    return [total for _ in parts]


def reduce(parts: Parts, root: int, dtype: DType, op: str) -> list[Raw | None]:
    """The root has the reduction; the others keep what they had."""
    return [reduced(parts, dtype, op) if r == root else None for r in range(len(parts))]


def all_gather(parts: Parts) -> list[list[Raw]]:
    """Everybody has everybody's, in rank order."""
    return [list(parts) for _ in parts]


def gather(parts: Parts, root: int) -> list[list[Raw] | None]:
    """The root has everybody's."""
    return [list(parts) if r == root else None for r in range(len(parts))]


def scatter(parts: Parts) -> list[Raw]:
    """Rank r has the r-th entry of the root's list, which ``parts`` is."""
    return list(parts)


def reduce_scatter(lists: Lists, dtype: DType, op: str) -> list[Raw]:
    """Rank r has the reduction of everybody's r-th entry."""
    return [reduced([entries[r] for entries in lists], dtype, op) for r in range(len(lists))]


def all_to_all(lists: Lists) -> list[list[Raw]]:
    """Entry j of rank r is entry r of rank j."""
    return [[entries[r] for entries in lists] for r in range(len(lists))]


def joined(parts: Parts, shape: tuple[int, ...]) -> Raw:
    """Lay parts behind each other in row-major order: what the ``_into_tensor`` and ``_single`` forms hold."""
    flat: Raw = np.concatenate([part.reshape(-1) for part in parts])
    return flat.reshape(shape)
