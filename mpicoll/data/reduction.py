"""How each pair of operation and dtype reduces: what MPI is asked, and what is done to the elements before and after.

MPI knows neither the halves nor bool, and its MIN and MAX of floats depend on the order of the ranks where there are
NaNs or zeros of both signs. So

- float16, bfloat16 and complex32 are widened, reduced in single precision and rounded once;
- bool is made 0 and 1 and reduced by the bitwise operation that means the same;
- MIN and MAX of floats reduce integers in the same memory which sort as the floats do, NaN first;
- AVG divides and PREMUL_SUM multiplies in place; integers have AVG at torch.distributed's door alone, see TORCHS_AVG;
- small integers are summed by an operation of our own where the MPI would saturate them.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from mpicoll.data import dtypes
from mpicoll.data.arrays import Array
from mpicoll.data.dtypes import DType
from mpicoll.errors import ArgumentError, DTypeError, mismatch
from mpicoll.mpi import library

Numpy = np.ndarray[Any, Any]


class ReduceOp:
    """An operation of a reduction: ``SUM AVG PRODUCT MIN MAX BAND BOR BXOR``, or ``PREMUL_SUM(factor)``.

    ``ReduceOp.PREMUL_SUM(0.5)`` multiplies each rank's elements by 0.5 before they are summed. AVG divides the sum by
    the size of the group. SUM, AVG, PRODUCT and PREMUL_SUM take floats and complex numbers, SUM and PRODUCT integers
    and bool too; MIN and MAX take all but complex numbers; the bitwise three take integers and bool.
    torch.distributed's own ``ReduceOp`` values are taken wherever one of these is.

    Example:
        >>> from mpicoll import ReduceOp
        >>> ReduceOp.PREMUL_SUM(0.5)
        ReduceOp.PREMUL_SUM(0.5)
        >>> ReduceOp.SUM == ReduceOp.SUM, ReduceOp.SUM.name
        (True, 'SUM')
    """

    __slots__ = ("_hash", "_key", "factor", "name")

    SUM: ClassVar[ReduceOp]
    AVG: ClassVar[ReduceOp]
    PRODUCT: ClassVar[ReduceOp]
    MIN: ClassVar[ReduceOp]
    MAX: ClassVar[ReduceOp]
    BAND: ClassVar[ReduceOp]
    BOR: ClassVar[ReduceOp]
    BXOR: ClassVar[ReduceOp]

    def __init__(self, name: str, factor: Any = None) -> None:
        self.name = name
        self.factor: Any = _as_number(factor) if name == "PREMUL_SUM" else None
        self._key = (name, repr(self.factor))  # -0.0 is another factor than 0.0, and a NaN the same as itself
        self._hash = hash(self._key)

    @staticmethod
    def PREMUL_SUM(factor: Any) -> ReduceOp:
        """The operation that multiplies by `factor` and then sums.

        Args:
            factor: A number, or a tensor or array of one element.

        Raises:
            ArgumentError: Anything else.
        """
        return ReduceOp("PREMUL_SUM", factor)

    def __repr__(self) -> str:
        return f"ReduceOp.{self.name}" + ("" if self.factor is None else f"({self.factor!r})")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReduceOp) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[ReduceOp], tuple[str, Any]]:
        return ReduceOp, (self.name, self.factor)


def _as_number(factor: Any) -> Any:
    """A factor as a float or complex, whose printed form is exact; as numpy's long ones where it is of these."""
    try:
        number = factor.item() if hasattr(factor, "item") else factor
        if isinstance(number, (float, complex, np.longdouble, np.clongdouble)):
            return number
        if isinstance(number, numbers.Real):
            return float(number)
        if isinstance(number, numbers.Complex):
            return complex(number)
    except Exception:  # more elements than one, or none that can be read; a number beyond all floats
        pass
    expected = "a number, or a tensor of one element"
    raise ArgumentError(mismatch("factor of PREMUL_SUM", expected, f"{factor!r} ({type(factor).__qualname__})"))


_NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
for _name in _NAMES:
    setattr(ReduceOp, _name, ReduceOp(_name))


