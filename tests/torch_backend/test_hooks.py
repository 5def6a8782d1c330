"""What runs in callbacks: DDP's communication hooks, and futures that wait for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C import _distributed_c10d
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from .models import same


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 8))


def train(model: nn.Module, rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    for _ in range(4):
        model.zero_grad()
        model(torch.randn(4, 16, generator=generator)).sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_a_callback_may_wait_for_another_operation(size: int) -> None:
    def again(future: Any) -> list[Tensor]:
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()  # type: ignore[no-any-return]

    for _ in range(5):
        work = dist.all_reduce(torch.ones(2), async_op=True)
        assert work is not None
        assert work.get_future().then(again).then(again).wait()[0].tolist() == [size**3] * 2


def test_a_callback_may_call_a_synchronous_operation(size: int) -> None:
    def again(future: Any) -> Tensor:
        x: Tensor = future.value()[0]
        dist.all_reduce(x)
        return x

    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work is not None
    assert work.get_future().then(again).wait().tolist() == [size**2] * 2


def builtin(name: str) -> Callable[[Any], None]:
    kind = getattr(_distributed_c10d.BuiltinCommHookType, name)
    return lambda model: model._register_builtin_comm_hook(kind)


def power_sgd(model: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=8, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


HOOKS: dict[str, Callable[[DistributedDataParallel], None]] = {
    "all_reduce": lambda model: model.register_comm_hook(None, default_hooks.allreduce_hook),
    "fp16": lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook),
    # By its own name torch keeps it to nccl.
    "bf16": lambda model: model.register_comm_hook(None, lambda s, bucket: default_hooks.bf16_compress_hook(s, bucket)),
    "built-in all_reduce": builtin("ALLREDUCE"),
    "built-in fp16": builtin("FP16_COMPRESS"),
    "PowerSGD": power_sgd,
}


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_averages_the_gradients(hook: str, rank: int, size: int) -> None:
    model = DistributedDataParallel(network())
    HOOKS[hook](model)
    got = train(model, rank)
    parts = [train(network(), r) for r in range(size)]
    for i, gradient in enumerate(got):
        mean = torch.stack([part[i] for part in parts]).mean(0)
        # PowerSGD of this rank loses nothing of gradients of rank 4 a process; fp16 has 11 bits.
        if "all_reduce" in hook:
            same(gradient, mean)
        else:
            assert torch.allclose(gradient, mean, rtol=2e-2, atol=2e-2)


def test_a_model_averager_gives_every_rank_the_mean(rank: int, size: int) -> None:
    model = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        model.weight.fill_(rank)
    model.weight.grad = torch.zeros(3, 3)  # it takes parameters that have been trained
    PeriodicModelAverager(period=1).average_parameters(model.parameters())
    assert model.weight.flatten().tolist() == [(size - 1) / 2] * 9


def test_compiled_ddp(rank: int, size: int) -> None:
    model = torch.compile(DistributedDataParallel(network()), backend="aot_eager")
    got = train(model, rank)  # type: ignore[arg-type]
    parts = [train(network(), r) for r in range(size)]
    for i, gradient in enumerate(got):
        same(gradient, torch.stack([part[i] for part in parts]).mean(0))
