"""Calls with two results: a weights gradient and, from one reading of diff_dst, the bias gradient."""

from __future__ import annotations

from marshal import dumps
from typing import Any

import numpy as np

from convgrad.arrays.call import MARSHAL_VERSION, Operation
from convgrad.arrays.plain import is_plain, plainer
from convgrad.arrays.record import Record, address
from convgrad.arrays.results import common_dtype, result_dtype
from convgrad.arrays.view import View, output_view, refuse_overlap, share_memory, span
from convgrad.arrays.view import view as view_of
from convgrad.dtypes import SIZES
from convgrad.errors import ArrayError, AttributeRuleError, DtypeError, ShapeError, shown

ndarray = np.ndarray


class PairRecord(Record):
    """The record of a kernel with both results."""

    __slots__ = ("bias_shape", "bias_span")

    def __init__(self, op: str, problem: Any, inputs: Any, shape: tuple[int, ...], strides: Any, out_dtype: str):
        super().__init__(op, problem, inputs, shape, strides, out_dtype)
        self.bias_shape = (problem.bias_length,)
        self.bias_span = span(self.bias_shape, (problem.bias_stride,), SIZES[out_dtype])

    def may_share(self, out: int, bias: int, inputs: tuple[int, int]) -> bool:
        """Whether the bytes of a result lie in common bounds with those of an input or of the other result."""
        low, high = self.bias_span
        low, high = low + bias, high + bias
        others = ((out, self.span), *zip(inputs, self.spans, strict=True))
        return self.may_overlap(out, inputs) or any(
            low < other + last and other + first < high for other, (first, last) in others
        )


