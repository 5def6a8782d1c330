"""Small models, their data, and what "the same as one process" means."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Optimizer

WIDTH = 8
ROWS = 4  # of each rank's part of a batch
Batch = tuple[Tensor, Tensor]


def perceptron(seed: int = 0) -> nn.Sequential:
    """Return a network of 212 weights."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 4))


def whole(step: int, size: int) -> Batch:
    """Return the inputs and targets of one step, of all ranks together."""
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randn(ROWS * size, WIDTH, generator=generator), torch.randn(ROWS * size, 4, generator=generator)


def part(step: int, rank: int, size: int) -> Batch:
    """Return one rank's part of a step's batch."""
    inputs, targets = whole(step, size)
    mine = slice(ROWS * rank, ROWS * (rank + 1))
    return inputs[mine], targets[mine]


def momentum(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Return an optimizer with a state: a wrong gradient stays wrong in the steps that follow."""
    return SGD(parameters, lr=0.1, momentum=0.9)


def backward(model: Callable[[Tensor], Tensor], batch: Batch, parts: int = 1) -> Tensor:
    """Add the gradient of a batch's mean loss to the model's; return the loss.

    Where the batch is one of several equal parts, both are its shares of the mean over all parts.
    """
    inputs, targets = batch
    loss = nn.functional.mse_loss(model(inputs), targets) / parts
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def train(
    model: nn.Module, batches: Iterable[Batch], make: Callable[[Iterable[nn.Parameter]], Optimizer] = momentum
) -> list[Tensor]:
    """Take a step for each batch; return the losses."""
    optimizer = make(model.parameters())
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        losses.append(backward(model, batch))
        optimizer.step()
    return losses


def full(tensor: Tensor) -> Tensor:
    """Return a tensor whole, wherever its parts are."""
    whole_tensor: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole_tensor


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients by name, whole."""
    found = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        found[name] = full(parameter.grad).clone()
    return found


def same(got: Tensor, wanted: Tensor) -> None:
    """Check two float32 tensors that were added up in different orders."""
    torch.testing.assert_close(full(got), wanted, rtol=1e-6, atol=1e-6)


def same_weights(model: nn.Module, reference: nn.Module) -> None:
    """Check all parameters and buffers of a model against those of one process."""
    wanted = reference.state_dict()
    got = model.state_dict()
    assert list(got) == list(wanted)
    for name, tensor in wanted.items():
        same(got[name], tensor)


def same_gradients(model: nn.Module, reference: nn.Module) -> None:
    """Check all gradients of a model against those of one process."""
    got = gradients(model)
    for name, gradient in gradients(reference).items():
        same(got[name], gradient)


def same_but_for_bf16(got: Tensor, shares: Tensor, roundings: int) -> None:
    """Check what a backend made of one share from each rank, where it rounds to bf16 at most `roundings` times.

    A backend may round after every addition, in its own order, or once. Each rounding is off by half an ulp at most,
    which is 2**-8 of the number rounded, which is no larger than the sum of the magnitudes.
    """
    off = (got - shares.sum(dim=0)).abs()
    allowed = roundings * 2**-8 * shares.abs().sum(dim=0)
    assert bool((off <= allowed).all()), f"off by up to {(off / allowed).max()} of what is allowed"
