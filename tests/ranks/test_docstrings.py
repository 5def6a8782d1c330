"""The examples in the docstrings of the public names, run as they stand on two ranks and more."""

from __future__ import annotations

import doctest
import inspect
from types import ModuleType
from typing import Any

import pytest

import mpicoll
from mpicoll import differentiable

NEED_TORCH = {"local_device"}
NAMES = sorted(name for name in mpicoll.__all__ if not inspect.ismodule(getattr(mpicoll, name)))


def run_examples(thing: Any, name: str) -> int:
    """Run the examples of one docstring; return how many there are."""
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    test = parser.get_doctest(inspect.getdoc(thing) or "", {}, name, None, None)
    told: list[str] = []
    runner.run(test, out=told.append)
    assert not told, "".join(told)
    return len(test.examples)


def shows_how(thing: Any) -> bool:
    """Whether it is a function or class that a reader would want an example of."""
    return inspect.isroutine(thing) or (inspect.isclass(thing) and not issubclass(thing, Exception))


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("name", [n for n in NAMES if n not in NEED_TORCH])
def test_example(dist: ModuleType, name: str) -> None:
    run_examples(getattr(dist, name), name)


@pytest.mark.ranks(min=2)
@pytest.mark.needs_torch
@pytest.mark.parametrize("name", sorted(NEED_TORCH))
def test_example_with_torch(dist: ModuleType, name: str) -> None:
    assert run_examples(getattr(dist, name), name) > 0


@pytest.mark.ranks(min=2)
@pytest.mark.needs_torch
@pytest.mark.parametrize("name", differentiable.__all__)
def test_example_with_gradients(dist: ModuleType, name: str) -> None:
    assert run_examples(getattr(dist.differentiable, name), name) > 0


@pytest.mark.ranks(1)
@pytest.mark.parametrize("name", NAMES)
def test_every_function_of_arrays_has_an_example(name: str) -> None:
    thing = getattr(mpicoll, name)
    text = inspect.getdoc(thing) or ""
    # A query of rank or size needs none; a few functions are shown in the example of their counterpart.
    trivial = name.startswith(("get_", "is_")) or name in ("group", "GroupMember")
    assert not shows_how(thing) or trivial or ">>>" in text or "Example: see" in text
