"""A torch tensor, numpy array or DLPack object as one small description: where its elements are and what they are.

torch is found through the type of the object that came in and never imported: a numpy program does not pay for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from mpicoll.data import dlpack, dtypes
from mpicoll.data.dtypes import DType
from mpicoll.errors import DTypeError
from mpicoll.mpi import library

if TYPE_CHECKING:
    import torch

Kind = Literal["torch", "numpy", "dlpack"]


class Array:
    """The memory of one array.

    Attributes:
        owner: The array itself, which keeps the memory alive.
        kind: The library that it came from.
        dtype: What its elements are.
        strides: Bytes from one element to the next in each dimension, or None where it is row-major without gaps.
        count: The number of its elements.
        nbytes: The bytes of its elements, gaps left out.
        contiguous: Whether the elements can travel straight from (and to) the memory at `pointer`.
        writable: Whether it can be an output.
    """

    __slots__ = ("_pointer", "_shape", "contiguous", "count", "dtype", "kind", "nbytes", "owner", "strides", "writable")

    def __init__(
        self,
        owner: Any,
        kind: Kind,
        dtype: DType,
        shape: tuple[int, ...] | None,
        pointer: int | None,
        count: int,
        strides: tuple[int, ...] | None = None,
        writable: bool = True,
    ) -> None:
        self.owner = owner
        self.kind = kind
        self.dtype = dtype
        self._shape = shape  # None until it is needed, which mostly it is not
        self._pointer = pointer  # of a numpy array it is asked for when it is needed, which takes a while
        self.count = count
        self.nbytes = count * dtype.itemsize
        self.strides = strides
        self.contiguous = strides is None
        self.writable = writable

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        if self._shape is None:
            self._shape = tuple(self.owner.shape)
        return self._shape

    @property
    def pointer(self) -> int:
        """The address of the first element."""
        if self._pointer is None:
            self._pointer = int(self.owner.__array_interface__["data"][0])
        return self._pointer

    def buffer(self) -> Any:
        """The memory of a contiguous array as mpi4py takes it."""
        if self._pointer is None:
            return self.owner
        return library.MPI.buffer.fromaddress(self._pointer, self.nbytes)

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"

    def view(self) -> np.ndarray[Any, Any]:
        """The elements where they are, as a numpy array of the carrier dtype. See `at_address` for its shape."""
        return at_address(self.pointer, self.dtype.carrier, self.shape, self.strides, self.writable)

    def read_into(self, flat: np.ndarray[Any, Any]) -> None:
        """Copy the elements in logical order to `flat`, a 1-d array of the carrier dtype."""
        view = self.view()
        np.copyto(flat.reshape(view.shape), view)

    def write_from(self, flat: np.ndarray[Any, Any]) -> None:
        """Copy the elements in logical order from `flat`, a 1-d array of the carrier dtype."""
        view = self.view()
        np.copyto(view, flat.reshape(view.shape))


class IndirectArray(Array):
    """An array whose memory is not what its elements are: foreign byte order, or torch's lazy conj and neg bits.

    It is read and written by the library that it came from, as if it were strided.
    """

    __slots__ = ("_read", "_write")

    def __init__(self, array: Array, read: Callable[[Any], None], write: Callable[[Any], None]) -> None:
        super().__init__(array.owner, array.kind, array.dtype, array.shape, array._pointer, array.count, array.strides)
        self.contiguous = False
        self.writable = array.writable
        self._read = read
        self._write = write

    def view(self) -> np.ndarray[Any, Any]:
        """A copy of the elements in logical order."""
        flat = np.empty(self.count, self.dtype.carrier)
        self.read_into(flat)
        return flat

    def read_into(self, flat: np.ndarray[Any, Any]) -> None:
        """Copy the elements to `flat`."""
        self._read(flat)

    def write_from(self, flat: np.ndarray[Any, Any]) -> None:
        """Copy the elements from `flat`."""
        self._write(flat)


class _Interface:
    """An object of numpy's array interface: memory that somebody else owns."""

    __slots__ = ("__array_interface__",)

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


_MOST_DIMENSIONS = 32  # that numpy 1 can have


def at_address(
    pointer: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    writable: bool = True,
) -> np.ndarray[Any, Any]:
    """A numpy array over memory that the caller keeps alive.

    It lacks the dimensions of size 1 where there are more dimensions than numpy can have and torch can.
    """
    if len(shape) > _MOST_DIMENSIONS:
        kept = [i for i, size in enumerate(shape) if size != 1]
        shape, strides = tuple(shape[i] for i in kept), strides and tuple(strides[i] for i in kept)
    if pointer == 0 or 0 in shape or dtype.itemsize == 0:  # nothing there to point at
        return np.empty(shape, dtype)
    interface = {
        "version": 3,
        "data": (pointer, not writable),
        "shape": shape,
        "strides": strides,
        "typestr": f"|V{dtype.itemsize}",
    }
    return np.asarray(_Interface(interface)).view(dtype)


_strided: Any = None  # torch.strided, once there is a torch tensor
_describers: dict[type, Callable[[Any], Array]] = {}


