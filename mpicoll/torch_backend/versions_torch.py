"""What differs between the versions of torch, from 2.9 on. Imports torch."""

from __future__ import annotations

import inspect
from typing import Any

from torch._C import _distributed_c10d as c10d
from torch._C._dynamo import eval_frame

# The methods of a process group by their newest name, and the older ones under which a version of torch calls them.
OLDER_NAMES: dict[str, tuple[str, ...]] = {
    "all_gather_single": ("_allgather_base",),
    "all_gather_single_coalesced": ("allgather_into_tensor_coalesced",),
    "all_to_all_single": ("alltoall_base",),
    "reduce_scatter_single": ("_reduce_scatter_base",),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced",),
}

# From 2.13 on: the name that ``torch.distributed.record_comm`` gives to the collectives within it.
_title: Any = getattr(c10d, "_get_comm_profiling_name", None)


def comm_title() -> str:
    """The name that the profiler is to show, or an empty one."""
    return str(_title()) if _title is not None else ""


# With a rank and a size; torch's own types know another form alone.
initialise: Any = c10d.ProcessGroup.__init__
new_group: Any = c10d.ProcessGroup


def method(group: Any, name: str) -> Any:
    """The method of a group of torch's, by its newest name."""
    return getattr(group, name, None) or getattr(group, OLDER_NAMES[name][0])


def keep_compiler_out(owner: type) -> None:
    """Let torch.compile go round the methods of a class and what they call, as it goes round C++.

    ``torch.compiler.disable`` does so by importing the compiler, which takes seconds; this is what it sets.
    """
    skip = eval_frame._FrameAction.SKIP
    for method in vars(owner).values():
        if inspect.isfunction(method):
            method._torchdynamo_disable = True  # type: ignore[attr-defined]
            eval_frame.set_code_exec_strategy(method.__code__, eval_frame._FrameExecStrategy(skip, skip))


def add_older_names(group_class: type) -> None:
    """Give the methods of a class their older names too."""
    for name, others in OLDER_NAMES.items():
        for other in others:
            setattr(group_class, other, getattr(group_class, name))
