"""The element types that the tests go through, as data: name, size, family, and what numpy and torch call them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_ML_DTYPES = importlib.util.find_spec("ml_dtypes") is not None

Raw = np.ndarray[Any, np.dtype[np.void]]


@dataclass(frozen=True)
class DType:
    """One element type.

    ``family`` is what a reduction does with it: ``bool``, ``int``, ``float``, ``complex``, or ``bytes`` for what can
    only be moved. ``numpy`` is an array-protocol string (or a name in ml_dtypes), ``torch`` an attribute of torch.
    """

    name: str
    size: int
    family: str
    numpy: str | None = None
    torch: str | None = None

    @property
    def raw(self) -> np.dtype[np.void]:
        """The void dtype in which the model keeps elements of this type."""
        return np.dtype((np.void, self.size))

    def numpy_dtype(self) -> np.dtype[Any]:
        """What numpy calls it."""
        assert self.numpy is not None, f"numpy has no {self.name}"
        return _numpy_dtype(self.numpy)

    def torch_dtype(self) -> Any:
        """What torch calls it; imports torch."""
        assert self.torch is not None, f"torch has no {self.name}"
        import torch

        return getattr(torch, self.torch)

    def __repr__(self) -> str:
        return f"DTYPES[{self.name!r}]"


PACKED = np.dtype([("key", "u1"), ("value", "<f8"), ("name", "S3")])
ALIGNED = np.dtype([("key", "u1"), ("value", "<f8"), ("pair", "<i2", (2,))], align=True)
_STRUCTURED = {"packed": PACKED, "aligned": ALIGNED}


@cache
def _numpy_dtype(spelling: str) -> np.dtype[Any]:
    if spelling in _STRUCTURED:
        return _STRUCTURED[spelling]
    if spelling.startswith("ml_dtypes."):
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, spelling.removeprefix("ml_dtypes.")))
        return dtype
    return np.dtype(spelling)


def _plain() -> list[DType]:
    both = [DType("bool", 1, "bool", "?", "bool")]
    both += [DType(f"uint{8 * k}", k, "int", f"u{k}", f"uint{8 * k}") for k in (1, 2, 4, 8)]
    both += [DType(f"int{8 * k}", k, "int", f"i{k}", f"int{8 * k}") for k in (1, 2, 4, 8)]
    both += [DType(f"float{8 * k}", k, "float", f"f{k}", f"float{8 * k}") for k in (2, 4, 8)]
    both += [DType(f"complex{8 * k}", k, "complex", f"c{k}", f"complex{8 * k}") for k in (8, 16)]
    return both


def _torch_only() -> list[DType]:
    halves = [DType("bfloat16", 2, "float", None, "bfloat16"), DType("complex32", 4, "complex", None, "complex32")]
    float8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
    opaque = [DType(name, 1, "bytes", None, name) for name in [*float8, "float4_e2m1fn_x2"]]
    opaque += [DType(name, 1, "bytes", None, name) for name in ("bits8", "bits1x8", "bits2x4", "bits4x2")]
    return [*halves, *opaque, DType("bits16", 2, "bytes", None, "bits16")]


def _numpy_only() -> list[DType]:
    longs = [
        ("longlong", "int", "q"),
        ("ulonglong", "int", "Q"),
        ("longdouble", "float", "g"),
        ("clongdouble", "complex", "G"),
    ]
    found = [DType(name, np.dtype(code).itemsize, family, code) for name, family, code in longs]
    moved = ["M8[ns]", "M8[D]", "m8[ms]", "S5", "U3", "V7"]
    found += [DType(code, np.dtype(code).itemsize, "bytes", code) for code in moved]
    found += [DType(name, dtype.itemsize, "bytes", name) for name, dtype in _STRUCTURED.items()]
    return found


def _ml_dtypes() -> list[DType]:
    if not HAS_ML_DTYPES:
        return []
    names = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e8m0fnu", "int4", "uint4", "float4_e2m1fn"]
    found = [DType(f"ml_dtypes.{name}", 1, "bytes", f"ml_dtypes.{name}") for name in names]
    return [DType("ml_dtypes.bfloat16", 2, "float", "ml_dtypes.bfloat16"), *found]


DTYPES = {d.name: d for d in [*_plain(), *_torch_only(), *_numpy_only(), *_ml_dtypes()]}

# What a DLPack object of each library can carry: numpy exports plain numbers, torch all but the bits types.
DLPACK_NUMPY = [d for d in DTYPES.values() if d.torch and d.numpy]
DLPACK_TORCH = [d for d in DTYPES.values() if d.torch and not d.name.startswith("bits")]


def dtypes_of(kind: str) -> list[DType]:
    """Every dtype that arrays of ``kind`` can have."""
    if kind == "torch":
        return [d for d in DTYPES.values() if d.torch]
    if kind == "numpy":
        return [d for d in DTYPES.values() if d.numpy]
    return DLPACK_NUMPY if kind == "dlpack-numpy" else DLPACK_TORCH


def reducible(kind: str) -> list[DType]:
    """The dtypes of ``kind`` that have sums."""
    return [d for d in dtypes_of(kind) if d.family != "bytes"]


@cache
def significant(dtype: DType) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Say which bytes of an element carry its value: not the padding of a record or of an x87 long double."""
    mask = np.ones(dtype.size, bool)
    if dtype.name in ("longdouble", "clongdouble") and np.finfo(np.longdouble).nmant == 63:
        mask.reshape(-1, 16)[:, 10:] = False
    elif dtype.name == "aligned":
        mask[:] = False
        for field, offset, *_ in (ALIGNED.fields or {}).values():
            mask[offset : offset + field.itemsize] = True
    return mask


def value_bytes(raw: Raw, dtype: DType) -> bytes:
    """Give the bytes that carry the values, in row-major order."""
    data = raw.tobytes()
    mask = significant(dtype)
    return data if mask.all() else np.frombuffer(data, np.uint8).reshape(-1, dtype.size)[:, mask].tobytes()
