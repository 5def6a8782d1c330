"""Arrays of every kind and layout whose whole storage is watched: what a call must not touch is compared too.

`make` puts elements into a storage in a given layout, between guard elements of noise, and hands out the torch tensor,
numpy array or DLPack object over it. `Placed.check` compares the storage byte for byte with what it must be afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tests.reference.dtypes import HAS_TORCH, DType, Raw, value_bytes
from tests.reference.inputs import noise
from tests.reference.reduction import canonical

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Shape = tuple[int, ...]

KINDS = ("torch", "numpy", "dlpack-numpy", "dlpack-torch") if HAS_TORCH else ("numpy", "dlpack-numpy")
GUARD = 3  # elements of noise before and after


class DLPackOnly:
    """An array of which nothing is known but that it speaks DLPack."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@dataclass(frozen=True)
class Plan:
    """Where the elements lie in the storage, in bytes."""

    strides: Shape
    offset: int
    nbytes: int


def _row_major(shape: Shape, size: int) -> Shape:
    strides, step = [], size
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def _plan(shape: Shape, size: int, strides: Shape) -> Plan:
    """Leave room for guards around the lowest and the highest address that the strides reach."""
    low = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True) if n)
    high = sum(max(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True) if n)
    guard = GUARD * size
    total = high - low + size + 2 * guard
    return Plan(strides, guard - low, total + -total % size)


def _contiguous(shape: Shape, size: int) -> Plan:
    """The storage and nothing else, as most arrays are."""
    return Plan(_row_major(shape, size), 0, max(prod(shape), 1) * size)


def _offset(shape: Shape, size: int) -> Plan:
    return _plan(shape, size, _row_major(shape, size))


def _transposed(shape: Shape, size: int) -> Plan:
    """x.T of a row-major x: also Fortran order."""
    return _plan(shape, size, tuple(reversed(_row_major(tuple(reversed(shape)), size))))


def _stepped(shape: Shape, size: int) -> Plan:
    """x[::2] in every dimension."""
    strides = _row_major(tuple(2 * n for n in shape), size)
    return _plan(shape, size, tuple(2 * s for s in strides))


def _column(shape: Shape, size: int) -> Plan:
    """x[..., 1] of an x with five columns."""
    return _plan(shape, size, tuple(5 * s for s in _row_major(shape, size)))


def _negative(shape: Shape, size: int) -> Plan:
    """x[::-1] in every dimension."""
    return _plan(shape, size, tuple(-s for s in _row_major(shape, size)))


def _channels_last(shape: Shape, size: int) -> Plan:
    n, c, h, w = shape
    strides = _row_major((n, h, w, c), size)
    return _plan(shape, size, (strides[0], strides[3], strides[1], strides[2]))