class WeightsOperation(Operation):
    """A weights gradient, called for its one result, or by `pair` for the bias gradient, too."""

    def pair(
        self,
        first: Any,
        second: Any,
        diff_bias: Any,
        attributes: tuple,
        shape: Any = None,
        out: Any = None,
        out_dtype: Any = None,
        accumulate: bool = False,
    ) -> tuple[Any, Any]:
        """The weights gradient, which is `out` if that is given, and the bias gradient: `diff_bias`, if not True."""
        key = None
        if (
            type(first) is ndarray
            and type(second) is ndarray
            and (out is None or type(out) is ndarray)
            and (diff_bias is True or type(diff_bias) is ndarray)
        ):
            try:
                key = (
                    first.shape,
                    first.strides,
                    first.dtype,
                    second.shape,
                    second.strides,
                    second.dtype,
                    dumps((attributes, shape, out_dtype, accumulate), MARSHAL_VERSION),
                    out is not None and (out.shape, out.strides, out.dtype),
                    diff_bias is True or (diff_bias.shape, diff_bias.strides, diff_bias.dtype),
                )
                record = self.records.get(key)
            except ValueError:  # something that marshal does not know, such as a torch.Size
                record = None
            if isinstance(record, PairRecord) and record.kernel is not None:
                weights = record.empty() if out is None else out
                bias = np.empty(record.bias_shape, record.dtype) if diff_bias is True else diff_bias
                at, bias_at, given = address(weights), address(bias), (address(first), address(second))
                if (
                    not (given[0] | given[1]) & record.input_mask
                    and not (at | bias_at) & record.output_mask
                    and weights.flags.writeable
                    and bias.flags.writeable
                    and not record.may_share(at, bias_at, given)
                ):
                    record.kernel(*record.arrange((*given, at)), bias_at)
                    return weights, bias
        plain = plainer(attributes, shape, out_dtype)
        if plain is not None:
            attributes, shape, out_dtype = plain
            return self.pair(first, second, diff_bias, attributes, shape, out, out_dtype, accumulate)
        return self._pair_carefully(key, first, second, diff_bias, attributes, shape, out, out_dtype, accumulate)

    def _pair_carefully(
        self, key, first, second, diff_bias, attributes, shape, out, out_dtype, accumulate
    ) -> tuple[Any, Any]:
        """Check everything, in an order in which nothing is written before the last check."""
        op = self.op
        inputs = [(name, view_of(op, name, array)) for name, array in self._named(first, second, None)]
        views = [given for _, given in inputs]
        target = None if out is None else output_view(op, "out", out)
        out_dtype = result_dtype(op, common_dtype(op, inputs), target, out_dtype)
        bias_target = self._bias_target(diff_bias, out_dtype)
        self._check_accumulation(accumulate, out, diff_bias)
        step = bias_target.strides[0] if bias_target else 1
        record = self.record(views, target, attributes, shape, out_dtype, bool(accumulate), "code", PairRecord, step)
        if bias_target and bias_target.shape != record.bias_shape:
            raise ShapeError(
                f"{op}: diff_bias is given with shape {list(bias_target.shape)}, but diff_dst of shape "
                f"{list(views[1].shape)} has {record.bias_shape[0]} channels; give a diff_bias of that many elements"
            )
        for name, result in (("out", target), ("diff_bias", bias_target)):
            if result is not None:
                refuse_overlap(op, name, result, inputs)
        if target and bias_target and share_memory(target, bias_target):
            raise ArrayError(f"{op}: out and diff_bias share memory, but both are written; give each memory of its own")
        weights, finish = (out, None) if target else _new(first, record.shape, record.dtype, out_dtype)
        if record.kernel is None:  # no weights, but sums all the same
            given = None if diff_bias is True else diff_bias
            data_format = attributes[self.names.index("data_format")]
            sums = _sums(second, None, None, (data_format,), None, given, out_dtype, accumulate)
            return finish(weights) if finish else weights, sums
        bias, finish_bias = (
            (diff_bias, None) if bias_target else _new(first, record.bias_shape, record.dtype, out_dtype)
        )
        at = (target or output_view(op, "out", weights)).address
        bias_at = (bias_target or output_view(op, "diff_bias", bias)).address
        record.kernel(*record.arrange((views[0].address, views[1].address, at)), bias_at)
        in_place = all(given.owner is array for given, array in zip(views, (first, second), strict=True))
        if key is not None and in_place and is_plain((*attributes, shape)):
            self._remember(key, record)
        return finish(weights) if finish else weights, finish_bias(bias) if finish_bias else bias

    def _bias_target(self, diff_bias: Any, out_dtype: str) -> View | None:
        """The memory of an array for the bias gradient; None if there is to be a new one."""
        op = self.op
        if diff_bias is True:
            return None
        if isinstance(diff_bias, bool | np.bool_ | int):
            raise AttributeRuleError(f"{op}: diff_bias is {shown(diff_bias)}; give True, or an array to write to")
        target = output_view(op, "diff_bias", diff_bias)
        if target.dtype != out_dtype:
            raise DtypeError(
                f"{op}: diff_bias holds {target.dtype}, but diff_weights will hold {out_dtype}; give both the same type"
            )
        if len(target.shape) != 1:
            raise ShapeError(
                f"{op}: diff_bias is given with shape {list(target.shape)}, but has one axis, that of the channels of "
                "diff_dst; give an array of one axis"
            )
        return target

    def _check_accumulation(self, accumulate: Any, out: Any, diff_bias: Any) -> None:
        if not isinstance(accumulate, bool | np.bool_):
            raise AttributeRuleError(f"{self.op}: accumulate is {shown(accumulate)}; give True or False")
        for name, missing in (("out", out is None), ("diff_bias", diff_bias is True)):
            if accumulate and missing:
                raise ArrayError(
                    f"{self.op}: accumulate = True adds to what {name} holds, but no array is given as {name}; give one"
                )


_sums = Operation("BiasAddBackward", "data_format")


def _new(like: Any, shape: tuple[int, ...], dtype: np.dtype, name: str) -> tuple[Any, Any]:
    """An array of the library of another one, and what turns it into the result or None."""
    if isinstance(like, ndarray):
        return np.empty(shape, dtype), None
    from convgrad.arrays.dlpack import empty_like_kind

    return empty_like_kind(like, shape, dtype, name)
