"""The two halves of a checkpoint, each a job of its own size. `tests/faults/test_torch_checkpoint.py` starts them."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from tests.torch_backend.backend import start
from tests.torch_backend.models import backward, momentum, perceptron, same_weights, whole

ROWS_FOR = 4  # the batches are those of four ranks, however many there are
BEFORE, AFTER = 3, 2  # steps


def take_steps(model: nn.Module, optimizer: Optimizer, first: int, count: int) -> None:
    """Train on whole batches: each rank sees all of a batch, so that the mean over the ranks is the batch's mean."""
    for step in range(first, first + count):
        optimizer.zero_grad()
        backward(model, whole(step, ROWS_FOR))
        optimizer.step()


def sharded(seed: int) -> tuple[nn.Module, Optimizer]:
    """Start torch; return a model cut over the ranks, and its optimizer."""
    from mpi4py import MPI

    start(MPI.COMM_WORLD)
    model = perceptron(seed)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, momentum(model.parameters())


def save(folder: str) -> None:
    """Train and save."""
    model, optimizer = sharded(seed=0)
    take_steps(model, optimizer, 0, BEFORE)
    weights, state = get_state_dict(model, optimizer)
    save_checkpoint({"model": weights, "optimizer": state}, checkpoint_id=folder)
    dist.destroy_process_group()


def load(folder: str) -> None:
    """Load into a model with other weights, go on, and compare with one process that never stopped."""
    model, optimizer = sharded(seed=1)
    weights, state = get_state_dict(model, optimizer)
    load_checkpoint({"model": weights, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)

    alone = perceptron(seed=0)
    never_stopped = momentum(alone.parameters())
    take_steps(alone, never_stopped, 0, BEFORE)
    same_weights(model, alone)  # what was saved
    take_steps(alone, never_stopped, BEFORE, AFTER)
    take_steps(model, optimizer, BEFORE, AFTER)
    same_weights(model, alone)  # without the optimizer's momenta these would differ
    if dist.get_rank() == 0:
        print(f"loaded on {dist.get_world_size()} ranks", flush=True)
    dist.destroy_process_group()
