"""DDP's built-in hook that wants more of a future than Python can give. Imports torch."""

from __future__ import annotations

import functools
from typing import Any

from torch._C._distributed_c10d import BuiltinCommHookType
from torch.nn.parallel import DistributedDataParallel

from mpicoll.torch_backend.group_torch import TorchGroup


def replace_compression() -> None:
    """Give a DDP over one of our groups the Python hook of the same meaning where it asks for FP16_COMPRESS.

    The built-in one takes a future whose type is a list of tensors. Those that Python makes are of any object, and the
    backward pass would end in an internal assertion of torch's.
    """
    original: Any = DistributedDataParallel._register_builtin_comm_hook

    @functools.wraps(original)
    def register(self: Any, comm_hook_type: Any) -> None:
        if comm_hook_type != BuiltinCommHookType.FP16_COMPRESS or not isinstance(self.process_group, TorchGroup):
            original(self, comm_hook_type)
            return
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        self.register_comm_hook(None, fp16_compress_hook)

    DistributedDataParallel._register_builtin_comm_hook = register  # type: ignore[method-assign]
