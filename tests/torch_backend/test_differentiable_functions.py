# mypy: disable-error-code="no-untyped-call"
"""The collectives of torch.distributed.nn.functional have the gradients that a pencil gives.

In each test the loss of rank r is a weighted sum of what it received. A gradient is that of the sum of all ranks'
losses. Checks come after the backward, in which ranks meet again: a rank that fails then leaves no other one waiting.

`_all_gather_base` is left out: torch writes its backward for nccl and xccl, and raises for all other backends.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.nn import functional


def of(rank: int) -> Tensor:
    """Return one rank's input, which needs a gradient."""
    return torch.tensor([1.0, 2.0, 3.0]).add(10 * rank).requires_grad_()


def weights(rank: int, block: int = 0) -> Tensor:
    """Return the weights with which a rank adds up what it received, other ones for every block."""
    return torch.tensor([1.0, -2.0, 5.0]) * (rank + 1) + 7 * block


def backward(loss: Tensor) -> None:
    loss.backward()


def added(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).sum(dim=0)


def test_all_reduce(rank: int, size: int) -> None:
    mine = of(rank)
    total = functional.all_reduce(mine)
    backward((total * weights(rank)).sum())
    assert torch.equal(total, added([of(other) for other in range(size)]))
    assert mine.grad is not None
    assert torch.equal(mine.grad, added([weights(other) for other in range(size)]))


def test_all_gather(rank: int, size: int) -> None:
    mine = of(rank)
    gathered = functional.all_gather(mine)
    backward(added([tensor * weights(rank, block) for block, tensor in enumerate(gathered)]).sum())
    assert torch.equal(torch.stack(gathered), torch.stack([of(other) for other in range(size)]))
    assert mine.grad is not None
    assert torch.equal(mine.grad, added([weights(other, block=rank) for other in range(size)]))


def test_reduce_scatter(rank: int, size: int) -> None:
    mine = [(of(rank).detach() + block).requires_grad_() for block in range(size)]
    total = functional.reduce_scatter(torch.empty(3), mine)
    backward((total * weights(rank)).sum())
    assert torch.equal(total, added([of(other) + rank for other in range(size)]))
    for block, tensor in enumerate(mine):
        assert tensor.grad is not None
        assert torch.equal(tensor.grad, weights(block))


def test_all_to_all(rank: int, size: int) -> None:
    mine = [(of(rank).detach() + block).requires_grad_() for block in range(size)]
    received = functional.all_to_all([torch.empty(3) for _ in range(size)], mine)
    backward(added([tensor * weights(rank, block) for block, tensor in enumerate(received)]).sum())
    assert torch.equal(torch.stack(received), torch.stack([of(other) + rank for other in range(size)]))
    for block, tensor in enumerate(mine):
        assert tensor.grad is not None
        assert torch.equal(tensor.grad, weights(block, block=rank))


def test_all_to_all_single_with_blocks_of_many_sizes(rank: int, size: int) -> None:
    # rank r sends s + 1 elements to rank s, all of them 10 r + s
    sent = torch.cat([torch.full((other + 1,), 10.0 * rank + other) for other in range(size)]).requires_grad_()
    output = torch.empty(size * (rank + 1))
    received = functional.all_to_all_single(output, sent, [rank + 1] * size, [other + 1 for other in range(size)])
    # What came from rank s counts s times, and once more for every rank below this one.
    counts = torch.arange(float(size)).repeat_interleave(rank + 1) + rank
    backward((received * counts).sum())
    wanted = torch.cat([torch.full((rank + 1,), 10.0 * other + rank) for other in range(size)])
    assert torch.equal(received, wanted)
    assert sent.grad is not None
    assert torch.equal(sent.grad, torch.cat([torch.full((other + 1,), float(rank + other)) for other in range(size)]))


def test_broadcast(rank: int, size: int) -> None:
    source = size - 1
    mine = of(rank)
    received = functional.broadcast(mine, source)
    backward((received * weights(rank)).sum())
    assert torch.equal(received, of(source))
    assert mine.grad is not None
    total = added([weights(other) for other in range(size)])
    assert torch.equal(mine.grad, total if rank == source else torch.zeros(3))


def test_reduce(rank: int, size: int) -> None:
    target = size - 1
    mine = of(rank)
    total = functional.reduce(mine, target)
    backward((total * weights(rank)).sum())
    if rank == target:
        assert torch.equal(total, added([of(other) for other in range(size)]))
    assert mine.grad is not None
    assert torch.equal(mine.grad, weights(target))


def test_gather(rank: int, size: int) -> None:
    target = size - 1
    mine = of(rank)
    gathered = functional.gather(mine, target)
    backward(added([tensor * weights(rank, block) for block, tensor in enumerate(gathered)]).sum())
    assert len(gathered) == size
    if rank == target:
        assert torch.equal(torch.stack(gathered), torch.stack([of(other) for other in range(size)]))
    assert mine.grad is not None
    assert torch.equal(mine.grad, weights(target, block=rank))


def test_scatter(rank: int, size: int) -> None:
    source = size - 1
    mine = [(of(rank).detach() + block).requires_grad_() for block in range(size)]
    received = functional.scatter(mine, source)
    backward((received * weights(rank)).sum())
    assert torch.equal(received, of(source) + rank)
    if rank == source:
        for block, tensor in enumerate(mine):
            assert tensor.grad is not None
            assert torch.equal(tensor.grad, weights(block))


def test_gradients_flow_through_two_collectives(rank: int, size: int) -> None:
    mine = of(rank)
    total = functional.all_reduce(mine)
    backward((functional.all_reduce(total * total * (rank + 1))).sum())
    # L = sum over ranks of sum_r (r + 1) t^2, each rank having the same: dL/dx = n * 2 t * n (n + 1) / 2, for all ranks
    ranks = sum(range(1, size + 1))
    assert mine.grad is not None
    assert torch.equal(mine.grad, 2.0 * size * ranks * added([of(other).detach() for other in range(size)]))
