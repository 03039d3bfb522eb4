"""A vector of 16 floats for Numba, and what the kernels do with it, in LLVM's instructions.

LLVM makes of it one register of AVX-512, two of AVX2 or four of NEON. Each operation rounds alike on all of
them, and sums have one order, so results are equal. NumPy has no bfloat16: its arrays are uint16, loading one
widens it, and storing rounds to nearest even.
"""

import math
import operator
import platform

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model
from numba.np.arrayobj import populate_array

LANES = 16
FLOAT, INT32, INT64, BYTES = ir.FloatType(), ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
FLOATS, INTS, HALVES = (ir.VectorType(kind, LANES) for kind in (FLOAT, INT32, ir.IntType(16)))


class Vector(types.Type):
    """The type of a vector, as Numba's compiler knows it."""

    def __init__(self):
        super().__init__(name="Vector")


vector = Vector()


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    """How LLVM holds it."""

    def __init__(self, manager, kind):
        super().__init__(manager, kind, FLOATS)


def _add_operator(function, instruction):
    class Operator(ConcreteTemplate):
        cases = (signature(vector, vector, vector),)

    infer_global(function)(Operator)

    def lower(context, builder, kinds, values):
        return getattr(builder, instruction)(*values)

    lower_builtin(function, vector, vector)(lower)


for _function, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _add_operator(_function, _instruction)


def _constant(value, kind=FLOATS):
    return ir.Constant(kind, [value] * kind.count)


def _shuffle(builder, first, second, lanes):
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(INT32, len(lanes)), lanes))


def _repeat(builder, value):
    undefined = ir.Constant(FLOATS, ir.Undefined)
    return _shuffle(builder, builder.insert_element(undefined, value, INT32(0)), undefined, [0] * LANES)


def _call(builder, name, result, *values):
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)


def _multiply_add(builder, first, second, third):
    return _call(builder, "llvm.fma.v16f32", FLOATS, first, second, third)


def _address(context, builder, kind, array, index):
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


def _load(builder, address, dtype):
    if dtype == types.float32:
        loaded = builder.load(builder.bitcast(address, FLOATS.as_pointer()))
        loaded.align = 4
        return loaded
    halves = builder.load(builder.bitcast(address, HALVES.as_pointer()))
    halves.align = 2
    return builder.bitcast(builder.shl(builder.zext(halves, INTS), _constant(16, INTS)), FLOATS)


def _store(builder, address, dtype, value):
    align = 4
    if dtype != types.float32:
        bits, sixteen = builder.bitcast(value, INTS), _constant(16, INTS)
        odd = builder.and_(builder.lshr(bits, sixteen), _constant(1, INTS))
        rounded = builder.add(builder.add(bits, _constant(0x7FFF, INTS)), odd)
        value, align = builder.trunc(builder.lshr(rounded, sixteen), HALVES), 2
    builder.store(value, builder.bitcast(address, value.type.as_pointer())).align = align


@intrinsic
def array_at(typing, address, like):
    """The memory at an address, as an array of the type of ``like``, of unknown length."""

    def generate(context, builder, kinds, values):
        kind = kinds.return_type
        array = context.make_array(kind)(context, builder)
        item = context.get_data_type(kind.dtype)
        size = INT64(context.get_abi_sizeof(item))
        data = builder.inttoptr(values[0], item.as_pointer())
        populate_array(array, data=data, shape=[INT64(0)], strides=[size], itemsize=size, meminfo=None)
        return array._getvalue()

    return types.Array(like.dtype, 1, "C")(types.int64, like), generate


@intrinsic
def load(typing, array, index):
    """16 elements from ``index`` on."""

    def generate(context, builder, kinds, values):
        return _load(builder, _address(context, builder, kinds.args[0], *values), kinds.args[0].dtype)

    return vector(array, types.int64), generate


@intrinsic
def store(typing, array, index, value):
    """The contrary of ``load``."""

    def generate(context, builder, kinds, values):
        address = _address(context, builder, kinds.args[0], *values[:2])
        _store(builder, address, kinds.args[0].dtype, values[2])
        return context.get_dummy_value()

    return types.void(array, types.int64, vector), generate


@intrinsic
def repeat(typing, value):
    """A vector of one float."""
    return vector(types.float32), lambda context, builder, kinds, values: _repeat(builder, *values)


@intrinsic
def multiply_add(typing, first, second, third):
    """first · second + third, rounded once."""

    def generate(context, builder, kinds, values):
        return _multiply_add(builder, *values)

    return vector(vector, vector, vector), generate


def _largest(builder, first, second):
    return builder.select(builder.fcmp_ordered(">", first, second), first, second)


@intrinsic
def maximum(typing, first, second):
    """The larger one of each lane."""
    return vector(vector, vector), lambda context, builder, kinds, values: _largest(builder, *values)


