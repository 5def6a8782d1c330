"""Objects as frames: a pickle, and beside it the memory of the arrays inside, not copied into the pickle (PEP 574)."""

from __future__ import annotations

import copyreg
import importlib
import io
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

Frame = np.ndarray[Any, Any]  # bytes, as a 1-d numpy array of uint8

# Of the frames that arrive, and of the arrays in them: what torch gives its own tensors.
ALIGNMENT = 64


def new_frame(nbytes: int) -> Frame:
    """Fresh memory for a frame that arrives."""
    memory = np.empty(nbytes + ALIGNMENT - 1, np.uint8)
    first = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[first : first + nbytes]


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
    """The object of some frames. Its arrays lie in the frames' memory.

    Raises:
        Exception: Whatever the object's own unpickling raises.
    """
    return pickle.loads(frames[0].data, buffers=frames[1:])


class _TorchPickler(pickle.Pickler):
    """Hands out the memory of CPU tensors, which torch's own pickling copies; tensors that share it go on to do so."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Each object is pickled once, and torch makes new ones for the same memory.
        self._storages: dict[int, Any] = {}

    def reducer_override(self, value: Any) -> Any:
        torch: Any = sys.modules["torch"]
        if isinstance(value, torch.Tensor) and type(value) not in copyreg.dispatch_table:
            return _loadable(value.__reduce_ex__(5))
        if type(value) is torch.storage.TypedStorage and value._untyped_storage.device.type == "cpu":
            untyped = value._untyped_storage  # its public name warns
            return _rebuild_typed, (self._storages.setdefault(untyped._cdata, untyped), value.dtype)
        if type(value) is torch.UntypedStorage and value.device.type == "cpu":
            return _rebuild_untyped, (pickle.PickleBuffer(torch.empty(0, dtype=torch.uint8).set_(value).numpy()),)
        return NotImplemented


def _loadable(reduced: Any) -> Any:
    # torch 2.13 has another way for small floats, unsigned integers and complex32, which does not lead back outside of
    # torch.load, nor for one that requires a gradient. The way of all others serves them too.
    if not isinstance(reduced, tuple):
        return reduced
    torch: Any = sys.modules["torch"]
    function, arguments, *rest = reduced
    if function is torch._tensor._rebuild_from_type_v2:  # with attributes, or of a subclass
        inner, kind, inner_arguments, state = arguments
        inner, inner_arguments = _loadable((inner, inner_arguments))
        return function, (inner, kind, inner_arguments, state), *rest
    if function is torch._utils._rebuild_tensor_v3:
        untyped, offset, size, strides, requires_grad, hooks, dtype, *metadata = arguments
        storage = torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)
        return torch._utils._rebuild_tensor_v2, (storage, offset, size, strides, requires_grad, hooks, *metadata)
    return reduced


def _rebuild_typed(untyped: Any, dtype: Any) -> Any:
    return _torch().storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _rebuild_untyped(memory: Any) -> Any:
    torch = _torch()
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage() if len(memory) else torch.UntypedStorage(0)


def _torch() -> Any:
    return sys.modules.get("torch") or importlib.import_module("torch")
