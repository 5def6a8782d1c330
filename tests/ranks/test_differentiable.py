"""mpicoll.differentiable against autograd in one process.

What the ranks compute together is one function of all ranks' inputs, and the loss is the sum of all ranks' losses.
Every rank computes that in one process too, from everybody's inputs, and compares its own part of the results and the
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from tests.ranks.calls import TEAMS, Team, team_of  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = pytest.mark.needs_torch
FACTOR = 0.75
SHAPE = (2, 3)


@dataclass(frozen=True)
class Case:
    """One function: what a rank's call is, and what all ranks' results are in terms of all ranks' inputs.

    `inputs` gives the shapes of what rank r of n brings. `model` maps the inputs of all ranks to the outputs of all
    ranks; a rank whose outputs mean nothing has none there.
    """

    inputs: Callable[[int, int], list[tuple[int, ...]]]
    call: Callable[[Any, Team, list[Tensor]], Any]
    model: Callable[[list[list[Tensor]]], list[list[Tensor]]]


def one(rank: int, size: int) -> list[tuple[int, ...]]:
    return [SHAPE]


def whole(rank: int, size: int) -> list[tuple[int, ...]]:
    return [(size * SHAPE[0], *SHAPE[1:])]


def each(rank: int, size: int) -> list[tuple[int, ...]]:
    return [SHAPE] * size


def uneven_each(rank: int, size: int) -> list[tuple[int, ...]]:
    return [(rank + 2 * entry, 2) for entry in range(size)]


def uneven_whole(rank: int, size: int) -> list[tuple[int, ...]]:
    return [(sum(rank + 2 * entry for entry in range(size)), 2)]


def op_of(dist: Any, name: str) -> Any:
    return dist.ReduceOp.PREMUL_SUM(FACTOR) if name == "PREMUL_SUM" else getattr(dist.ReduceOp, name)


def combined(parts: Sequence[Tensor], op: str) -> Tensor:
    total: Tensor = sum(parts[1:], parts[0])
    if op == "AVG":
        total = total / len(parts)
    elif op == "PREMUL_SUM":
        total = total * FACTOR
    return total


def blank(like: Tensor) -> Tensor:
    filled: Tensor = torch.full(SHAPE, -1.0, dtype=like.dtype)
    return filled


def all_reduce(op: str) -> Case:
    return Case(
        one,
        lambda f, t, x: f.all_reduce(x[0], op=op_of(t.dist, op), group=t.group),
        lambda xs: [[combined([x[0] for x in xs], op)]] * len(xs),
    )


def reduce(op: str) -> Case:
    def model(xs: list[list[Tensor]]) -> list[list[Tensor]]:
        outputs: list[list[Tensor]] = [[] for _ in xs]
        outputs[-1] = [combined([x[0] for x in xs], op)]
        return outputs

    return Case(one, lambda f, t, x: f.reduce(x[0], t.ranks[-1], op=op_of(t.dist, op), group=t.group), model)


def reduce_scatter(op: str) -> Case:
    return Case(
        each,
        lambda f, t, x: f.reduce_scatter(blank(x[0]), x, op=op_of(t.dist, op), group=t.group),
        lambda xs: [[combined([x[r] for x in xs], op)] for r in range(len(xs))],
    )


def reduce_scatter_tensor(op: str) -> Case:
    def model(xs: list[list[Tensor]]) -> list[list[Tensor]]:
        return [[part] for part in combined([x[0] for x in xs], op).chunk(len(xs))]

    return Case(
        whole,
        lambda f, t, x: f.reduce_scatter_tensor(blank(x[0]), x[0], op=op_of(t.dist, op), group=t.group),
        model,
    )


def _gather_model(xs: list[list[Tensor]]) -> list[list[Tensor]]:
    return [[x[0] for x in xs] if r == len(xs) - 1 else [] for r in range(len(xs))]


def _all_to_all_single(f: Any, t: Team, x: list[Tensor]) -> Any:
    sent = [t.me + 2 * entry for entry in range(t.size)]
    received = [rank + 2 * t.me for rank in range(t.size)]
    output = torch.zeros(sum(received), 2, dtype=x[0].dtype)
    return f.all_to_all_single(output, x[0], received, sent, group=t.group)


def _all_to_all_single_model(xs: list[list[Tensor]]) -> list[list[Tensor]]:
    size = len(xs)
    blocks = [torch.split(x[0], [rank + 2 * entry for entry in range(size)]) for rank, x in enumerate(xs)]
    return [[torch.cat([blocks[rank][r] for rank in range(size)])] for r in range(size)]


def _all_to_all(f: Any, t: Team, x: list[Tensor]) -> Any:
    outputs = [torch.zeros(rank + 2 * t.me, 2, dtype=x[0].dtype) for rank in range(t.size)]
    return f.all_to_all(outputs, x, group=t.group)


CASES = {
    **{f"all_reduce {op}": all_reduce(op) for op in ("SUM", "AVG", "PREMUL_SUM")},
    **{f"reduce {op}": reduce(op) for op in ("SUM", "AVG", "PREMUL_SUM")},
    **{f"reduce_scatter {op}": reduce_scatter(op) for op in ("SUM", "AVG", "PREMUL_SUM")},
    **{f"reduce_scatter_tensor {op}": reduce_scatter_tensor(op) for op in ("SUM", "AVG", "PREMUL_SUM")},
    "broadcast": Case(
        one,
        lambda f, t, x: f.broadcast(x[0], t.ranks[-1], group=t.group),
        lambda xs: [[xs[-1][0]]] * len(xs),
    ),
    "all_gather": Case(
        one, lambda f, t, x: f.all_gather(x[0], group=t.group), lambda xs: [[x[0] for x in xs]] * len(xs)
    ),
    "all_gather_into_tensor": Case(
        one,
        lambda f, t, x: f.all_gather_into_tensor(torch.zeros(t.size * 2, 3, dtype=x[0].dtype), x[0], group=t.group),
        lambda xs: [[torch.cat([x[0] for x in xs])]] * len(xs),
    ),
    "gather": Case(one, lambda f, t, x: f.gather(x[0], dst=t.ranks[-1], group=t.group), _gather_model),
    "scatter": Case(
        each,
        lambda f, t, x: f.scatter(x, src=t.ranks[-1], group=t.group),
        lambda xs: [[xs[-1][r]] for r in range(len(xs))],
    ),
    "all_to_all": Case(uneven_each, _all_to_all, lambda xs: [[x[r] for x in xs] for r in range(len(xs))]),
    "all_to_all_single": Case(uneven_whole, _all_to_all_single, _all_to_all_single_model),
    "all_to_all_single even": Case(
        whole,
        lambda f, t, x: f.all_to_all_single(torch.zeros_like(x[0]), x[0], group=t.group),
        lambda xs: [[torch.cat([x[0].chunk(len(xs))[r] for x in xs])] for r in range(len(xs))],
    ),
}


def leaves(case: Case, size: int, dtype: Any, grad: bool = True) -> list[list[Tensor]]:
    """Make every rank's inputs."""
    generator = torch.Generator().manual_seed(7)
    return [
        [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_(grad) for shape in case.inputs(rank, size)]
        for rank in range(size)
    ]


