"""The functions that torch.distributed has too take its arguments, by its names, in its order, with its defaults."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import mpicoll

dist = pytest.importorskip("torch.distributed")

pytestmark = pytest.mark.needs_torch
NAMES = [name for name in mpicoll.__all__ if inspect.isroutine(getattr(mpicoll, name)) and hasattr(dist, name)]


def parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def default(parameter: inspect.Parameter) -> Any:
    return getattr(parameter.default, "name", parameter.default)  # both ReduceOps have a name


@pytest.mark.parametrize("name", NAMES)
def test_torchs_arguments_come_first(name: str) -> None:
    ours, theirs = parameters(getattr(mpicoll, name)), parameters(getattr(dist, name))
    assert [p.name for p in ours[: len(theirs)]] == [p.name for p in theirs]
    asked = [(p.name, default(p)) for p in theirs if p.default is not inspect.Parameter.empty]
    assert [(p.name, default(p)) for p in ours[: len(theirs)] if p.name in dict(asked)] == asked
    assert all(p.default is not inspect.Parameter.empty for p in ours[len(theirs) :])


def test_most_names_are_torchs() -> None:
    assert len(NAMES) >= 40
