"""What a reduction is: the parts of all ranks in, one array out. Plain numpy, nothing from mpicoll."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from .dtypes import DType, Raw

Array = np.ndarray[Any, np.dtype[Any]]

OPS = {
    "bool": ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"),
    "int": ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"),
    "float": ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "PREMUL_SUM"),
    "complex": ("SUM", "AVG", "PRODUCT", "PREMUL_SUM"),
    "bytes": (),
}
ALL_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
FACTOR = -0.5  # a power of two: multiplying by it rounds nothing

_FOLDS = {
    "SUM": np.add,
    "AVG": np.add,
    "PREMUL_SUM": np.add,
    "PRODUCT": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}
_BOOL_FOLDS = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}
_BFLOAT16 = ("bfloat16", "ml_dtypes.bfloat16")


def bfloat16_to_float32(bits: Array) -> Array:
    """Widen: bfloat16 is the upper half of a float32."""
    wide: Array = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return wide


def float32_to_bfloat16(values: Array) -> Array:
    """Round to the nearest bfloat16, ties to even, NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).reshape(np.shape(values))
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    with np.errstate(over="ignore"):
        rounded = (bits + half) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x0040)
    narrow: Array = np.where(np.isnan(values), quiet, rounded).astype(np.uint16)
    return narrow


def widen(raw: Raw, dtype: DType) -> Array:
    """Give the numbers in the type in which they are added up: float32 for the halves, else their own."""
    if dtype.name in _BFLOAT16:
        return bfloat16_to_float32(raw.view(np.uint16))
    if dtype.name == "float16":
        return raw.view(np.float16).astype(np.float32)
    if dtype.name == "complex32":
        pairs: Array = np.ascontiguousarray(raw).reshape(-1).view(np.float16).astype(np.float32)
        numbers: Array = pairs.view(np.complex64).reshape(raw.shape)
        return numbers
    return raw.view(dtype.numpy_dtype())


def narrow(values: Array, dtype: DType) -> Raw:
    """Round once, back to the dtype, and give the bytes."""
    values = np.asarray(values)
    with np.errstate(over="ignore"):
        if dtype.name in _BFLOAT16:
            return float32_to_bfloat16(values).view(dtype.raw)
        if dtype.name == "float16":
            return values.astype(np.float16).view(dtype.raw)
        if dtype.name == "complex32":
            pairs = np.ascontiguousarray(values, np.complex64).reshape(-1).view(np.float32).astype(np.float16)
            return pairs.view(dtype.raw).reshape(values.shape)
    return np.ascontiguousarray(values, dtype.numpy_dtype()).reshape(values.shape).view(dtype.raw)


def reduced(parts: Sequence[Raw], dtype: DType, op: str, factor: float = FACTOR) -> Raw:
    """Reduce the parts of all ranks of a group.

    Integers wrap; bool has SUM = MAX = BOR, PRODUCT = MIN = BAND; halves are added in float32 and rounded once; AVG
    divides by the number of parts; MIN and MAX give NaN where any part is NaN.
    """
    numbers = [widen(part, dtype) for part in parts]
    if dtype.family == "bool":
        op = _BOOL_FOLDS.get(op, op)
    if op == "PREMUL_SUM":
        numbers = [number * number.dtype.type(factor) for number in numbers]
    with np.errstate(all="ignore"):
        total = reduce(_FOLDS[op], numbers)
        if op == "AVG":
            total = _divided(total, len(parts))
    return narrow(total, dtype)


def _divided(total: Array, count: int) -> Array:
    """Divide by a count, part by part where complex: numpy's complex division multiplies by the reciprocal."""
    total = np.asarray(total)
    if not np.iscomplexobj(total):
        return np.asarray(total / total.dtype.type(count))
    real = total.real.dtype.type
    result = np.empty_like(total)
    result.real, result.imag = total.real / real(count), total.imag / real(count)
    return result


def canonical(raw: Raw, dtype: DType) -> Raw:
    """Map what equal numbers may differ in to one form: the payload of a NaN and the sign of a zero."""
    if dtype.family not in ("float", "complex"):
        return raw
    numbers = np.array(widen(raw, dtype), copy=True)
    parts = [numbers.real, numbers.imag] if dtype.family == "complex" else [numbers]
    for part in parts:
        part[np.isnan(part)] = np.nan
        part[part == 0] = 0
    return narrow(numbers, dtype)
