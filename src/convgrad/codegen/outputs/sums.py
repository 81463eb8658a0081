"""Sums of a tensor per channel, which is what the gradient of a bias is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, index
from convgrad.codegen.isa.base import ARITHMETIC, STORAGE, Isa, shuffle
from convgrad.values import frozen

AT_ONCE = 4  # chains of additions that hide each other's latency

Axes = Sequence[tuple[Index, int]]  # extent, and step in elements
Sums = dict[tuple[int, int], Value]  # of column and chain


@frozen(kw_only=True)
class ChannelSums:
    """target[c] += Σ source[c · step + Σ i · axis step] over the box of the axes, for all c < channels.

    source    numbers of `dtype` in any strides, of which nothing outside the box is read
    target    numbers of the arithmetic type, side by side; no others are touched

    Vectors run along the channels where these lie side by side, else along an axis that does, else there are none. A
    sum is `AT_ONCE` chains or fewer, added pairwise; which element is in which follows from extents and strides.
    """

    isa: Isa
    compute: str
    dtype: str

    def emit(self, b: Builder, source: Value, target: Value, axes: Axes, channels: Index, step: int) -> None:
        """Add the sums of one box."""
        axes = _merged(axes)
        run = next((axis for axis in axes if axis[1] == 1), None)
        if step == 1 and channels != 1:
            self._along_channels(b, source, target, axes, channels)
        elif run is not None:
            self._along_axis(b, source, target, [axis for axis in axes if axis is not run], run[0], channels, step)
        else:
            self._one_by_one(b, source, target, axes, channels, step)

    # --- what vectors run along

    def _along_channels(self, b: Builder, source: Value, target: Value, axes: Axes, channels: Index) -> None:
        lanes = self.isa.lanes(self.compute)

        def columns(first: Index, vectors: int, count: Value | None = None) -> None:
            def load(offset: Index) -> Value:
                return self.isa.load(b, self.dtype, self._source(b, source, b.add(first, offset)), lanes, count)

            places = [v * lanes for v in range(vectors)]
            for place, total in zip(places, self._sum(b, load, axes, places, lanes=lanes), strict=True):
                self._add(b, total, self._target(b, target, b.add(first, place)), lanes, count)

        many, whole = (b.mul(b.floor_div(channels, n), n) for n in (AT_ONCE * lanes, lanes))
        b.loop(0, many, lambda c, _: columns(c, AT_ONCE), step=AT_ONCE * lanes, name="channels")
        b.loop(many, whole, lambda c, _: columns(c, 1), step=lanes, name="channels")
        rest = b.sub(channels, whole)
        if rest == 0:
            return
        if self.isa.masks:
            with b.when(b.compare("sgt", rest, 0)):
                columns(whole, 1, index(rest))
        else:
            there, here = self._source(b, source, whole), self._target(b, target, whole)
            self._one_by_one(b, there, here, axes, rest, 1)

    def _along_axis(
        self, b: Builder, source: Value, target: Value, axes: Axes, run: Index, channels: Index, step: int
    ) -> None:
        lanes = self.isa.lanes(self.compute)
        vectors = b.floor_div(run, lanes)
        rest = b.sub(run, b.mul(vectors, lanes))

        def several(c: Index, count: int) -> None:
            def load(offset: Index, only: Value | None = None) -> Value:
                place = b.add(b.mul(c, step), offset)
                return self.isa.load(b, self.dtype, self._source(b, source, place), lanes, only)

            def tail(offset: Index) -> Value:
                return load(b.add(offset, b.mul(vectors, lanes)), index(rest))

            places = [m * step for m in range(count)]
            left = None if rest == 0 else tail
            totals = self._sum(b, load, [*axes, (vectors, lanes)], places, lanes=lanes, tail=left)
            for m, total in enumerate(totals):
                self._add(b, across(b, total), self._target(b, target, b.add(c, m)), 1)

        many = b.mul(b.floor_div(channels, AT_ONCE), AT_ONCE)
        b.loop(0, many, lambda c, _: several(c, AT_ONCE), step=AT_ONCE, name="channels")
        b.loop(many, channels, lambda c, _: several(c, 1), name="channels")

    def _one_by_one(self, b: Builder, source: Value, target: Value, axes: Axes, channels: Index, step: int) -> None:
        def channel(c: Index, _: object) -> None:
            def load(offset: Index) -> Value:
                return self.isa.load(b, self.dtype, self._source(b, source, b.add(b.mul(c, step), offset)))

            (total,) = self._sum(b, load, axes, [0], lanes=1)
            self._add(b, total, self._target(b, target, c), 1)

        b.loop(0, channels, channel, name="channels")

    # --- one box

    def _sum(
        self, b: Builder, load: Callable[[Index], Value], axes: Axes, columns: Sequence[int], *,
        lanes: int, tail: Callable[[Index], Value] | None = None,
    ) -> list[Value]:  # fmt: skip
        """The sum over all axes for each column, an offset; `tail` loads what is left behind the innermost axis."""
        kind = self.isa.vector(self.compute) if lanes > 1 else ARITHMETIC[self.compute]
        zero = Value(kind, "zeroinitializer" if lanes > 1 else "0.0")
        chains = max(1, AT_ONCE // len(columns))

        def added(now: Sums, offset: Index, step: int, count: int) -> Sums:
            now = dict(now)
            for (column, chain), total in now.items():
                if chain < count:
                    place = b.add(offset, columns[column] + chain * step)
                    now[column, chain] = b.binary("fadd", total, load(place))
            return now

        def inner(extent: Index, step: int, start: Index, now: Sums) -> Sums:
            whole = b.mul(b.floor_div(extent, chains), chains)
            now = b.loop(0, whole, lambda i, at: added(at, b.add(start, b.mul(i, step)), step, chains), step=chains,
                         carried=now, name="sum")  # fmt: skip
            now = b.loop(whole, extent, lambda i, at: added(at, b.add(start, b.mul(i, step)), step, 1), carried=now,
                         name="rest")  # fmt: skip
            if tail is not None:
                for column, place in enumerate(columns):
                    now = now | {(column, 0): b.binary("fadd", now[column, 0], tail(b.add(start, place)))}
            return now

        def nest(axes: Axes, start: Index, now: Sums) -> Sums:
            (extent, step), *others = axes
            if not others:
                return inner(extent, step, start, now)
            return b.loop(0, extent, lambda i, at: nest(others, b.add(start, b.mul(i, step)), at), carried=now,
                          name="sum")  # fmt: skip

        sums = {(column, chain): zero for column in range(len(columns)) for chain in range(chains)}
        sums = nest(axes or [(1, 0)], 0, sums)
        return [pairwise(b, [sums[column, chain] for chain in range(chains)]) for column in range(len(columns))]

    def _add(self, b: Builder, total: Value, place: Value, lanes: int, count: Value | None = None) -> None:
        """To a number of the target, or to a vector of them."""
        before = self.isa.load(b, self.compute, place, lanes, count)
        self.isa.store(b, self.compute, b.binary("fadd", before, total), place, count)

    def _source(self, b: Builder, base: Value, offset: Index) -> Value:
        return b.at(base, offset, STORAGE[self.dtype])

    def _target(self, b: Builder, base: Value, offset: Index) -> Value:
        return b.at(base, offset, ARITHMETIC[self.compute])


def pairwise(b: Builder, parts: list[Value]) -> Value:
    """The sum, as a tree."""
    while len(parts) > 1:
        pairs = [b.binary("fadd", x, y) for x, y in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]


def across(b: Builder, vector: Value) -> Value:
    """The sum of the lanes: the upper half added to the lower half until one number is left."""
    lanes, kind = vector.type[1:-1].split(" x ")
    half = int(lanes) // 2
    while half:
        upper = [lane + half if lane < half else lane for lane in range(int(lanes))]
        vector = b.binary("fadd", vector, shuffle(b, vector, vector, upper))
        half //= 2
    return b.emit(kind, f"extractelement {vector}, i64 0")


def _merged(axes: Axes) -> list[tuple[Index, int]]:
    """The same box with fewer axes: single elements dropped, axes that continue each other joined."""
    joined: list[tuple[Index, int]] = []
    for extent, step in sorted((axis for axis in axes if axis[0] != 1), key=lambda axis: abs(axis[1])):
        inner, inner_step = joined[-1] if joined else (0, 0)
        if isinstance(extent, int) and isinstance(inner, int) and joined and step == inner * inner_step:
            joined[-1] = (inner * extent, inner_step)
        else:
            joined.append((extent, step))
    return joined[::-1]
