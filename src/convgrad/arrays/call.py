"""Calls: a fast path for shapes seen before, and the careful path that prepares it."""

from __future__ import annotations

from collections.abc import Callable
from marshal import dumps
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from convgrad.arrays.plain import is_plain, plainer
from convgrad.arrays.record import Record, address
from convgrad.arrays.results import common_dtype, refuse_more_than_memory, result_dtype
from convgrad.arrays.view import dense_strides, output_view, refuse_overlap, view
from convgrad.dtypes import numpy_dtype
from convgrad.errors import ArrayError, AttributeRuleError, shown
from convgrad.problem.canonicalize import canonicalize
from convgrad.runtime.jit import LOCK
from convgrad.settings import FPMATH_MODES, fpmath_mode, mode_and_order
from convgrad.spec.resolve import resolve
from convgrad.spec.schemas import SCHEMAS

if TYPE_CHECKING:
    from convgrad.arrays.inline_cache import InlineCache

MOST_RECORDS = 4096  # per operation; a program that makes up more geometries starts afresh
OFTEN = 256  # calls of a geometry before it is admitted to the inline cache: a process of fewer compiles no more code
SELDOM = 4096  # calls that come by here nevertheless before it is admitted once more, by another pattern
MARSHAL_VERSION = 2  # of versions that encode equal values equally: from 3 on reference counts show through

ndarray = np.ndarray
Kind = TypeVar("Kind", bound=Record)