@intrinsic
def swap_pairs(typing, value):
    """Each two neighbours exchanged."""

    def generate(context, builder, kinds, values):
        return _shuffle(builder, values[0], values[0], [lane ^ 1 for lane in range(LANES)])

    return vector(vector), generate


def _reduce(builder, value, operation):
    """By halves: the same order on every CPU."""
    width = LANES
    while width > 1:
        width //= 2
        low, high = (
            _shuffle(builder, value, value, list(range(first, first + width))) for first in (0, width)
        )
        value = operation(low, high)
    return builder.extract_element(value, INT32(0))


@intrinsic
def sum_of(typing, value):
    """In one order on every CPU."""

    def generate(context, builder, kinds, values):
        return _reduce(builder, values[0], builder.fadd)

    return types.float32(vector), generate


@intrinsic
def max_of(typing, value):
    """The largest lane."""

    def generate(context, builder, kinds, values):
        def larger(first, second):
            return _largest(builder, first, second)

        return _reduce(builder, values[0], larger)

    return types.float32(vector), generate


EXP_COEFFICIENTS = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)
LN_2_HIGH = 0.693359375
"""The logarithm of 2 in so few digits that a whole multiple of it is exact; the rest is ``LN_2_LOW``."""
LN_2_LOW = math.log(2) - LN_2_HIGH


@intrinsic
def exp(typing, value):
    """Of numbers in ±87: the power of two in the exponent's bits, the rest by its series."""

    def generate(context, builder, kinds, values):
        low, high = _constant(-87.0), _constant(87.0)
        x = _largest(builder, values[0], low)
        x = builder.select(builder.fcmp_ordered("<", x, high), x, high)
        power = _call(builder, "llvm.rint.v16f32", FLOATS, builder.fmul(x, _constant(1 / math.log(2))))
        rest = _multiply_add(builder, power, _constant(-LN_2_HIGH), x)
        rest = _multiply_add(builder, power, _constant(-LN_2_LOW), rest)
        result = _constant(EXP_COEFFICIENTS[0])
        for coefficient in EXP_COEFFICIENTS[1:]:
            result = _multiply_add(builder, result, rest, _constant(coefficient))
        exponent = builder.add(builder.fptosi(power, INTS), _constant(127, INTS))
        return builder.fmul(result, builder.bitcast(builder.shl(exponent, _constant(23, INTS)), FLOATS))

    return vector(vector), generate


@intrinsic
def zero_below(typing, value, x, bound):
    """``value`` where ``x`` is at least ``bound``, else zero."""

    def generate(context, builder, kinds, values):
        is_kept = builder.fcmp_ordered(">=", values[1], _repeat(builder, values[2]))
        return builder.select(is_kept, values[0], _constant(0.0))

    return vector(vector, vector, types.float32), generate


