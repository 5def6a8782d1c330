"""Functional collectives inside a compiled function give the values that each rank works out by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Forget what other tests compiled."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def of(rank: int, size: int) -> Tensor:
    """Return one rank's input: `size` blocks of two numbers that no other rank has."""
    return torch.arange(2.0 * size) + 100 * rank


def compiled(function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Run a function that must be compiled as one graph."""
    result: Tensor = torch.compile(function, backend="aot_eager", fullgraph=True)(tensor)
    return result


@pytest.mark.parametrize("op", ["sum", "max", "avg"])
def test_all_reduce(rank: int, size: int, world: dist.ProcessGroup, op: str) -> None:
    got = compiled(lambda x: functional.all_reduce(x + 1, op, world) * 2, of(rank, size))
    everyone = torch.stack([of(other, size) + 1 for other in range(size)])
    wanted = {"sum": everyone.sum(0), "max": everyone.amax(0), "avg": everyone.mean(0)}[op]
    assert torch.equal(got, wanted * 2)


@pytest.mark.parametrize("dimension", [0, 1])
def test_all_gather_tensor(rank: int, size: int, world: dist.ProcessGroup, dimension: int) -> None:
    def mine(rank: int) -> Tensor:
        return of(rank, size).reshape(size, 2)

    got = compiled(lambda x: functional.all_gather_tensor(x, dimension, world) - 1, mine(rank))
    assert torch.equal(got, torch.cat([mine(other) for other in range(size)], dim=dimension) - 1)


def test_reduce_scatter_tensor(rank: int, size: int, world: dist.ProcessGroup) -> None:
    got = compiled(lambda x: functional.reduce_scatter_tensor(x * 3, "sum", 0, world) + 1, of(rank, size))
    total = sum(3 * of(other, size) for other in range(size))
    assert isinstance(total, Tensor)
    assert torch.equal(got, total[2 * rank : 2 * rank + 2] + 1)


def test_all_to_all_single(rank: int, size: int, world: dist.ProcessGroup) -> None:
    got = compiled(lambda x: functional.all_to_all_single(x + 1, None, None, world) + 1, of(rank, size))
    assert torch.equal(got, torch.cat([of(other, size)[2 * rank : 2 * rank + 2] for other in range(size)]) + 2)


def test_all_to_all_single_with_blocks_of_many_sizes(rank: int, size: int, world: dist.ProcessGroup) -> None:
    # rank r sends r + 1 numbers to rank 0, r + 2 to rank 1, ...
    def block(source: int, target: int) -> Tensor:
        return torch.full((source + target + 1,), 10.0 * source + target)

    sizes = [rank + other + 1 for other in range(size)]
    sent = torch.cat([block(rank, other) for other in range(size)])
    got = compiled(lambda x: functional.all_to_all_single(x + 1, sizes, sizes, world), sent)
    assert torch.equal(got, torch.cat([block(other, rank) for other in range(size)]) + 1)


def test_broadcast(rank: int, size: int, world: dist.ProcessGroup) -> None:
    last = size - 1
    got = compiled(lambda x: functional.broadcast(x + 1, last, world) * 2, of(rank, size))
    assert torch.equal(got, (of(last, size) + 1) * 2)


def test_input_of_a_collective_stays_as_it_is(rank: int, size: int, world: dist.ProcessGroup) -> None:
    tensor = of(rank, size)
    got = compiled(lambda x: functional.all_reduce(x, "sum", world) + x, tensor)
    assert torch.equal(tensor, of(rank, size))
    total = torch.stack([of(other, size) for other in range(size)]).sum(0)
    assert torch.equal(got, total + of(rank, size))


def test_gradient_through_a_compiled_all_gather(rank: int, size: int, world: dist.ProcessGroup) -> None:
    """The backward of all_gather is a reduce_scatter of what each rank asks for."""
    tensor = of(rank, size).requires_grad_()
    weights = torch.arange(2.0 * size * size)
    gathered = torch.compile(
        lambda x: functional.all_gather_tensor_autograd(x, 0, world), backend="aot_eager", fullgraph=True
    )(tensor)
    (gathered * weights * (rank + 1)).sum().backward()
    mine = weights[2 * size * rank : 2 * size * (rank + 1)]
    assert tensor.grad is not None
    assert torch.equal(tensor.grad, mine * sum(range(1, size + 1)))