class Operation:
    """An operation that can be called with arrays.

    `names` are the attributes that a call gives, in this order, as one tuple; None stands for the default.
    """

    def __init__(self, op: str, *names: str):
        self.op = op
        self.names = names
        self.schema = SCHEMAS[op]
        self.records: dict[tuple, Record] = {}
        self.inline_cache: InlineCache | None = None
        self.call: Callable[..., Any] = self.__call__  # what the public functions call

    def __call__(
        self,
        first: Any,
        second: Any,
        bias: Any,
        attributes: tuple,
        shape: Any = None,
        out: Any = None,
        out_dtype: Any = None,
        accumulate: bool = False,
        auto_pad_rule: str = "code",
    ) -> Any:
        """The output, which is `out` if that is given."""
        key = None
        if (
            type(first) is ndarray
            and type(second) is ndarray
            and (out is None or type(out) is ndarray)
            and (bias is None or type(bias) is ndarray)
        ):
            try:
                # marshal tells 1 from True and 1.0, which hash alike but are not equally right
                key = (
                    first.shape,
                    first.strides,
                    first.dtype,
                    second.shape,
                    second.strides,
                    second.dtype,
                    dumps((attributes, shape, out_dtype, accumulate, auto_pad_rule), MARSHAL_VERSION),
                    out is not None and (out.shape, out.strides, out.dtype),
                    bias is not None and (bias.shape, bias.strides, bias.dtype),
                )
                record = self.records.get(key)
            except ValueError:  # something that marshal does not know, such as a torch.Size
                record = None
            if record is not None:
                result = record.empty() if out is None else out
                if record.kernel is None:
                    return result
                at = address(result)
                given = (address(first), address(second))
                bias_at = 0
                if bias is not None:
                    bias_at = address(bias)
                if (
                    not (given[0] | given[1] | bias_at) & record.input_mask
                    and not at & record.output_mask
                    and (out is None or (out.flags.writeable and not record.may_overlap(at, (*given, bias_at))))
                ):
                    record.kernel(*record.arrange((*given, at)), bias_at)
                    record.calls += 1
                    if record.calls == OFTEN:
                        arguments = (first, second, bias, attributes, shape, out, out_dtype, accumulate, auto_pad_rule)
                        self._admit(arguments, record)
                    return result
        plain = plainer(attributes, shape, out_dtype)
        if plain is not None:
            attributes, shape, out_dtype = plain
            return self(first, second, bias, attributes, shape, out, out_dtype, accumulate, auto_pad_rule)
        return self._carefully(key, first, second, bias, attributes, shape, out, out_dtype, accumulate, auto_pad_rule)

    def _carefully(self, key, first, second, bias, attributes, shape, out, out_dtype, accumulate, auto_pad_rule) -> Any:
        """Check everything, in an order in which nothing is written before the last check."""
        op = self.op
        inputs = [(name, view(op, name, array)) for name, array in self._named(first, second, bias)]
        dtype = common_dtype(op, inputs)
        target = None if out is None else output_view(op, "out", out)
        out_dtype = result_dtype(op, dtype, target, out_dtype)
        if not isinstance(accumulate, bool | np.bool_):
            raise AttributeRuleError(f"{op}: accumulate is {shown(accumulate)}; give True or False")
        if accumulate and out is None:
            raise ArrayError(f"{op}: accumulate = True adds to what out holds, but no out is given; give out")
        if op == "BiasAddBackward":
            inputs.append(("one", view(op, "one", one(numpy_dtype(dtype)))))
        views = [given for _, given in inputs]
        record = self.record(views, target, attributes, shape, out_dtype, bool(accumulate), auto_pad_rule)
        if target is not None:
            refuse_overlap(op, "out", target, inputs)
            result, finish = out, None
        elif isinstance(first, ndarray):
            result, finish = record.empty(), None
        else:
            from convgrad.arrays.dlpack import empty_like_kind

            result, finish = empty_like_kind(first, record.shape, record.dtype, out_dtype)
        if record.kernel is not None:
            at = (target or output_view(op, "out", result)).address
            addresses = (views[0].address, views[1].address, at)
            record.kernel(*record.arrange(addresses), views[2].address if bias is not None else 0)
        in_place = all(v.owner is array for v, array in zip(views, (first, second, bias), strict=False))
        if key is not None and in_place and is_plain((*attributes, shape)):
            self._remember(key, record)
        return finish(result) if finish else result

    def _named(self, first: Any, second: Any, bias: Any) -> list[tuple[str, Any]]:
        names = self.schema.inputs
        arrays = [(names[0], first)] if len(names) == 1 else [(names[0], first), (names[1], second)]
        return arrays if bias is None else [*arrays, ("bias", bias)]

    def record(
        self, views, target, attributes, shape, out_dtype, accumulate, auto_pad_rule, kind: type[Kind] = Record,
        bias_stride=None,
    ) -> Kind:  # fmt: skip
        """The record of a geometry: found, or made by inference and compilation.

        `bias_stride` is that of a bias that is a second result, and not among the views.
        """
        key = None
        if is_plain((*attributes, shape, auto_pad_rule)):
            parts = [(v.shape, v.strides, v.dtype) for v in views]
            words = dumps((attributes, shape, out_dtype, accumulate, auto_pad_rule), MARSHAL_VERSION)
            key = (*parts, None if target is None else (target.shape, target.strides), words, bias_stride, kind)
            found: Any = self.records.get(key)
            if found is not None:
                return found
        count = len(self.schema.inputs)
        shapes = [v.shape for v in views[: count + (len(views) == 3)]]
        resolved = resolve(
            self.op,
            self._attributes(attributes, len(shapes[0]) - 2),
            shapes,
            shape_input=shape,
            output_shape=None if target is None else target.shape,
            auto_pad_rule=auto_pad_rule,
        )
        if target is None:
            refuse_more_than_memory(self.op, self.schema.output, resolved.output_shape, out_dtype)
        strides = dense_strides(resolved.output_shape) if target is None else target.strides
        mode, order = self._arithmetic(attributes)
        problem = canonicalize(
            resolved,
            input_strides=[v.strides for v in views[:count]],
            output_strides=strides,
            dtype=views[0].dtype,
            out_dtype=out_dtype,
            bias_stride=views[2].strides[0] if len(views) == 3 else bias_stride,
            accumulate=accumulate,
            fpmath_mode=mode,
            order=order,
        )
        record = kind(self.op, problem, views, resolved.output_shape, strides, out_dtype)
        if key is not None:
            self._remember(key, record)
        return record

    def _remember(self, key: tuple, record: Record) -> None:
        if len(self.records) >= MOST_RECORDS:
            self.forget()
        self.records[key] = record

    def _admit(self, arguments: tuple, record: Record) -> None:
        record.calls = OFTEN - SELDOM
        with LOCK:  # a fork in the middle of an import would leave its lock to nobody
            from convgrad.arrays.inline_cache import InlineCache  # here, since few processes make so many calls

            if self.inline_cache is None:
                self.inline_cache = InlineCache(self.op, self.__call__)
            self.call = self.inline_cache.admit(arguments, record) or self.call

    def forget(self) -> None:
        """Drop what is known of earlier calls."""
        with LOCK:
            if self.inline_cache:
                self.inline_cache.forget()
            self.records.clear()

    def _attributes(self, values: tuple, rank: int) -> dict[str, Any]:
        """What the call gives, and ones where the specification requires a list that has an obvious default."""
        given = {name: value for name, value in zip(self.names, values, strict=True) if value is not None}
        given.pop("fpmath_mode", None)  # says how, not what
        ones = (1,) * max(rank, 0)
        required = (attribute.name for attribute in self.schema.attributes if attribute.required)
        return {name: ones for name in required} | given

    def _arithmetic(self, values: tuple) -> tuple[str, str]:
        """The fpmath_mode, and the order of sums if one is asked for."""
        mode, order = mode_and_order(dict(zip(self.names, values, strict=True)).get("fpmath_mode"))
        if mode is None:
            mode = fpmath_mode()
        if not isinstance(mode, str) or mode not in FPMATH_MODES:
            raise AttributeRuleError(
                f"{self.op}: fpmath_mode is {shown(mode)}; it must be one of {', '.join(FPMATH_MODES)}, or None for "
                "that of the surroundings"
            )
        return mode, order


_ones: dict[np.dtype, ndarray] = {}


def one(dtype: np.dtype) -> ndarray:
    """A single one: the x of BiasAddBackward. One for each type is kept for good: kernels are given its address."""
    found = _ones.get(dtype)
    if found is None:
        found = _ones[dtype] = np.ones((), dtype)
    return found


def known_one(array: Any) -> ndarray | None:
    """The one of the type of an array, if an earlier call made it."""
    return _ones.get(array.dtype) if type(array) is ndarray else None
