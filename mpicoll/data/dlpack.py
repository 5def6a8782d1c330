"""The memory behind an object that has ``__dlpack__``, read from its capsule.

numpy's and torch's own ``from_dlpack`` each refuse dtypes that the other knows, and numpy's makes some outputs
read-only. The structures are those of dlpack.h (https://dmlc.github.io/dlpack/latest/c_api.html).
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from mpicoll.errors import DTypeError, mismatch

_CPU_DEVICES = {1: "CPU", 3: "pinned host memory", 11: "ROCm host memory"}
_READ_ONLY = 1
# Packages whose arrays never change, which their capsules do not say: others hold the same memory for other values.
_IMMUTABLE = ("jax", "jaxlib")

# (type code, bits, lanes) -> name.
_NAMES = {
    **{(0, bits, 1): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits, 1): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits, 1): f"float{bits}" for bits in (16, 32, 64, 128)},
    (4, 16, 1): "bfloat16",
    **{(5, bits, 1): f"complex{bits}" for bits in (32, 64, 128, 256)},
    (6, 8, 1): "bool",
    (7, 8, 1): "float8_e3m4",
    (8, 8, 1): "float8_e4m3",
    (9, 8, 1): "float8_e4m3b11fnuz",
    (10, 8, 1): "float8_e4m3fn",
    (11, 8, 1): "float8_e4m3fnuz",
    (12, 8, 1): "float8_e5m2",
    (13, 8, 1): "float8_e5m2fnuz",
    (14, 8, 1): "float8_e8m0fnu",
    (17, 4, 2): "float4_e2m1fn_x2",
}


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor),)


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


class Memory(NamedTuple):
    """What a capsule tells: strides are in elements, None for row-major; `capsule` keeps the memory alive."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    name: str
    itemsize: int
    writable: bool
    capsule: Any


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


def read(array: Any) -> Memory:
    """The memory of an object with ``__dlpack__``, which must lie where the CPU can reach it.

    The capsule is not consumed: dropping it releases the producer's hold.
    """
    try:
        device, number = map(int, array.__dlpack_device__())
    except Exception as error:  # whatever the producer raises
        raise _refused(array, "__dlpack_device__", "a device", error) from error
    if device not in _CPU_DEVICES:
        raise DTypeError(f"device: expected CPU memory, got DLPack device {device}:{number}. Copy it to the CPU first")
    try:
        try:
            capsule = array.__dlpack__(max_version=(1, 0))
        except TypeError:  # written before DLPack 1.0
            capsule = array.__dlpack__()
    except Exception as error:
        raise _refused(array, "__dlpack__", "a capsule", error) from error
    if not _is_valid(capsule, b"dltensor_versioned") and not _is_valid(capsule, b"dltensor"):
        raise _refused(array, "__dlpack__", "a capsule that has not been consumed", capsule)
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        tensor, writable = versioned.tensor, not versioned.flags & _READ_ONLY
    else:
        tensor, writable = _Managed.from_address(_get_pointer(capsule, b"dltensor")).tensor, True
    writable = writable and type(array).__module__.partition(".")[0] not in _IMMUTABLE
    name = _NAMES.get((tensor.code, tensor.bits, tensor.lanes))
    if name is None:
        raise DTypeError(
            f"dtype: expected one of DLPack's plain numbers, got type code {tensor.code} with {tensor.bits} bits and"
            f" {tensor.lanes} lanes"
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Memory(pointer, shape, strides, name, tensor.bits * tensor.lanes // 8, writable, capsule)


def _refused(array: Any, method: str, expected: str, got: object) -> DTypeError:
    kind = f"{type(got).__name__}: {got}" if isinstance(got, Exception) else repr(got)
    return DTypeError(mismatch(f"{method} of {type(array).__qualname__}", expected, kind))
