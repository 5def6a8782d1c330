"""The one autograd function behind `mpicoll.differentiable`. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mpicoll.data import reduction
from mpicoll.errors import ArgumentError, mismatch

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


def copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy without a history, for a collective that works in place."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def like(tensor: torch.Tensor) -> torch.Tensor:
    """A new tensor of the same shape and dtype, for an output."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)


def scale(op: Any, size: int, inputs: Tensors) -> complex:
    """What the sum of the ranks' gradients is multiplied by for this rank, after a reduction over `size` ranks."""
    known = reduction.as_op(op)
    if known.name == "AVG":
        return 1.0 / size
    if known.name == "PREMUL_SUM":
        return complex(known.factor).conjugate() if np.iscomplexobj(known.factor) else float(known.factor)
    if known.name != "SUM" and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        raise ArgumentError(mismatch("op", "SUM, AVG or PREMUL_SUM, which have gradients", known.name))
    return 1.0
