"""What each rank brings: pure functions of (seed, rank, index), so that any rank can compute every rank's part."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .dtypes import DType, Raw
from .reduction import narrow

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]

_POOL = np.random.default_rng(20).integers(0, 256, 1 << 16, np.uint8)
# Significand bits and exponents for which a sum of four fits into the 24 bits of a float32 whatever its order, while
# the half itself cannot hold it: only adding up in float32 and rounding once gives the right bits.
_HALVES = {"float16": (11, -2, 8), "bfloat16": (8, -4, 8), "ml_dtypes.bfloat16": (8, -4, 8)}


def noise(count: int, *key: int) -> Array:
    """Give ``count`` arbitrary bytes that depend on the key; cheap, for there are many small arrays."""
    if count > len(_POOL) // 2:
        generated: Array = np.random.default_rng(key).integers(0, 256, count, np.uint8)
        return generated
    start = sum(k * prime for k, prime in zip(key, (1000003, 7919, 104729), strict=False)) % (len(_POOL) - count)
    part: Array = _POOL[start : start + count].copy()
    return part


def arbitrary(dtype: DType, shape: Shape, *key: int, tame: bool = False) -> Raw:
    """Give elements of any bit pattern that the dtype allows; ``tame`` leaves out infinities and NaNs."""
    count = prod(shape)
    if dtype.name in ("longdouble", "clongdouble"):  # arbitrary bytes are no x87 number
        thirds = noise(8 * count * dtype.size // 16, *key).view(np.int64).astype(np.longdouble) / 3
        return thirds.view(dtype.raw).reshape(shape)
    if dtype.name == "U3":
        return (noise(3 * count, *key).astype(np.uint32) + 1).view(dtype.raw).reshape(shape)
    data = noise(dtype.size * count, *key)
    if dtype.family == "bool":
        data &= 1
    if tame and dtype.family in ("float", "complex"):
        width = dtype.size // 2 if dtype.family == "complex" else dtype.size
        data[width - 1 :: width] &= 0xBF
    return data.view(dtype.raw).reshape(shape)


def numbers(dtype: DType, op: str, ranks: int, shape: Shape, *key: int) -> Raw:
    """Give one rank's part of a reduction over ``ranks``, such that every order of the ranks gives the same bits."""
    if dtype.family in ("bool", "int"):
        return arbitrary(dtype, shape, *key)
    rng = np.random.default_rng(key)
    if dtype.family == "complex":
        real, imag = (_complex_parts(rng, op, ranks, shape) for _ in range(2))
        wide = np.longdouble if dtype.name == "clongdouble" else np.float64
        values = np.empty(shape, np.result_type(wide, np.complex64))
        values.real, values.imag = real, imag
        return narrow(values, dtype)
    if op == "PRODUCT":
        return narrow(rng.choice([0.5, 1.0, 1.25, 1.5, 2.0, 3.0, -1.0, -1.75], shape).astype(np.float32), dtype)
    values = _real_parts(rng, dtype, shape)
    if op in ("MIN", "MAX"):
        strange = rng.choice(np.array([0, 0, 0, 0, 0, 0, 1, 2, 3]), shape)
        values = np.select([strange == 1, strange == 2, strange == 3], [np.nan, np.inf, -np.inf], values)
    return narrow(np.asarray(values, np.float32), dtype)


def _complex_parts(rng: np.random.Generator, op: str, ranks: int, shape: Shape) -> Array:
    if op == "PRODUCT":
        return rng.choice([0.0, 0.5, 1.0, 2.0, -1.0], shape)
    step = ranks if op == "AVG" else 1  # whether AVG divides or multiplies by the reciprocal is open for complex
    return rng.integers(-64, 65, shape) * step / 8


def _real_parts(rng: np.random.Generator, dtype: DType, shape: Shape) -> Array:
    if dtype.name not in _HALVES:
        return rng.integers(-512, 513, shape) / 8
    bits, low, high = _HALVES[dtype.name]
    significand = rng.integers(1 << (bits - 1), 1 << bits, shape) * rng.choice([-1, 1], shape)
    return np.asarray(np.ldexp(significand.astype(np.float64), rng.integers(low, high + 1, shape) - bits + 1))
