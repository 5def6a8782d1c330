"""One of the test scripts that accelerate ships, but for what accelerate or torch refuses on CPUs with gloo too."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from accelerate import PartialState
from torch.nn.parallel import DistributedDataParallel

NAME = sys.argv[1]
# Joining uneven inputs does nothing without GPUs, says accelerate: the rank with more batches waits for the other one.
UNEVEN = [
    "test_can_join_uneven_inputs",
    "test_join_can_override_even_batches",
    "test_join_can_override_for_mixed_type_dataloaders",
    "test_join_raises_warning_for_iterable_when_overriding_even_batches",
]


class WithoutDevices(DistributedDataParallel):
    """DDP that does not mind the number of a GPU, which test_ddp_comm_hook gives for a model on the CPU."""

    def __init__(self, *args: Any, device_ids: Any = None, output_device: Any = None, **options: Any) -> None:
        super().__init__(*args, **options)


def unless_refused(test: Callable[..., None]) -> Callable[..., None]:
    """Return the test of one hook, which may be one that torch has for GPUs alone."""

    def run(hook: Any, wrapper: Any, state: Any) -> None:
        try:
            test(hook, wrapper, state)
        except TypeError as error:
            if not str(error).startswith("BF16 all reduce communication hook required CUDA"):
                raise

    return run


script: Any = importlib.import_module(f"accelerate.test_utils.scripts.{NAME}")
if NAME == "test_distributed_data_loop":
    for name in UNEVEN:
        assert hasattr(script, name)
        setattr(script, name, lambda: None)
elif NAME == "test_ddp_comm_hook":
    torch.nn.parallel.DistributedDataParallel = WithoutDevices  # type: ignore[misc]
    script.test_ddp_comm_hook = unless_refused(script.test_ddp_comm_hook)

state = PartialState(cpu=True)
assert (state.num_processes, torch.distributed.get_backend()) == (2, "mpicoll")
script.main()