def close(found: Any, expected: Any) -> None:
    """Compare, with what single precision loses in a loss that is no longer small."""
    single = (expected[0] if isinstance(expected, list) else expected).dtype == torch.float32
    torch.testing.assert_close(found, expected, **({"rtol": 1e-4, "atol": 1e-4} if single else {}))


def listed(outputs: Any) -> list[Tensor]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def loss_of(outputs: Sequence[Tensor], rank: int) -> Tensor:
    """A function that is neither linear nor the same on two ranks or in two outputs."""
    total: Tensor = torch.zeros((), dtype=torch.float64)
    for entry, output in enumerate(outputs):
        total = total + ((rank + 1) * (entry + 2) * torch.sin(output)).abs().pow(2).sum().to(torch.float64)
    return total


def backward(case: Case, team: Team, outputs: list[Tensor], expected: list[Tensor]) -> None:
    """Go back through the call: every member must, one whose outputs mean nothing with a gradient of zero."""
    loss = loss_of(outputs, team.me) if expected else sum((output * 0).real.sum() for output in outputs)
    assert isinstance(loss, torch.Tensor)
    loss.backward()


@pytest.mark.parametrize("where", TEAMS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_results_and_gradients(dist: ModuleType, name: str, where: str, dtype: str) -> None:
    case = CASES[name]
    with team_of(dist, where) as team:
        if team.me < 0:
            return
        theirs = leaves(case, team.size, getattr(torch, dtype))
        mine = leaves(case, team.size, getattr(torch, dtype))[team.me]
        before = [x.detach().clone() for x in mine]
        expected = case.model(theirs)
        outputs = listed(case.call(dist.differentiable, team, mine))
        if expected[team.me]:
            close(outputs, expected[team.me])
        sum((loss_of(outs, r) for r, outs in enumerate(expected)), torch.zeros(())).backward()
        backward(case, team, outputs, expected[team.me])
        for x, reference, old in zip(mine, theirs[team.me], before, strict=True):
            assert torch.equal(x.detach(), old), "an input changed"
            assert x.grad is not None
            grad = torch.zeros_like(x) if reference.grad is None else reference.grad
            close(x.grad, grad)


@pytest.mark.parametrize("where", TEAMS)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_slopes(dist: ModuleType, name: str, where: str) -> None:
    """As gradcheck does, over all ranks at once: move all inputs a little along random directions."""
    case, step = CASES[name], 1e-6
    with team_of(dist, where) as team:
        if team.me < 0:
            return
        mine = leaves(case, team.size, torch.float64)[team.me]
        generator = torch.Generator().manual_seed(100 + team.me)
        directions = [torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in mine]
        means_something = case.model(leaves(case, team.size, torch.float64))[team.me]

        def loss(moved: list[Tensor]) -> Tensor:
            outputs = listed(case.call(dist.differentiable, team, moved))
            value = loss_of(outputs, team.me) if means_something else torch.zeros((), dtype=torch.float64)
            value = value.detach().clone()
            dist.all_reduce(value, group=team.group)
            return value

        higher, lower = (
            loss([x.detach() + sign * step * d for x, d in zip(mine, directions, strict=True)]) for sign in (1, -1)
        )
        backward(case, team, listed(case.call(dist.differentiable, team, mine)), means_something)
        slope = torch.stack([(x.grad * d).sum() for x, d in zip(mine, directions, strict=True)]).sum()
        dist.all_reduce(slope, group=team.group)
        torch.testing.assert_close(slope, (higher - lower) / (2 * step), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_a_sum_is_expanded(dist: ModuleType, name: str) -> None:
    """The backward of sum() hands on a tensor with strides of 0."""
    case = CASES[name]
    with team_of(dist, "world") as team:
        theirs = leaves(case, team.size, torch.float64)
        mine = leaves(case, team.size, torch.float64)[team.me]
        expected = case.model(theirs)
        outputs = listed(case.call(dist.differentiable, team, mine))
        loss = sum((output.sum() for outs in expected for output in outs), torch.zeros(()))
        loss.backward()
        factor = 1.0 if expected[team.me] else 0.0
        torch.stack([output.sum() * factor for output in outputs]).sum().backward()
        for x, reference in zip(mine, theirs[team.me], strict=True):
            grad = torch.zeros_like(x) if reference.grad is None else reference.grad
            torch.testing.assert_close(x.grad, grad)


@pytest.mark.parametrize("name", CASES)
def test_without_gradients(dist: ModuleType, name: str) -> None:
    """Inputs that require none give plain results; so does no_grad."""
    case = CASES[name]
    with team_of(dist, "world") as team:
        for grad in (False, True):
            inputs = leaves(case, team.size, torch.float64, grad=grad)
            with torch.no_grad():
                expected = case.model(inputs)[team.me]
                outputs = listed(case.call(dist.differentiable, team, inputs[team.me]))
            assert not any(output.requires_grad for output in outputs)
            if expected:
                torch.testing.assert_close(outputs, expected)


@pytest.mark.parametrize("op", ["PRODUCT", "MIN", "MAX"])
def test_operations_without_a_gradient_are_refused(dist: ModuleType, rank: int, size: int, op: str) -> None:
    reduce_op = getattr(dist.ReduceOp, op)
    functions = dist.differentiable
    x = torch.full((2,), rank + 1.0, dtype=torch.float64, requires_grad=True)
    y = torch.ones(2 * size, dtype=torch.float64, requires_grad=True)
    calls: list[Callable[[], Any]] = [
        lambda: functions.all_reduce(x, op=reduce_op),
        lambda: functions.reduce(x, 0, op=reduce_op),
        lambda: functions.reduce_scatter(torch.zeros(2, dtype=torch.float64), [x] * size, op=reduce_op),
        lambda: functions.reduce_scatter_tensor(torch.zeros(2, dtype=torch.float64), y, op=reduce_op),
    ]
    for call in calls:
        with pytest.raises(dist.ArgumentError, match=op):
            call()
    total = dist.differentiable.all_reduce(x)
    assert total.tolist() == [size * (size + 1) / 2] * 2


def test_layers_over_the_ranks(dist: ModuleType, rank: int, size: int) -> None:
    """A product of matrices whose rows are spread over the ranks: all_gather, matmul, reduce_scatter."""
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randn(2, 4, dtype=torch.float64, generator=generator) for _ in range(size)]
    weights = [torch.randn(4, 5, dtype=torch.float64, generator=generator) for _ in range(size)]
    mine, weight = rows[rank].clone().requires_grad_(), weights[rank].clone().requires_grad_()
    everything = torch.cat(dist.differentiable.all_gather(mine))
    partial = torch.tanh(everything @ weight)
    result = dist.differentiable.reduce_scatter_tensor(torch.zeros(2, 5, dtype=torch.float64), partial)
    (result**3).sum().backward()

    all_rows = [row.clone().requires_grad_() for row in rows]
    all_weights = [w.clone().requires_grad_() for w in weights]
    total = torch.stack([torch.tanh(torch.cat(all_rows) @ w) for w in all_weights]).sum(0)
    (total**3).sum().backward()
    torch.testing.assert_close(mine.grad, all_rows[rank].grad)
    torch.testing.assert_close(weight.grad, all_weights[rank].grad)


def test_mean_loss_over_the_ranks_is_the_loss_of_the_whole_batch(dist: ModuleType, rank: int, size: int) -> None:
    """Data parallel with AVG: a parameter's gradient is that of one process on everybody's data."""
    generator = torch.Generator().manual_seed(4)
    data = torch.randn(size, 6, 3, dtype=torch.float64, generator=generator)
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    # every rank has the same weight, and the derivative is with respect to all copies of it together
    shared = dist.differentiable.all_reduce(weight, op=dist.ReduceOp.AVG)
    (torch.sin(data[rank] @ shared).mean() / size).backward()
    alone = torch.ones(3, dtype=torch.float64, requires_grad=True)
    torch.sin(data.reshape(-1, 3) @ alone).mean().backward()
    gradient = torch.as_tensor(weight.grad) * size
    torch.testing.assert_close(gradient, torch.as_tensor(alone.grad))