def _field(shape: Shape, size: int) -> Plan:
    """A field of a packed record with a key of one byte before it: no address is aligned."""
    strides = tuple(s // size * (size + 1) for s in _row_major(shape, size))
    return Plan(strides, 1, prod(shape) * (size + 1) + size)


def _expanded(shape: Shape, size: int) -> Plan:
    """x.expand(...): the first dimension repeats one row."""
    return _plan(shape, size, (0, *_row_major(shape, size)[1:]))


def _doubled(shape: Shape, size: int) -> Plan:
    """The imaginary half of complex elements."""
    strides = tuple(2 * s for s in _row_major(shape, size))
    count = prod(shape) + 2 * GUARD
    return Plan(strides, 2 * GUARD * size + size, 2 * count * size)


_PLANS: dict[str, Callable[[Shape, int], Plan]] = {
    "contiguous": _contiguous,
    "offset": _offset,
    "transposed": _transposed,
    "stepped": _stepped,
    "column": _column,
    "channels_last": _channels_last,
    "negative": _negative,
    "field": _field,
    "expanded": _expanded,
    "requires_grad": _offset,
    "conj": _offset,
    "neg": _doubled,
    "swapped": _offset,
}
LAYOUTS = tuple(_PLANS)

# Every layout with shapes on which it does something of its own; zero-size, 0-dim and one-element arrays among them.
CASES: tuple[tuple[str, Shape], ...] = (
    ("contiguous", (3, 4)),
    ("contiguous", ()),
    ("contiguous", (0,)),
    ("contiguous", (1, 0, 2)),
    ("contiguous", (1, 1, 1)),
    ("offset", (5,)),
    ("offset", ()),
    ("transposed", (3, 4)),
    ("transposed", (2, 3, 2)),
    ("transposed", (3, 0)),
    ("stepped", (5,)),
    ("stepped", (2, 3)),
    ("column", (4,)),
    ("column", (1,)),
    ("channels_last", (2, 3, 2, 2)),
    ("negative", (5,)),
    ("negative", (2, 3)),
    ("field", (5,)),
    ("requires_grad", (2, 3)),
    ("conj", (2, 3)),
    ("neg", (2, 3)),
    ("swapped", (2, 3)),
    ("expanded", (3,)),
    ("expanded", (2, 3)),
)

_COMPLEX_OF = {"float32": "complex64", "float64": "complex128"}


def _width(dtype: DType) -> int:
    """The bytes that change places when the byte order does; 0 where that is no single number."""
    if dtype.family != "bytes":
        width = dtype.size // 2 if dtype.family == "complex" else dtype.size
        return 0 if dtype.name.startswith("ml_dtypes") else width
    return {"U3": 4, "M8[ns]": 8, "M8[D]": 8, "m8[ms]": 8}.get(dtype.name, 0)


def applies(layout: str, kind: str, dtype: DType, shape: Shape = (1, 1, 1, 1), output: bool = False) -> bool:
    """Say whether arrays of this kind and dtype can have this layout."""
    is_torch = kind == "torch"
    if layout == "channels_last":
        return len(shape) == 4
    if layout == "expanded":
        return not output and len(shape) > 0
    if layout == "negative":
        return kind in ("numpy", "dlpack-numpy")
    if layout == "field":  # DLPack's strides count elements
        return kind == "numpy"
    if layout == "requires_grad":
        return is_torch and dtype.family in ("float", "complex")
    if layout == "swapped":
        return kind == "numpy" and _width(dtype) > 1
    if layout == "conj":
        return is_torch and dtype.name in ("complex64", "complex128")
    return layout != "neg" or (is_torch and dtype.name in _COMPLEX_OF)


@dataclass
class Placed:
    """An array in its storage."""

    array: Any  # what the call is given
    dtype: DType
    layout: str
    shape: Shape
    plan: Plan
    storage: Bytes
    before: Bytes

    def elements(self, storage: Bytes) -> Raw:
        """Give the elements in logical order, as a view of (a copy of) the storage."""
        view: Raw = np.ndarray(self.shape, self.dtype.raw, storage.data, self.plan.offset, self.plan.strides)
        return view

    def read(self) -> Raw:
        """Give a row-major copy of the elements as the array's owner sees them."""
        return _encoded(self.elements(self.storage), self)

    def check(self, expected: Raw | None, what: str, rounded: bool = False) -> str | None:
        """Compare the whole storage with what it was and, where given, the elements that have been written.

        Args:
            expected: The elements that must be there now, or None if the array must be as it was made.
            what: What to call the array in the complaint.
            rounded: The sign of a zero and the payload of a NaN may differ.

        Returns:
            A complaint, or None if all is well.
        """
        if expected is None:
            return None if np.array_equal(self.storage, self.before) else f"{what}: changed, and was an input"
        got = self.read()
        if not _same(got, expected, self.dtype, False) and not (rounded and _same(got, expected, self.dtype, True)):
            return f"{what}: expected {show(expected, self.dtype)}, got {show(got, self.dtype)}"
        guards = self.storage.copy()
        self.elements(guards)[...] = self.elements(self.before)
        return None if np.array_equal(guards, self.before) else f"{what}: elements outside the view changed"


def _same(got: Raw, expected: Raw, dtype: DType, rounded: bool) -> bool:
    if rounded:
        got, expected = canonical(got, dtype), canonical(expected, dtype)
    return value_bytes(got, dtype) == value_bytes(expected, dtype)


def show(raw: Raw, dtype: DType) -> str:
    """Print elements as numbers where numpy knows the dtype, else as bytes."""
    if dtype.family != "bytes" and dtype.numpy is not None:
        return repr(np.frombuffer(raw.tobytes(), dtype.numpy_dtype()).reshape(raw.shape).tolist())
    return repr([element.tobytes().hex() for element in raw.reshape(-1)])


def _encoded(raw: Raw, placed: Placed) -> Raw:
    """Turn elements into what lies in the storage, and back: conj and neg bits flip signs, byte order is swapped."""
    copy = np.array(raw, order="C", copy=True)
    octets, size = copy.reshape(-1).view(np.uint8), placed.dtype.size
    if placed.layout in ("conj", "neg"):
        octets[size - 1 :: size] ^= 0x80
    elif placed.layout == "swapped":
        numbers = octets.reshape(-1, _width(placed.dtype))
        numbers[...] = numbers[:, ::-1].copy()
    return copy


def make(
    kind: str, layout: str, dtype: DType, shape: Shape, elements: Raw | None, *key: int, written: bool = True
) -> Placed:
    """Make an array with these elements (None: noise) in this layout, or row-major where it cannot be.

    Args:
        kind: One of `KINDS`.
        layout: One of `LAYOUTS`.
        dtype: The element type.
        shape: The shape.
        elements: What it holds.
        key: What the noise around (or in) it depends on.
        written: Whether the call writes to it.
    """
    if not applies(layout, kind, dtype, shape, output=written):
        layout = "contiguous"
    plan = _PLANS[layout](shape, dtype.size)
    fill = _noise(dtype, plan.nbytes, *key)
    if kind in ("torch", "dlpack-torch"):
        tensor, storage = _torch_storage(fill)
        array = _torch_view(tensor, layout, dtype, shape, plan)
    else:
        storage = fill
        numpy_dtype = dtype.numpy_dtype().newbyteorder("S" if layout == "swapped" else "=")
        array = np.ndarray(shape, numpy_dtype, storage.data, plan.offset, plan.strides)
    placed = Placed(
        DLPackOnly(array) if kind.startswith("dlpack") else array, dtype, layout, shape, plan, storage, fill
    )
    if elements is not None:
        placed.elements(storage)[...] = _encoded(elements, placed)
    placed.before = storage.copy()
    return placed


def _noise(dtype: DType, nbytes: int, *key: int) -> Bytes:
    fill = noise(nbytes, *key)
    if dtype.family == "bool":
        fill &= 1
    return fill


def _torch_storage(fill: Bytes) -> tuple[Any, Bytes]:
    torch = sys.modules.get("torch")
    if torch is None:
        import torch  # type: ignore[no-redef, unused-ignore]
    tensor = torch.empty(len(fill), dtype=torch.uint8)  # type: ignore[union-attr, unused-ignore]
    storage: Bytes = tensor.numpy()
    storage[...] = fill
    return tensor, storage


def _torch_view(tensor: Any, layout: str, dtype: DType, shape: Shape, plan: Plan) -> Any:
    if layout == "neg":
        parent = DType(_COMPLEX_OF[dtype.name], 2 * dtype.size, "complex", None, _COMPLEX_OF[dtype.name]).torch_dtype()
        steps = [stride // dtype.size // 2 for stride in plan.strides]
        return tensor.view(parent).as_strided(shape, steps, plan.offset // dtype.size // 2).conj().imag
    steps = [stride // dtype.size for stride in plan.strides]
    view = tensor.view(dtype.torch_dtype()).as_strided(shape, steps, plan.offset // dtype.size)
    if layout == "requires_grad":
        return view.requires_grad_()
    return view.conj() if layout == "conj" else view
