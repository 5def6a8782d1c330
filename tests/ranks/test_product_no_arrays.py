"""Objects that are no arrays, and arrays without plain memory: refused in every place, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.ranks.arrays import DLPackOnly
from tests.ranks.wrong import Job, lists, ones, refused

PLACES: dict[str, Callable[[Job, Any], Any]] = {
    "broadcast": lambda j, x: j.dist.broadcast(x, src=0),
    "all_reduce": lambda j, x: j.dist.all_reduce(x),
    "reduce": lambda j, x: j.dist.reduce(x, dst=0),
    "reduce output": lambda j, x: j.dist.reduce(x, dst=j.rank),
    "broadcast output": lambda j, x: j.dist.broadcast(x, src=j.other),
    "all_gather input": lambda j, x: j.dist.all_gather(lists(j.size), x),
    "all_gather output": lambda j, x: j.dist.all_gather([*lists(j.size - 1), x], ones(3)),
    "all_gather_into_tensor input": lambda j, x: j.dist.all_gather_into_tensor(ones(j.size, 3), x),
    "all_gather_into_tensor output": lambda j, x: j.dist.all_gather_into_tensor(x, ones(3)),
    "gather input": lambda j, x: j.dist.gather(x, lists(j.size) if j.rank == 0 else None, dst=0),
    "gather output": lambda j, x: j.dist.gather(ones(3), [*lists(j.size - 1), x], dst=j.rank),
    "scatter output": lambda j, x: j.dist.scatter(x, lists(j.size) if j.rank == 0 else None, src=0),
    "scatter input": lambda j, x: j.dist.scatter(ones(3), [*lists(j.size - 1), x], src=j.rank),
    "reduce_scatter output": lambda j, x: j.dist.reduce_scatter(x, lists(j.size)),
    "reduce_scatter input": lambda j, x: j.dist.reduce_scatter(ones(3), [*lists(j.size - 1), x]),
    "reduce_scatter_tensor": lambda j, x: j.dist.reduce_scatter_tensor(ones(3), x),
    "all_to_all output": lambda j, x: j.dist.all_to_all([*lists(j.size - 1), x], lists(j.size)),
    "all_to_all input": lambda j, x: j.dist.all_to_all(lists(j.size), [*lists(j.size - 1), x]),
    "all_to_all_single": lambda j, x: j.dist.all_to_all_single(ones(3 * j.size), x),
    "all_reduce_coalesced": lambda j, x: j.dist.all_reduce_coalesced([ones(3), x]),
    "send": lambda j, x: j.dist.send(x, dst=j.other),
    "recv": lambda j, x: j.dist.recv(x, src=j.other),
    "isend": lambda j, x: j.dist.isend(x, dst=j.other),
    "irecv": lambda j, x: j.dist.irecv(x, src=j.other),
}
NO_ARRAYS: dict[str, Callable[[], Any]] = {
    "list": lambda: [1.0, 2.0, 3.0],
    "None": lambda: None,
    "float": lambda: 1.5,
    "str": lambda: "abc",
    "bytearray": lambda: bytearray(12),
    "numpy objects": lambda: np.array([{}, None, 3], object),
    "numpy record with an object": lambda: np.zeros(3, [("a", "f4"), ("b", object)]),
}


def at(*places: str) -> pytest.MarkDecorator:
    """Parametrize over places; what has a peer needs one."""
    peers = ("send", "recv", "isend", "irecv", "broadcast output")
    return pytest.mark.parametrize(
        "place", [pytest.param(place, marks=pytest.mark.ranks(min=2) if place in peers else ()) for place in places]
    )


@at(*PLACES)
@pytest.mark.parametrize("name", NO_ARRAYS)
def test_not_an_array(dist: ModuleType, rank: int, size: int, place: str, name: str) -> None:
    kind = "object" if name.startswith("numpy") else type(NO_ARRAYS[name]()).__name__
    refused(dist, rank, size, lambda job: PLACES[place](job, NO_ARRAYS[name]()), (dist.DTypeError,), (kind,))


def odd_tensors() -> dict[str, Any]:
    import torch

    return {
        "sparse": torch.eye(3).to_sparse(),
        "sparse_csr": torch.eye(3).to_sparse_csr(),
        "meta": torch.empty(3, device="meta"),
        "qint8": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    }


@pytest.mark.needs_torch
@pytest.mark.filterwarnings("ignore")
@at("broadcast", "all_reduce", "all_gather input", "all_gather output", "reduce_scatter_tensor", "send", "irecv")
@pytest.mark.parametrize("name", ["sparse", "sparse_csr", "meta", "qint8", "nested"])
def test_tensors_without_plain_memory(dist: ModuleType, rank: int, size: int, place: str, name: str) -> None:
    tensor = odd_tensors()[name]
    refused(dist, rank, size, lambda job: PLACES[place](job, tensor), (dist.DTypeError,), (name,))


def shared_elements() -> dict[str, Any]:
    import torch

    return {
        "expanded": torch.ones(1).expand(3),
        "expanded rows": torch.ones(3).expand(2, 3)[:, :1].expand(2, 3),
        "windows": torch.ones(5).unfold(0, 3, 1),
        "dlpack": DLPackOnly(torch.ones(1).expand(3)),
    }


@pytest.mark.needs_torch
@at(
    "all_reduce",
    "all_gather output",
    "scatter output",
    "reduce_scatter output",
    "reduce output",
    "broadcast output",
    "recv",
)
@pytest.mark.parametrize("name", ["expanded", "expanded rows", "windows", "dlpack"])
def test_torch_outputs_that_share_memory(dist: ModuleType, rank: int, size: int, place: str, name: str) -> None:
    output = shared_elements()[name]
    refused(dist, rank, size, lambda job: PLACES[place](job, output), (dist.ArgumentError,), ())