class _TorchsAVG(ReduceOp):
    """AVG at torch.distributed's door: of integers too, rounded toward zero, as nccl does and its programs expect."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("AVG")
        self._key = ("AVG", "toward zero")
        self._hash = hash(self._key)


TORCHS_AVG = _TorchsAVG()

# The name of the MPI operation; for bool that of the bitwise one with the same meaning on 0 and 1.
_MPI_OPS = {"SUM": "SUM", "AVG": "SUM", "PREMUL_SUM": "SUM", "PRODUCT": "PROD"} | {name: name for name in _NAMES[3:]}
_BOOL_OPS = {"SUM": "BOR", "MAX": "BOR", "BOR": "BOR", "PRODUCT": "BAND", "MIN": "BAND", "BAND": "BAND", "BXOR": "BXOR"}
_ALLOWED = {
    "bool": tuple(_BOOL_OPS),
    "int": ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"),
    "float": ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "PREMUL_SUM"),
    "complex": ("SUM", "AVG", "PRODUCT", "PREMUL_SUM"),
}


@dataclass(frozen=True, slots=True)
class Reduction:
    """How one operation reduces one dtype.

    Attributes:
        dtype: The dtype of the user's elements.
        work: The numpy dtype of what MPI reduces.
        mpi_type: MPI's name for `work`.
        mpi_op: MPI's name of the operation.
        widens: Whether the elements are converted to `work`, which needs memory of its own; else `work` is a view of
            them.
        before: What is done to `work` in place before MPI, or None.
        after: What is done to `work` in place after MPI, given the group's size, or None.
        fold: The numpy function that does what MPI's operation does to two arrays.
        folds: Whether the bits depend on the order of the ranks: "never", "perhaps" (with MPI they depend on its
            algorithm) or "always" (MPI's own operation will not do, so the ranks' elements are gathered and folded in
            their order).
        plain: Whether MPI can reduce the user's elements as they are.
    """

    dtype: DType
    work: np.dtype[Any]
    mpi_type: Any
    mpi_op: Any
    widens: bool
    before: Callable[[Numpy], None] | None
    after: Callable[[Numpy, int], None] | None
    fold: Callable[..., Any]
    folds: Literal["never", "perhaps", "always"]
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        plain = not self.widens and self.before is None and self.after is None and self.folds != "always"
        object.__setattr__(self, "plain", plain)

    def load(self, array: Array, work: Numpy) -> None:
        """Fill `work` with the elements of `array` in logical order, converted."""
        if self.widens:
            view = array.view()
            _widen(view, work.reshape(view.shape), self.dtype)
        else:
            array.read_into(work.view(array.dtype.carrier))

    def store(self, work: Numpy, array: Array) -> None:
        """Write `work`, rounded, to the elements of `array`."""
        if not self.widens:
            array.write_from(work.view(array.dtype.carrier))
        elif array.contiguous:
            view = array.view()
            _narrow(work.reshape(view.shape), view, self.dtype)
        else:
            flat = np.empty(array.count, array.dtype.carrier)
            _narrow(work, flat, self.dtype)
            array.write_from(flat)


def as_op(op: Any) -> ReduceOp:
    """The ReduceOp for one of ours or one of torch.distributed's."""
    if isinstance(op, ReduceOp):
        return op
    if op is ReduceOp.PREMUL_SUM:
        raise ArgumentError("op: expected ReduceOp.PREMUL_SUM(factor), got ReduceOp.PREMUL_SUM. Give it its factor")
    name, factor = getattr(op, "name", None), None
    if type(op).__name__ == "ReduceOp":  # torch's, which holds a RedOpType and perhaps a factor
        state = op.__getstate__()
        if isinstance(state, tuple) and len(state) == 2:
            name, factor = getattr(state[0], "name", None), state[1]
    if name in _NAMES and factor is None:
        return ReduceOp(name)
    if name == "PREMUL_SUM" and factor is not None:
        return ReduceOp(name, factor)
    raise ArgumentError(mismatch("op", f"one of ReduceOp.{', '.join(_NAMES)} or PREMUL_SUM(factor)", repr(op)))


@lru_cache(maxsize=32)  # few: PREMUL_SUM may have a new factor in each call
def find(op: ReduceOp, dtype: DType) -> Reduction:
    """How `op` reduces `dtype`.

    Raises:
        DTypeError: The dtype is one that moves and does not reduce.
        ArgumentError: The operation means nothing for this dtype.
    """
    if dtype.family == "none":
        what = "is too coarse to be summed" if dtype.name.startswith("float8") else "moves and does not reduce"
        raise DTypeError(f"dtype: {dtype.name} {what}. Convert it, to float32 for instance")
    allowed = _ALLOWED[dtype.family]
    whole = op == TORCHS_AVG and dtype.family == "int"
    if op.name not in allowed and not whole:
        remedy = "Use SUM and divide" if op.name == "AVG" else "Convert the tensor or use another operation"
        raise ArgumentError(mismatch(f"op for {dtype.name}", f"one of {', '.join(allowed)}", op.name, remedy))
    if np.iscomplexobj(op.factor) and dtype.family != "complex":
        raise ArgumentError(mismatch(f"factor of PREMUL_SUM for {dtype.name}", "a real number", op.factor))
    if dtype.family == "bool":
        return _make(dtype, _BOOL_OPS[op.name], "never", before=_to_zero_and_one)
    if dtype.family == "float" and op.name in ("MIN", "MAX"):
        return _find_ordering(op, dtype)
    after = (_divide_whole if whole else _divide) if op.name == "AVG" else None
    before = _multiply_by(op.factor) if op.factor is not None else None
    return _make(dtype, _MPI_OPS[op.name], "never" if dtype.family == "int" else "perhaps", before, after)


