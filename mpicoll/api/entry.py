"""Where every call comes in: what is the same for all of them is done here once."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from mpicoll.errors import MpicollError
from mpicoll.groups import world
from mpicoll.groups.group import NotAMember
from mpicoll.mpi import library

Group = Any  # a ProcessGroup, an mpi4py communicator, GroupMember.NON_GROUP_MEMBER, or None for the default group

P = ParamSpec("P")
R = TypeVar("R")


def entry(function: Callable[P, R]) -> Callable[P, R]:
    """Put the operation, group and rank before the text of an error; do nothing on a rank that is not in the group.

    There the operation warns and returns None, as torch's do.
    """
    name = function.__name__

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except NotAMember:
            warnings.warn(f"{name} does nothing on this rank, which is not in the group", stacklevel=2)
            return None  # type: ignore[return-value]
        except MpicollError as error:
            error.locate(_where(function, args, kwargs))
            raise
        except Exception as error:
            known = library.as_error(error)
            if known is None:
                raise
            known.locate(_where(function, args, kwargs))
            raise known from error

    return call


def _where(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    name = function.__name__
    try:
        group = world.resolve(
            inspect.signature(function).bind(*args, **kwargs).arguments.get("group"), collective=False
        )
    except Exception:  # there is no group to name
        return f"{name}()"
    return group.where(name)
