"""What every program here begins and ends with. Its first argument says how it was started.

- `alone`: one process, no torch.distributed: what the others are compared with.
- `mpicoll`: under mpirun, with the lines in it that mpicoll asks of its user.
- `gloo`: a program for torchrun, which knows nothing of mpicoll.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WAY = sys.argv[1]
FOLDER = sys.argv[2]  # to write to, the same one for all ranks
SIZE = 1 if WAY == "alone" else 2
ROWS, WIDTH, CLASSES, BATCH = 64, 8, 3, 8

# What a client says of torch or of another client is nobody's news here.
warnings.simplefilter("ignore")


def network() -> nn.Sequential:
    """Return a small network, the same one everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, CLASSES))


def rows() -> TensorDataset:
    """Return the data, the same everywhere."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(ROWS, WIDTH, generator=generator)
    return TensorDataset(inputs, inputs[:, :CLASSES].argmax(dim=1))


def loader(rank: int) -> DataLoader[Any]:
    """Return a rank's part of the batches: those of all ranks together are those of one process."""
    sampler: DistributedSampler[Any] = DistributedSampler(rows(), SIZE, rank, shuffle=False)
    return DataLoader(rows(), batch_size=BATCH // SIZE, sampler=sampler)


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor whole, wherever its parts are."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach()


def weights(named: Iterable[tuple[str, Tensor]]) -> dict[str, list[float]]:
    """Return the weights of a model, flat."""
    return {name: whole(tensor).double().flatten().tolist() for name, tensor in named}


def tell(**values: Any) -> None:
    """Leave a rank's values to the test, in a file: lines of two ranks would mix."""
    values["backend"] = dist.get_backend() if dist.is_initialized() else None
    Path(FOLDER, f"{os.getpid()}.values").write_text(json.dumps(values))
