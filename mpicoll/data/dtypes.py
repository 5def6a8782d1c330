"""One table: dtype -> how it moves and how it reduces.

Every dtype moves, as the bytes that it is. A dtype reduces if it has a family here; nothing is ever reduced as bytes.
torch and numpy name their dtypes alike, so the name is what two ranks (or two kinds of array) compare.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mpicoll.errors import DTypeError

Family = Literal["bool", "int", "float", "complex", "none"]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """What mpicoll knows of a dtype. Two are the same dtype if their names are the same.

    Attributes:
        name: As torch and numpy spell it: ``float32``, ``bfloat16``, ``bool``.
        itemsize: Bytes of an element.
        carrier: The numpy dtype that an element's memory is seen as. It has the right size, and where numpy knows the
            dtype it is that dtype (``bfloat16`` is seen as ``uint16``).
        family: How it reduces; ``none`` moves only.
        wide: The dtype in which it is summed, where that is another one: float32 for the halves.
        mpi: The name of the MPI datatype that reduces it, for a dtype that MPI knows.
    """

    name: str
    itemsize: int
    carrier: np.dtype[Any]
    family: Family = "none"
    wide: str | None = None
    mpi: str | None = None

    @property
    def in_numpy(self) -> bool:
        """Whether numpy itself has the dtype."""
        return self.name in ("bool", self.carrier.name)


def _row(name: str, carrier: str, family: Family, mpi: str | None = None, wide: str | None = None) -> DType:
    dtype: np.dtype[Any] = np.dtype(carrier)
    return DType(name, dtype.itemsize, dtype, family, wide, mpi)


# complex32 as numpy can hold it: two float16.
_COMPLEX32 = np.dtype([("real", np.float16), ("imag", np.float16)])

_TABLE: dict[str, DType] = {
    row.name: row
    for row in (
        _row("bool", "uint8", "bool", "UINT8_T"),
        _row("int8", "int8", "int", "INT8_T"),
        _row("int16", "int16", "int", "INT16_T"),
        _row("int32", "int32", "int", "INT32_T"),
        _row("int64", "int64", "int", "INT64_T"),
        _row("uint8", "uint8", "int", "UINT8_T"),
        _row("uint16", "uint16", "int", "UINT16_T"),
        _row("uint32", "uint32", "int", "UINT32_T"),
        _row("uint64", "uint64", "int", "UINT64_T"),
        _row("float16", "float16", "float", wide="float32"),
        _row("bfloat16", "uint16", "float", wide="float32"),
        _row("float32", "float32", "float", "FLOAT"),
        _row("float64", "float64", "float", "DOUBLE"),
        DType("complex32", 4, _COMPLEX32, "complex", "complex64"),
        _row("complex64", "complex64", "complex", "C_FLOAT_COMPLEX"),
        _row("complex128", "complex128", "complex", "C_DOUBLE_COMPLEX"),
        # What C calls long double has another name (float96, float128) on each platform.
        _row(np.dtype(np.longdouble).name, "longdouble", "float", "LONG_DOUBLE"),
        _row(np.dtype(np.clongdouble).name, "clongdouble", "complex", "C_LONG_DOUBLE_COMPLEX"),
    )
}

_of_torch: dict[Any, DType] = {}
_of_numpy: dict[np.dtype[Any], DType] = {}
_MOST = 1000  # dtypes of numpy's that are kept: every length of a text is one


def named(name: str, itemsize: int) -> DType:
    """The dtype with this name; one that is not in the table moves only."""
    return _TABLE.get(name) or _opaque(name, itemsize)


def from_torch(dtype: Any) -> DType:
    """The description of a ``torch.dtype``."""
    known = _of_torch.get(dtype)
    if known is None:
        name = str(dtype).removeprefix("torch.")
        if name.startswith(("qint", "quint")):
            raise DTypeError(f"dtype: expected a plain dtype, got the quantised {name}. Pass tensor.int_repr()")
        known = _of_torch[dtype] = _TABLE.get(name) or _opaque(name, dtype.itemsize)
    return known


def from_numpy(dtype: np.dtype[Any]) -> DType:
    """The description of a numpy dtype; of one in foreign byte order, that of its native twin."""
    known = _of_numpy.get(dtype)
    if known is None:
        if dtype.hasobject:
            raise DTypeError(
                f"dtype: expected one whose elements are plain bytes, got {dtype}. Use an object collective"
                " (all_gather_object, broadcast_object_list, ...)"
            )
        if len(_of_numpy) >= _MOST:
            _of_numpy.clear()
        native = dtype.newbyteorder("=")
        if is_foreign(dtype) and _fields_overlap(dtype):
            raise DTypeError(
                f"dtype: expected fields with memory of their own where they are in foreign byte order, got {dtype}."
                " Pass an array in native order"
            )
        known = _of_numpy[dtype] = _TABLE.get(native.name) or _opaque(_spelling(native), dtype.itemsize)
    return known


def is_foreign(dtype: np.dtype[Any]) -> bool:
    """Whether elements, or some of their fields, are in foreign byte order."""
    # numpy's `isnative` does not look into the fields that are arrays.
    return not dtype.isnative or (dtype.names is not None and dtype != dtype.newbyteorder("="))


def _opaque(name: str, itemsize: int) -> DType:
    unsigned = f"u{itemsize}"
    carrier: np.dtype[Any] = np.dtype(unsigned if itemsize in (1, 2, 4, 8) else f"V{itemsize}")
    return DType(name, itemsize, carrier)


def _spelling(dtype: np.dtype[Any]) -> str:
    # A name of which `numpy.dtype` makes the same dtype again, in another process; equal dtypes have the same.
    if dtype.names is not None:
        return str(_fields_alone(dtype))  # a list of fields or, where they overlap or have gaps, a dict
    try:
        spelled = np.dtype(dtype.str) == dtype
    except TypeError:
        spelled = False
    return str(dtype.str if spelled else dtype.name)  # ml_dtypes' dtypes have but a name


def _fields_alone(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A structured dtype without what numpy writes into it and does not compare: that it is aligned, or a record's."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((_fields_alone(base), shape))
    if dtype.names is None or dtype.fields is None:
        return dtype
    fields = [dtype.fields[name] for name in dtype.names]
    return np.dtype(
        {
            "names": list(dtype.names),
            "formats": [_fields_alone(field[0]) for field in fields],
            "offsets": [field[1] for field in fields],
            "titles": [field[2] if len(field) > 2 else None for field in fields],
            "itemsize": dtype.itemsize,
        }
    )


def _fields_overlap(dtype: np.dtype[Any]) -> bool:
    if dtype.names is None or dtype.fields is None:
        return dtype.subdtype is not None and _fields_overlap(dtype.base)
    fields = sorted((field[1], field[1] + field[0].itemsize) for field in map(dtype.fields.__getitem__, dtype.names))
    if any(end > begin for (_, end), (begin, _) in itertools.pairwise(fields)):
        return True
    return any(_fields_overlap(dtype.fields[name][0]) for name in dtype.names)