_PIECE = 1 << 18
_FOLDS = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}


def _make(
    dtype: DType,
    mpi_op: str,
    folds: Literal["never", "perhaps", "always"],
    before: Callable[[Numpy], None] | None = None,
    after: Callable[[Numpy, int], None] | None = None,
) -> Reduction:
    wide = dtypes.named(dtype.wide, 0) if dtype.wide else dtype
    sums_integers = mpi_op == "SUM" and dtype.family == "int"
    return Reduction(
        dtype,
        wide.carrier,
        getattr(library.MPI, wide.mpi or ""),
        library.sum_operation(dtype.itemsize) if sums_integers else getattr(library.MPI, mpi_op),
        dtype.wide is not None,
        before,
        after,
        _multiply_complex if (dtype.family, mpi_op) == ("complex", "PROD") else _FOLDS[mpi_op],
        folds,
    )


# The bits of float infinities and of a quiet NaN.
_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}
_NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}


def _find_ordering(op: ReduceOp, dtype: DType) -> Reduction:
    """MIN and MAX of floats, as integers of the same size that sort as the floats do."""
    if dtype.name not in _INFINITY:  # no integer is as long as a long double
        return _make(dtype, op.name, "always")
    integer = dtypes.named(f"int{8 * dtype.itemsize}", dtype.itemsize)
    info = np.iinfo(integer.carrier)
    sentinel = info.max if op.name == "MAX" else info.min  # NaN, so that it wins over every number

    def before(work: Numpy) -> None:
        nans = (work & info.max) > _INFINITY[dtype.name]
        _flip(work, info.max)
        work[nans] = sentinel

    def after(work: Numpy, size: int) -> None:
        nans = work == sentinel
        _flip(work, info.max)
        work[nans] = _NAN[dtype.name]

    return replace(_make(integer, op.name, "never", before, after), dtype=dtype)


def _flip(work: Numpy, largest: int) -> None:
    # Negative floats sort backwards by their bits: turn the bits below the sign over. It undoes itself.
    work ^= (work >> (8 * work.itemsize - 1)) & work.dtype.type(largest)


def _multiply_complex(one: Numpy, other: Numpy, out: Numpy) -> None:
    # By parts: numpy's own product rounds otherwise for one element than for many, where it uses vector instructions.
    real = one.real * other.real - one.imag * other.imag
    imag = one.real * other.imag + one.imag * other.real
    out.real, out.imag = real, imag


def _to_zero_and_one(work: Numpy) -> None:
    np.not_equal(work, 0, out=work.view(np.bool_))


def _divide(work: Numpy, size: int) -> None:
    np.true_divide(work, work.dtype.type(size), out=work)


def _divide_whole(work: Numpy, size: int) -> None:
    # In 64 bits, since an int8 may be smaller than the group is large; by pieces, so that this needs little memory.
    number = np.array(size, work.dtype if work.itemsize == 8 else np.int64)
    for first in range(0, work.size, _PIECE):
        part = work[first : first + _PIECE]
        # Less the remainder, which has the sign of the sum: numpy's division rounds down.
        np.copyto(part, (part - np.fmod(part, number)) // number, casting="unsafe")


def _multiply_by(factor: Any) -> Callable[[Numpy], None]:
    def multiply(work: Numpy) -> None:
        np.multiply(work, work.dtype.type(factor), out=work)

    return multiply


def _widen(narrow: Numpy, wide: Numpy, dtype: DType) -> None:
    if dtype.name == "bfloat16":  # the upper half of a float32
        np.left_shift(narrow, np.uint32(16), out=wide.view(np.uint32), dtype=np.uint32)
    elif dtype.name == "complex32":
        wide.real = narrow["real"]
        wide.imag = narrow["imag"]
    else:
        np.copyto(wide, narrow)


def _narrow(wide: Numpy, narrow: Numpy, dtype: DType) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.name == "bfloat16":
            _round_to_bfloat16(wide, narrow)
        elif dtype.name == "complex32":
            narrow["real"] = wide.real
            narrow["imag"] = wide.imag
        else:
            np.copyto(narrow, wide, casting="same_kind")
            if dtype.name == "float16":
                narrow[np.isnan(wide)] = np.nan  # the same NaN on every rank


def _round_to_bfloat16(wide: Numpy, narrow: Numpy) -> None:
    # To the nearest, ties to even: add half a unit of the last place that stays, less one where that place is even.
    bits = wide.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    np.copyto(narrow, rounded, casting="unsafe")
    narrow[np.isnan(wide)] = 0x7FC0
