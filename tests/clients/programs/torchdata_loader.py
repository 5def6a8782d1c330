"""torchdata's StatefulDataLoader with worker processes beside MPI; stopped, and gone on with from its state."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.utils.data import DistributedSampler
from torchdata.nodes import Batcher, Loader, ParallelMapper, SamplerWrapper
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.clients.programs.start import SIZE, WAY, tell

rank = 0
if WAY == "mpicoll":
    import mpicoll

    mpicoll.init_process_group()
    rank = mpicoll.get_rank()

LENGTH, BATCH = 48, 8


def square(item: Any) -> int:
    return int(item) ** 2


def everybodys(batch: Any) -> list[int]:
    """Return the items of all ranks, in order."""
    items = [int(item) for item in batch]
    if SIZE == 1:
        return sorted(items)
    parts: list[list[int]] = [[] for _ in range(SIZE)]
    dist.all_gather_object(parts, items)
    return sorted(item for part in parts for item in part)


def sampler() -> DistributedSampler[int]:
    return DistributedSampler(range(LENGTH), SIZE, rank, shuffle=True, seed=3)  # type: ignore[arg-type]


def stateful() -> Any:
    squares = [square(item) for item in range(LENGTH)]
    return StatefulDataLoader(squares, batch_size=BATCH // SIZE, sampler=sampler(), num_workers=2)


def nodes() -> Any:
    squares = ParallelMapper(SamplerWrapper(sampler()), square, num_workers=2, method="process")
    return Loader(Batcher(squares, BATCH // SIZE))


found: dict[str, list[list[int]]] = {}
for name, make in {"stateful": stateful, "nodes": nodes}.items():
    first = make()
    batches = iter(first)
    found[f"{name}, before"] = [everybodys(next(batches)) for _ in range(2)]
    state = first.state_dict()
    found[f"{name}, the rest"] = [everybodys(batch) for batch in batches]
    second = make()
    second.load_state_dict(state)
    found[f"{name}, gone on with"] = [everybodys(batch) for batch in second]
    assert found[f"{name}, gone on with"] == found[f"{name}, the rest"]
tell(**found)
