"""SyncBatchNorm: its collectives, on the CPU.

`nn.SyncBatchNorm.forward` refuses CPU tensors in training, whatever the backend, and the five kernels that its autograd
function calls exist for CUDA and XPU only. What can be tested here is the autograd function itself
(`torch.nn.modules._functions.SyncBatchNorm`): it gathers the ranks' means, deviations and counts, and reduces in the
backward. The kernels that it wants are written below in a few lines, and given to torch for the length of a test.
That nn.SyncBatchNorm works on GPUs is not tested, nor is it claimed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.library import _scoped_library
from torch.nn.modules._functions import SyncBatchNorm

CHANNELS = 3
EPS = 1e-5


def over_channels(tensor: Tensor) -> list[int]:
    return [dimension for dimension in range(tensor.ndim) if dimension != 1]


def as_channels(vector: Tensor, tensor: Tensor) -> Tensor:
    return vector.reshape(1, -1, *[1] * (tensor.ndim - 2))


def stats(inputs: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    mean = inputs.mean(over_channels(inputs))
    variance = inputs.var(over_channels(inputs), unbiased=False)
    return mean, (variance + eps).rsqrt()


def gather_stats(
    inputs: Tensor,
    means: Tensor,
    invstds: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    shares = (counts / counts.sum())[:, None]
    mean = (shares * means).sum(0)
    variance = (shares * (invstds**-2 - eps + (means - mean) ** 2)).sum(0)
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(variance * counts.sum() / (counts.sum() - 1), momentum)
    return mean, (variance + eps).rsqrt()


def elementwise(inputs: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
    normal = (inputs - as_channels(mean, inputs)) * as_channels(invstd, inputs)
    return normal * as_channels(weight, inputs) + as_channels(bias, inputs)


def backward_reduce(
    gradient: Tensor, inputs: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor, *needed: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dimensions = over_channels(inputs)
    sum_dy = gradient.sum(dimensions)
    sum_dy_xmu = (gradient * (inputs - as_channels(mean, inputs))).sum(dimensions)
    return sum_dy, sum_dy_xmu, sum_dy_xmu * invstd, sum_dy.clone()


def backward_elementwise(
    gradient: Tensor,
    inputs: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    counts: Tensor,
) -> Tensor:
    total = counts.sum()
    centred = inputs - as_channels(mean, inputs)
    off = as_channels(sum_dy / total, inputs) + centred * as_channels(invstd**2 * sum_dy_xmu / total, inputs)
    return (gradient - off) * as_channels(invstd * weight, inputs)


@pytest.fixture
def kernels() -> Iterator[None]:
    """Give torch the kernels that it lacks on the CPU."""
    with _scoped_library("aten", "IMPL") as library:
        library.impl("batch_norm_stats", stats, "CPU")
        library.impl("batch_norm_gather_stats_with_counts", gather_stats, "CPU")
        library.impl("batch_norm_elemt", elementwise, "CPU")
        library.impl("batch_norm_backward_reduce", backward_reduce, "CPU")
        library.impl("batch_norm_backward_elemt", backward_elementwise, "CPU")
        yield


def rows_of(rank: int) -> int:
    """Return how many rows a rank has: never as many as another, and rank 2 none at all."""
    return [3, 2, 0, 5][rank % 4]


@pytest.mark.usefixtures("kernels")
def test_statistics_and_gradients_are_those_of_the_whole_batch(rank: int, size: int, world: dist.ProcessGroup) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = [rows_of(other) for other in range(size)]
    inputs = torch.randn(sum(rows), CHANNELS, 5, generator=generator) * 3 + 1
    weights = torch.randn(inputs.shape, generator=generator)  # of the sum that is the loss

    def same(one: Tensor | None, other: Tensor | None) -> None:
        # Ten numbers of size 1 to 10, multiplied and added in another order: a few float32 ulps.
        torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-6)

    def parts(tensor: Tensor) -> tuple[Tensor, ...]:
        return torch.split(tensor, rows)

    alone = nn.BatchNorm1d(CHANNELS, eps=EPS)
    together = nn.BatchNorm1d(CHANNELS, eps=EPS)
    for norm in (alone, together):
        norm.weight.data.copy_(torch.tensor([1.0, -2.0, 0.5]))
        norm.bias.data.copy_(torch.tensor([0.0, 1.0, -1.0]))
    whole = inputs.clone().requires_grad_()
    wanted = alone(whole)
    (wanted * weights).sum().backward()

    mine = parts(inputs)[rank].clone().requires_grad_()
    running = together.running_mean, together.running_var
    got = SyncBatchNorm.apply(mine, together.weight, together.bias, *running, EPS, 0.1, world, size)  # type: ignore[no-untyped-call]
    (got * parts(weights)[rank]).sum().backward()

    # The function leaves the sum over the ranks to DDP. A rank without rows has no gradient at all.
    shares = [torch.zeros(CHANNELS) if p.grad is None else p.grad for p in (together.weight, together.bias)]
    for share in shares:
        dist.all_reduce(share)

    same(got, parts(wanted)[rank])
    same(together.running_mean, alone.running_mean)
    same(together.running_var, alone.running_var)
    same(shares[0], alone.weight.grad)
    same(shares[1], alone.bias.grad)
    assert whole.grad is not None
    if rows[rank]:
        same(mine.grad, parts(whole.grad)[rank])
    else:
        assert mine.grad is None