def describe(array: Any) -> Array:
    """The description of an array.

    Raises:
        DTypeError: It is not an array, or one whose elements mpicoll cannot reach.
    """
    describer = _describers.get(type(array))
    if describer is None:
        describer = _describers[type(array)] = _find_describer(array)
    return describer(array)


def is_torch(array: Any) -> bool:
    """Whether it is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _find_describer(array: Any) -> Callable[[Any], Array]:
    if is_torch(array):
        global _strided
        torch = sys.modules["torch"]
        _strided = torch.strided
        if isinstance(array, torch._subclasses.FakeTensor):  # torch warns of a look at the address of one
            return _refuse
        plain = type(array).__torch_function__ is torch._C._disabled_torch_function_impl
        return _describe_torch if plain or type(array) is torch.Tensor else _describe_torch_subclass
    if isinstance(array, np.ndarray):
        return _describe_numpy
    if not isinstance(array, type) and hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _describe_dlpack
    raise DTypeError(
        f"expected a torch tensor, a numpy array or an object with __dlpack__, got {type(array).__qualname__}"
    )


def _describe_torch(tensor: torch.Tensor) -> Array:
    if not tensor.is_cpu or tensor.layout is not _strided or tensor.is_nested:
        raise DTypeError(_why_not(tensor))
    dtype = dtypes.from_torch(tensor.dtype)
    try:
        pointer = tensor.data_ptr()
    except RuntimeError:  # as of functional tensors
        pointer = 0
    if pointer == 0 and tensor.numel():
        _refuse(tensor)
    if tensor.is_contiguous():
        array = Array(tensor, "torch", dtype, None, pointer, tensor.numel())
    else:
        strides = tuple(step * dtype.itemsize for step in tensor.stride())
        array = Array(tensor, "torch", dtype, tensor.shape, pointer, tensor.numel(), strides)
    if tensor.is_neg() or (dtype.family == "complex" and tensor.is_conj()):
        return IndirectArray(
            array, lambda flat: _torch_copy(flat, tensor, True), lambda flat: _torch_copy(flat, tensor)
        )
    return array


def _refuse(tensor: torch.Tensor) -> NoReturn:
    remedy = "Pass tensor.to_local()" if hasattr(tensor, "to_local") else "Pass what it is made of"
    kind = type(tensor).__qualname__
    raise DTypeError(f"expected a tensor with memory of its own, got {kind}, which has none. {remedy}")


def _describe_torch_subclass(tensor: torch.Tensor) -> Array:
    # What it makes of torch's functions is for its users: here it is its memory that counts.
    with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
        array = _describe_torch(tensor)
        try:
            array._shape = tuple(tensor.shape)
        except RuntimeError as error:  # a lazy module's parameter
            kind = f"{type(tensor).__qualname__}: {error}"
            raise DTypeError(f"expected a tensor that has its elements, got {kind}") from error
        return array


def _why_not(tensor: torch.Tensor) -> str:
    if not tensor.is_cpu:
        return f"expected a tensor on the CPU, got one on {tensor.device}. Make a copy on the CPU"
    kind = "a nested one" if tensor.is_nested else f"one of layout {str(tensor.layout).removeprefix('torch.')}"
    return f"expected a dense tensor, got {kind}. Convert it with .to_dense() or .to_padded_tensor()"


def _torch_copy(flat: np.ndarray[Any, Any], tensor: torch.Tensor, read: bool = False) -> None:
    import torch

    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        if tensor.numel() == 0:
            return
        packed = torch.frombuffer(flat, dtype=tensor.dtype).view(tensor.shape)
        if read:
            packed.copy_(tensor)
        else:
            tensor.copy_(packed)


def _describe_numpy(array: np.ndarray[Any, Any]) -> Array:
    if isinstance(array, np.ma.MaskedArray):
        raise DTypeError("expected an array without a mask, got a MaskedArray. Pass array.filled()")
    dtype = dtypes.from_numpy(array.dtype)
    flags = array.flags
    strides = None if flags.c_contiguous else array.strides
    pointer = None if array.size else 0
    described = Array(array, "numpy", dtype, array.shape, pointer, array.size, strides, flags.writeable)
    if (not array.dtype.isnative or array.dtype.names is not None) and dtypes.is_foreign(array.dtype):
        return _describe_swapped(described, array)
    return described


def _describe_swapped(described: Array, array: np.ndarray[Any, Any]) -> Array:
    native = array.dtype.newbyteorder("=")

    def read(flat: np.ndarray[Any, Any]) -> None:
        np.copyto(flat.view(native).reshape(array.shape), array)

    def write(flat: np.ndarray[Any, Any]) -> None:
        np.copyto(array, flat.view(native).reshape(array.shape))

    return IndirectArray(described, read, write)


def _describe_dlpack(array: Any) -> Array:
    memory = dlpack.read(array)
    dtype = dtypes.named(memory.name, memory.itemsize)
    count = int(np.prod(memory.shape, dtype=np.int64))
    strides = memory.strides and tuple(step * dtype.itemsize for step in memory.strides)
    if strides is not None and _is_row_major(memory.shape, strides, dtype.itemsize):
        strides = None
    return Array(
        (array, memory.capsule), "dlpack", dtype, memory.shape, memory.pointer, count, strides, memory.writable
    )


def _is_row_major(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    step = itemsize
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
