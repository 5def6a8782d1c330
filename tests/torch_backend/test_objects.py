"""Objects of any kind, by torch's own pickling over the backend's tensors.

`recv_object_list` without a source is left out: torch itself refuses it, before any backend is asked.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist


def thing(rank: int) -> dict[str, Any]:
    """Return one rank's object; their pickles differ in size."""
    return {"rank": rank, "text": "x" * (100 * rank + 1), "tensor": torch.arange(rank + 1)}


def equal(one: Any, other: dict[str, Any]) -> bool:
    return (one["rank"], one["text"], one["tensor"].tolist()) == (
        other["rank"],
        other["text"],
        other["tensor"].tolist(),
    )


def test_all_gather_object(rank: int, size: int) -> None:
    got: list[Any] = [None] * size
    dist.all_gather_object(got, thing(rank))
    assert all(equal(one, thing(other)) for other, one in enumerate(got))


def test_gather_object(rank: int, size: int) -> None:
    target = size - 1
    got: list[Any] | None = [None] * size if rank == target else None
    dist.gather_object(thing(rank), got, dst=target)
    if got is not None:
        assert all(equal(one, thing(other)) for other, one in enumerate(got))


def test_broadcast_object_list(rank: int, size: int) -> None:
    source = size - 1
    got: list[Any] = [thing(source), "second", None] if rank == source else [None, None, 3]
    dist.broadcast_object_list(got, src=source)
    assert equal(got[0], thing(source))
    assert got[1:] == ["second", None]


def test_scatter_object_list(rank: int, size: int) -> None:
    source = size - 1
    got: list[Any] = [None]
    dist.scatter_object_list(got, [thing(other) for other in range(size)] if rank == source else None, src=source)
    assert equal(got[0], thing(rank))


@pytest.mark.ranks(min=2)
def test_send_object_list(rank: int) -> None:
    if rank == 0:
        dist.send_object_list([thing(5), "second"], dst=1)
    elif rank == 1:
        got: list[Any] = [None, None]
        assert dist.recv_object_list(got, src=0) == 0
        assert equal(got[0], thing(5))
        assert got[1] == "second"