@intrinsic(prefer_literal=True)
def prefetch(typing, array, index, level):
    """Have the cache of this level (3: the nearest) fetch the line of an element."""

    def generate(context, builder, kinds, values):
        address = builder.bitcast(_address(context, builder, kinds.args[0], *values[:2]), BYTES)
        kind = ir.FunctionType(ir.VoidType(), [BYTES, INT32, INT32, INT32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, INT32(0), INT32(level.literal_value), INT32(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64, level), generate


# Tuples of vectors stay in registers. A row's vectors follow each other.


def _row_start(builder, index, stride, number):
    return builder.add(index, builder.mul(stride, INT64(number)))


@intrinsic(prefer_literal=True)
def zeros(typing, count):
    """A tuple of ``count`` vectors."""
    kind = types.UniTuple(vector, count.literal_value)

    def generate(context, builder, kinds, values):
        return ir.Constant(ir.ArrayType(FLOATS, kind.count), [_constant(0.0)] * kind.count)

    return kind(count), generate


@intrinsic(prefer_literal=True)
def load_rows(typing, array, index, stride, num_rows, width):
    """``width`` vectors of each row; rows are ``stride`` elements apart."""
    per_row, dtype = width.literal_value, array.dtype
    kind = types.UniTuple(vector, num_rows.literal_value * per_row)

    def generate(context, builder, kinds, values):
        loaded = ir.Constant(ir.ArrayType(FLOATS, kind.count), ir.Undefined)
        for number in range(kind.count):
            row, column = divmod(number, per_row)
            at = builder.add(_row_start(builder, values[1], values[2], row), INT64(LANES * column))
            part = _load(builder, _address(context, builder, kinds.args[0], values[0], at), dtype)
            loaded = builder.insert_value(loaded, part, number)
        return loaded

    return kind(array, types.int64, types.int64, num_rows, width), generate


@intrinsic(prefer_literal=True)
def store_rows(typing, vectors, array, index, stride, width):
    """The contrary of ``load_rows``."""
    per_row = width.literal_value

    def generate(context, builder, kinds, values):
        for number in range(vectors.count):
            row, column = divmod(number, per_row)
            at = builder.add(_row_start(builder, values[2], values[3], row), INT64(LANES * column))
            address = _address(context, builder, kinds.args[1], values[1], at)
            _store(builder, address, array.dtype, builder.extract_value(values[0], number))
        return context.get_dummy_value()

    return types.void(vectors, array, types.int64, types.int64, width), generate


@intrinsic
def add_outer(typing, sums, array, index, stride, weights):
    """Add to each row's sums one element of the row, times ``weights``; rows are ``stride`` apart."""

    def generate(context, builder, kinds, values):
        sums, array, index, stride, weights = values
        width = kinds.args[4].count
        parts = [builder.extract_value(weights, number) for number in range(width)]
        for row in range(kinds.args[0].count // width):
            at = _row_start(builder, index, stride, row)
            factor = _repeat(builder, builder.load(_address(context, builder, kinds.args[1], array, at)))
            for number, part in enumerate(parts, row * width):
                added = _multiply_add(builder, factor, part, builder.extract_value(sums, number))
                sums = builder.insert_value(sums, added, number)
        return sums

    return sums(sums, array, types.int64, types.int64, weights), generate


@intrinsic
def transpose(typing, array, index, stride, out, out_index, out_stride):
    """16 rows of 16 elements become 16 rows of ``out``, whose row is a column."""

    def generate(context, builder, kinds, values):
        array, index, stride, out, out_index, out_stride = values
        rows = []
        for number in range(LANES):
            at = _row_start(builder, index, stride, number)
            address = _address(context, builder, kinds.args[0], array, at)
            rows.append(_load(builder, address, kinds.args[0].dtype))
        size = LANES // 2
        while size:  # exchange blocks of so many rows and columns
            kept = [lane if not lane & size else LANES + lane - size for lane in range(LANES)]
            moved = [lane + size if not lane & size else LANES + lane for lane in range(LANES)]
            for first in range(LANES):
                if not first & size:
                    pair = rows[first], rows[first + size]
                    rows[first] = _shuffle(builder, *pair, kept)
                    rows[first + size] = _shuffle(builder, *pair, moved)
            size //= 2
        for number, row in enumerate(rows):
            at = _row_start(builder, out_index, out_stride, number)
            _store(builder, _address(context, builder, kinds.args[3], out, at), types.float32, row)
        return context.get_dummy_value()

    kinds = array, types.int64, types.int64, out, types.int64, types.int64
    return types.void(*kinds), generate


@intrinsic
def sums_of_four(typing, first, second, third, fourth, array, index):
    """Store the sums of four vectors, in an order that one instruction for all of them allows."""

    def generate(context, builder, kinds, values):
        first, second, third, fourth, array, index = values
        pairs = _added_in_pairs(builder, first, third), _added_in_pairs(builder, second, fourth)
        value = _added_in_pairs(builder, *pairs)
        lanes = LANES
        while lanes > 4:
            lanes //= 2
            low, high = (_shuffle(builder, value, value, list(range(at, at + lanes))) for at in (0, lanes))
            value = builder.fadd(low, high)
        address = _address(context, builder, kinds.args[4], array, index)
        builder.store(value, builder.bitcast(address, value.type.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(vector, vector, vector, vector, array, types.int64), generate


def _added_in_pairs(builder, first, second):
    """Sums of half the lanes of each: in every four lanes, two of each vector."""
    blocks = range(0, LANES, 4)
    low = [lane for at in blocks for lane in (at, LANES + at, at + 1, LANES + at + 1)]
    high = [lane + 2 for lane in low]
    return builder.fadd(_shuffle(builder, first, second, low), _shuffle(builder, first, second, high))


# Threads share these.


@intrinsic
def atomic_add(typing, array, index, value):
    """The element before the addition."""

    def generate(context, builder, kinds, values):
        address = _address(context, builder, kinds.args[0], *values[:2])
        return builder.atomic_rmw("add", address, values[2], "acq_rel")

    return types.int64(array, types.int64, types.int64), generate


@intrinsic
def atomic_load(typing, array, index):
    """What other threads stored last."""

    def generate(context, builder, kinds, values):
        return builder.load_atomic(_address(context, builder, kinds.args[0], *values), "acquire", 8)

    return types.int64(array, types.int64), generate


@intrinsic
def atomic_store(typing, array, index, value):
    """For other threads to load."""

    def generate(context, builder, kinds, values):
        address = _address(context, builder, kinds.args[0], *values[:2])
        builder.store_atomic(values[2], address, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), generate


@intrinsic
def pause(typing):
    """Let the other thread of the core go on."""

    def generate(context, builder, kinds, values):
        if platform.machine() in ("x86_64", "AMD64"):
            _call(builder, "llvm.x86.sse2.pause", ir.VoidType())
        else:
            _call(builder, "llvm.aarch64.hint", ir.VoidType(), INT32(1))
        return context.get_dummy_value()

    return types.void(), generate
