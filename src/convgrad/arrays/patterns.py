"""Patterns of arguments, for compiled code that finds out whether a call is like one that came before.

A pattern is a few words. The first says what it takes:
    OBJECT    this very object (None, a string, True): its address
    NUMBER    an int: its address (small ones are there once), its value
    TUPLE     a tuple of so many, each of a pattern: number, addresses of patterns
    LIST      a list, likewise
    ARRAY     an ndarray, of no subclass: address of the dtype, rank, extents, strides in bytes

Objects are read where they lie: PyObject_HEAD, then of an ndarray `PyArrayObject_fields` of NumPy's C interface, of a
list its length and the address of its items, of a tuple its length and, where tuples end, the items (CPython's
include/cpython). `layout_holds` looks whether it is so in this process.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import numpy as np

OBJECT, NUMBER, TUPLE, LIST, ARRAY = range(5)
HEAD = 16  # bytes of PyObject_HEAD: count of references, type
ARRAY_FIELDS = {"data": 0, "nd": 8, "dimensions": 16, "strides": 24, "descr": 40, "flags": 48}  # behind the head
WRITEABLE = 0x400  # NPY_ARRAY_WRITEABLE

Words = np.ndarray[Any, np.dtype[np.int64]]


def pattern(value: Any, held: list[Any]) -> int:
    """The address of the pattern of an argument; what must not go while it is used is added to `held`."""
    if type(value) is np.ndarray:
        held.append(value.dtype)
        words = [ARRAY, id(value.dtype), value.ndim, *value.shape, *value.strides]
    elif type(value) in (tuple, list):
        kind = TUPLE if type(value) is tuple else LIST
        words = [kind, len(value), *(pattern(item, held) for item in value)]
    elif type(value) is int and abs(value) < 1 << 63:
        held.append(value)
        words = [NUMBER, id(value), value]
    else:
        held.append(value)
        words = [OBJECT, id(value)]
    array = np.array(words, np.int64)
    held.append(array)
    return array.ctypes.data


def offsets() -> dict[str, int]:
    """What `SAME_IR` and its callers have between dollars: where words of objects are, and kinds of patterns."""
    kinds = {"object": OBJECT, "number": NUMBER, "tuple": TUPLE, "list": LIST, "array": ARRAY}
    objects = {"type": HEAD - 8, "length": HEAD, "list_items": HEAD + 8, "tuple_items": tuple.__basicsize__}
    return {**kinds, **objects, **{f"array_{name}": HEAD + offset for name, offset in ARRAY_FIELDS.items()}}


@cache
def layout_holds() -> bool:
    """Whether objects of this interpreter and arrays of this NumPy lie in memory as the compiled code reads them."""
    if sys.implementation.name != "cpython" or object.__basicsize__ != HEAD:  # not so in builds without a lock
        return False
    word = ctypes.c_int64.from_address
    pair, several = (None, int), [None, int]
    held = word(id(several) + HEAD + 8).value
    plain = (
        word(id(pair) + HEAD - 8).value == id(tuple)
        and word(id(pair) + HEAD).value == word(id(several) + HEAD).value == 2
        and word(id(pair) + tuple.__basicsize__ + 8).value == id(int)
        and word(held + 8).value == id(int)
    )
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    locked = whole[1:, ::-2]
    locked.flags.writeable = False
    return plain and all(_array_holds(array) for array in (whole, locked))


def _array_holds(array: np.ndarray) -> bool:
    word, number = ctypes.c_int64.from_address, ctypes.c_int32.from_address
    data, nd, dimensions, strides, descr, flags = (id(array) + HEAD + offset for offset in ARRAY_FIELDS.values())
    extents = tuple(word(word(dimensions).value + 8 * axis).value for axis in range(array.ndim))
    steps = tuple(word(word(strides).value + 8 * axis).value for axis in range(array.ndim))
    return (
        word(id(array) + HEAD - 8).value == id(np.ndarray)
        and word(data).value == array.__array_interface__["data"][0]
        and number(nd).value == array.ndim
        and (extents, steps) == (array.shape, array.strides)
        and word(descr).value == id(array.dtype)
        and bool(number(flags).value & WRITEABLE) == array.flags.writeable
    )


# Whether an object is as its pattern has it. `common` holds addresses: of types, and PyLong_AsLongLongAndOverflow.
SAME_IR = """
define internal i1 @same(ptr %object, ptr %pattern, ptr %common) nounwind {
start:
  %kind = load i64, ptr %pattern
  %one.at = getelementptr i8, ptr %pattern, i64 8
  %one = load i64, ptr %one.at
  %two.at = getelementptr i8, ptr %pattern, i64 16
  %more.at = getelementptr i8, ptr %pattern, i64 24
  %address = ptrtoint ptr %object to i64
  %type.at = getelementptr i8, ptr %object, i64 $type$
  %type = load i64, ptr %type.at
  switch i64 %kind, label %no [
    i64 $object$, label %object.alone
    i64 $number$, label %number
    i64 $tuple$, label %tuple
    i64 $list$, label %list
    i64 $array$, label %array
  ]
no:
  ret i1 false
yes:
  ret i1 true

object.alone:
  %itself = icmp eq i64 %address, %one
  ret i1 %itself

number:
  %same.number = icmp eq i64 %address, %one
  br i1 %same.number, label %yes, label %other.number
other.number:
  %int.at = getelementptr i8, ptr %common, i64 $common_int_type$
  %int = load i64, ptr %int.at
  %is.int = icmp eq i64 %type, %int
  br i1 %is.int, label %value, label %no
value:
  %too.large = alloca i32
  %as.int.at = getelementptr i8, ptr %common, i64 $common_as_int$
  %as.int = load ptr, ptr %as.int.at
  %has = call i64 %as.int(ptr %object, ptr %too.large)
  %flag = load i32, ptr %too.large
  %in.range = icmp eq i32 %flag, 0
  %wanted = load i64, ptr %two.at
  %equal = icmp eq i64 %has, %wanted
  %right = and i1 %in.range, %equal
  ret i1 %right

tuple:
  %tuple.type.at = getelementptr i8, ptr %common, i64 $common_tuple_type$
  %tuple.type = load i64, ptr %tuple.type.at
  %tuple.items = getelementptr i8, ptr %object, i64 $tuple_items$
  %is.tuple = icmp eq i64 %type, %tuple.type
  br i1 %is.tuple, label %sequence, label %no
list:
  %list.type.at = getelementptr i8, ptr %common, i64 $common_list_type$
  %list.type = load i64, ptr %list.type.at
  %is.list = icmp eq i64 %type, %list.type
  br i1 %is.list, label %list.items, label %no
list.items:
  %list.items.at = getelementptr i8, ptr %object, i64 $list_items$
  %items.of.list = load ptr, ptr %list.items.at
  br label %sequence
sequence:
  %items = phi ptr [ %tuple.items, %tuple ], [ %items.of.list, %list.items ]
  %length.at = getelementptr i8, ptr %object, i64 $length$
  %length = load i64, ptr %length.at
  %as.long = icmp eq i64 %length, %one
  br i1 %as.long, label %item, label %no
item:
  %i = phi i64 [ 0, %sequence ], [ %i.next, %item.next ]
  %more = icmp ult i64 %i, %one
  br i1 %more, label %compare, label %yes
compare:
  %item.at = getelementptr ptr, ptr %items, i64 %i
  %here = load ptr, ptr %item.at
  %item.pattern.at = getelementptr ptr, ptr %two.at, i64 %i
  %item.pattern = load ptr, ptr %item.pattern.at
  %item.same = call i1 @same(ptr %here, ptr %item.pattern, ptr %common)
  br i1 %item.same, label %item.next, label %no
item.next:
  %i.next = add i64 %i, 1
  br label %item

array:
  %array.type.at = getelementptr i8, ptr %common, i64 $common_array_type$
  %array.type = load i64, ptr %array.type.at
  %is.array = icmp eq i64 %type, %array.type
  br i1 %is.array, label %kind.of.array, label %no
kind.of.array:
  %descr.at = getelementptr i8, ptr %object, i64 $array_descr$
  %descr = load i64, ptr %descr.at
  %same.descr = icmp eq i64 %descr, %one
  %rank = load i64, ptr %two.at
  %nd.at = getelementptr i8, ptr %object, i64 $array_nd$
  %nd.32 = load i32, ptr %nd.at
  %nd = sext i32 %nd.32 to i64
  %same.rank = icmp eq i64 %nd, %rank
  %dimensions.at = getelementptr i8, ptr %object, i64 $array_dimensions$
  %dimensions = load ptr, ptr %dimensions.at
  %strides.at = getelementptr i8, ptr %object, i64 $array_strides$
  %strides = load ptr, ptr %strides.at
  %wanted.strides = getelementptr i64, ptr %more.at, i64 %rank
  %alike = and i1 %same.descr, %same.rank
  br i1 %alike, label %axis, label %no
axis:
  %a = phi i64 [ 0, %kind.of.array ], [ %a.next, %axis.same ]
  %any = icmp ult i64 %a, %rank
  br i1 %any, label %extent, label %yes
extent:
  %extent.at = getelementptr i64, ptr %dimensions, i64 %a
  %extent.has = load i64, ptr %extent.at
  %extent.wanted.at = getelementptr i64, ptr %more.at, i64 %a
  %extent.wanted = load i64, ptr %extent.wanted.at
  %extent.same = icmp eq i64 %extent.has, %extent.wanted
  %stride.at = getelementptr i64, ptr %strides, i64 %a
  %stride.has = load i64, ptr %stride.at
  %stride.wanted.at = getelementptr i64, ptr %wanted.strides, i64 %a
  %stride.wanted = load i64, ptr %stride.wanted.at
  %stride.same = icmp eq i64 %stride.has, %stride.wanted
  %both.same = and i1 %extent.same, %stride.same
  br i1 %both.same, label %axis.same, label %no
axis.same:
  %a.next = add i64 %a, 1
  br label %axis
}
"""
