"""Objects as frames: a pickle, and beside it the memory of the arrays inside, not copied into the pickle (PEP 574)."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

Frame = np.ndarray[Any, Any]  # bytes, as a 1-d numpy array of uint8


def dump(value: Any) -> list[Frame]:
    """The frames of an object: its pickle, then the buffers of its numpy arrays and CPU tensors where they are.

    Raises:
        Exception: Whatever the object's own pickling raises.
    """
    buffers: list[pickle.PickleBuffer] = []
    if "torch" in sys.modules:
        stream = io.BytesIO()
        _TorchPickler(stream, 5, buffer_callback=buffers.append).dump(value)
        pickled: Any = stream.getbuffer()
    else:
        pickled = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return [np.frombuffer(memory, np.uint8) for memory in (pickled, *(buffer.raw() for buffer in buffers))]


def load(frames: Sequence[Frame]) -> Any:
    """The object of some frames. Its arrays lie in the frames' memory."""
    return pickle.loads(frames[0].data, buffers=frames[1:])


class _TorchPickler(pickle.Pickler):
    """Hands out the memory of CPU tensors, which torch's own pickling copies."""

    def reducer_override(self, value: Any) -> Any:
        torch: Any = sys.modules["torch"]
        if type(value) is torch.Tensor and str(value.dtype).startswith(_UNPICKLED) and value.layout is torch.strided:
            return _rebuild_view, (value.detach().view(getattr(torch, f"int{8 * value.dtype.itemsize}")), value.dtype)
        if type(value) is not torch.storage.TypedStorage or value._untyped_storage.device.type != "cpu":
            return NotImplemented
        untyped = value._untyped_storage  # its public name warns
        memory = torch.empty(0, dtype=torch.uint8).set_(untyped).numpy()
        return _rebuild_storage, (pickle.PickleBuffer(memory), value.dtype)


# Tensors of these dtypes torch 2.13 pickles and cannot load: they travel as integers.
_UNPICKLED = ("torch.float8", "torch.float4", "torch.uint16", "torch.uint32", "torch.uint64", "torch.complex32")


def _rebuild_view(integers: Any, dtype: Any) -> Any:
    return integers.view(dtype)


def _rebuild_storage(memory: Any, dtype: Any) -> Any:
    torch: Any = sys.modules.get("torch") or importlib.import_module("torch")
    untyped = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage() if len(memory) else torch.UntypedStorage(0)
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)
