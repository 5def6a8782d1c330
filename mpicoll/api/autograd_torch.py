"""The one autograd function behind `mpicoll.differentiable`. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensors = Sequence[torch.Tensor]


class _Collective(torch.autograd.Function):
    """A collective and its adjoint, both as functions from tensors to tensors."""

    @staticmethod
    def forward(
        ctx: Any, run: Callable[[Tensors], Tensors], adjoint: Callable[[Tensors], Tensors], *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.adjoint = adjoint
        return tuple(run(inputs))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return (None, None, *ctx.adjoint(gradients))


def apply(
    run: Callable[[Tensors], Tensors], adjoint: Callable[[Tensors], Tensors], inputs: Tensors
) -> tuple[torch.Tensor, ...]:
    """Run a collective on tensors, so that the gradients of its outputs become those of its inputs by its adjoint."""
    outputs: tuple[torch.Tensor, ...] = _Collective.apply(run, adjoint, *inputs)  # type: ignore[no-untyped-call]
    return outputs
