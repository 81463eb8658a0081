"""Random problems for `problems.py`, each of which is a line of JSON that makes it again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from math import prod

import numpy as np

from convgrad import ConvError
from convgrad.plan.machine import available_isas, why_not
from convgrad.spec.resolve import resolve
from convgrad.spec.schemas import SCHEMAS

FORWARD = {"convolution": "Convolution", "transposed": "ConvTranspose"}
MOST_WORK = 3_000_000  # multiplications of one case: the definition takes its time
LARGE = 2000  # more than a piece of bf16 holds, so that splitting leaves something over
TILES = "amx_emulated"  # matrix tiles, by vectors
EMULATED = (TILES,) if why_not(TILES) is None else ()
MODES = ("tf32", "f16", "bf16", "any")  # of which each holds small numbers exactly


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of an array lie: axes from the outermost in memory, and for each the step it takes."""

    order: tuple[int, ...]  # axes, outermost first
    gaps: tuple[int, ...]  # per axis: how many times wider than dense it steps
    signs: tuple[int, ...]  # per axis: 1, -1 for backwards, 0 for the same element again and again

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """In elements."""
        strides, step = [0] * len(shape), 1
        for axis in reversed(self.order):
            step *= self.gaps[axis]
            strides[axis] = step * self.signs[axis]
            step *= max(shape[axis], 1)
        return tuple(strides)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call."""

    op: str
    shapes: tuple[tuple[int, ...], ...]  # of the inputs, that of the bias included
    layouts: tuple[Layout, ...]  # of the inputs
    attributes: dict
    shape: tuple[int, ...] | None = None  # what tells the shape of the output
    tell: bool = True  # by an argument, else by `out`
    dtype: str = "f32"
    out_dtype: str | None = None
    out: Layout | None = None  # None: the function makes the output
    accumulate: bool = False
    isa: str | None = None
    fpmath_mode: str | None = None
    threads: int = 2
    largest: int = 3  # of the numbers in the inputs
    special: int = 0  # numbers of each input that are infinite or NaN
    seed: int = 0

    @property
    def bias(self) -> bool:
        """Whether there is one."""
        return len(self.shapes) > len(SCHEMAS[self.op].inputs)

    def line(self) -> str:
        """A command that runs this case again."""
        return f"python fuzz/problems.py --case '{json.dumps(asdict(self))}'"


def case_from(text: str) -> Case:
    """The case of a line."""
    fields = json.loads(text)
    tuples = {name: tuple(map(tuple, fields[name])) for name in ("shapes",)}
    layouts = tuple(_layout(entry) for entry in fields["layouts"])
    out, shape = fields["out"], fields["shape"]
    return Case(
        **fields
        | tuples
        | {"layouts": layouts, "out": out and _layout(out), "shape": None if shape is None else tuple(shape)}
    )


def _layout(entry: dict) -> Layout:
    return Layout(**{name: tuple(values) for name, values in entry.items()})


def random_case(seed: int, number: int) -> Case:
    """Case `number` of a seed; the same for ever, until this function changes."""
    rng = np.random.default_rng([seed, number])
    while True:
        case = _BiasCase(rng).make() if rng.random() < 0.06 else _Draw(rng).make()
        if case is not None:
            return replace(case, seed=int(rng.integers(2**31)))


class _Draw:
    """One convolution or transposed convolution, drawn part by part."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def pick(self, *values):
        """One of the values, with equal chances."""
        return values[self.rng.integers(len(values))]

    def chance(self, share: float) -> bool:
        """True in this share of the cases."""
        return bool(self.rng.random() < share)

    def below(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return int(self.rng.integers(low, high + 1))

    def make(self) -> Case | None:
        """A case, or None if what was drawn does not fit together."""
        family = self.pick("convolution", "transposed")
        rank = self.pick(1, 1, 2, 2, 2, 3, 4)
        groups, image_channels, window_channels = self.channels()
        axes = [self.axis(rank) for _ in range(rank)]
        kernel, strides, dilations, begin, end, window, extra = map(tuple, zip(*axes, strict=True))
        attributes = {"strides": strides, "dilations": dilations, "groups": groups}
        attributes |= {"data_format": self.pick("NCX", "NXC"), "weights_format": self.pick("OIX", "XIO", "IOX", "XOI")}
        auto_pad = self.pick("same_upper", "SAME_LOWER", "valid") if self.chance(0.25) else None
        attributes |= {"auto_pad": auto_pad} if auto_pad else {"pads_begin": begin, "pads_end": end}
        if family == "transposed" and self.chance(0.6):
            attributes["output_padding"] = extra
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        image = tuple(
            s * (y - 1) + r - b - e + x
            for s, y, r, b, e, x in zip(strides, window, reach, begin, end, extra, strict=True)
        )
        if auto_pad:
            image = tuple(self.below(1, 14) for _ in kernel)
        if min(image) < 0:
            return None
        batch = 0 if self.chance(0.01) else self.pick(1, 1, 2, 3)
        documented = family == "transposed" and groups > 1 and self.chance(0.4)
        weights = _weights_shape(family, documented, groups, window_channels, image_channels, kernel, attributes)
        return self.call(
            family, attributes, weights,
            image=_activation(batch, groups * image_channels, image, attributes),
            window=_activation(batch, groups * window_channels, window, attributes),
        )  # fmt: skip

    def channels(self) -> tuple[int, int, int]:
        """Groups, and channels of one group on either side; around the lengths of vectors, depthwise, or few."""
        match self.pick("few", "few", "lanes", "lanes", "depthwise", "groups", "none"):
            case "lanes":
                return 1, self.lane_count(), self.pick(self.lane_count(), self.below(1, 5))
            case "depthwise":
                return self.lane_count(), 1, self.pick(1, 1, 2, 3)
            case "groups":
                return self.below(2, 6), self.pick(self.below(1, 4), self.lane_count() // 2 + 1), self.below(1, 9)
            case "none" if self.chance(0.1):
                return 1, self.pick(0, 2), self.pick(0, 3)
        return self.pick(1, 1, 2, 3), self.below(1, 5), self.below(1, 5)

    def lane_count(self) -> int:
        """One off a number of lanes, or it."""
        return max(1, self.pick(4, 8, 16, 32, 48, 64) + self.below(-1, 1))

    def axis(self, rank: int) -> tuple[int, ...]:
        """Taps, stride, dilation, pads, window extent and what the image has beyond the last window."""
        most = {1: 40, 2: 14, 3: 6, 4: 4}[rank]
        taps = self.pick(1, 2, 3, 3, self.below(1, 7 if rank < 3 else 3))
        stride, dilation = self.pick(1, 1, 2, self.below(1, 4)), self.pick(1, 1, 2, self.below(1, 4))
        begin, end = self.below(0, taps + 1), self.below(0, taps + 1)
        if self.chance(0.04):
            begin, end = self.below(0, 20), self.below(0, 20)
        window = 0 if self.chance(0.005) else self.below(1, most)
        return taps, stride, dilation, begin, end, window, self.below(0, stride - 1)

    def call(self, family: str, attributes: dict, weights: tuple, *, image: tuple, window: tuple) -> Case | None:
        """Which of the three operations of the family, and how it is called."""
        forward = FORWARD[family]
        source, other = (image, window) if family == "convolution" else (window, image)
        try:  # the extents of the other side, as the forward operation has them
            other = resolve(forward, attributes, [source, weights]).output_shape
        except ConvError:
            if self.chance(0.9):
                return None  # some are kept: the call has to refuse them too
        op = self.pick(*(name for name, schema in SCHEMAS.items() if schema.family == family))
        shape = None
        if op == forward:
            shapes = [source, weights]
        elif op.endswith("BackwardWeights"):
            shapes, shape = [source, other], weights
        else:
            shapes = [other, weights]
            if family == "convolution":
                shape = source if self.chance(0.7) else _spatial(source, attributes)
        if op == forward and self.chance(0.4):
            channels = other[1] if attributes["data_format"] == "NCX" else other[-1]
            shapes.append((channels,))
        if prod(weights) * prod(_spatial(window, attributes)) * max(window[0], 1) > MOST_WORK:
            return None
        return self.finish(op, shapes, attributes, shape)

    def finish(self, op: str, shapes: list, attributes: dict, shape: tuple | None) -> Case:
        """Types, layouts and the rest of the call."""
        dtype = self.pick("f32", "f32", "bf16", "f16", "f64")
        case = Case(
            op=op, shapes=tuple(map(tuple, shapes)), attributes=attributes, shape=shape, dtype=dtype,
            layouts=tuple(self.layout(len(s), broadcast=True) for s in shapes),
            out_dtype=self.pick(None, None, "f32") if dtype in ("bf16", "f16") else None,
            isa=self.pick(None, None, *available_isas(), *EMULATED), threads=self.pick(1, 2, 3, 7),
            largest=self.pick(2, 3, 9, 40, LARGE),
        )  # fmt: skip
        if op != "BiasAddBackward" and case.largest != LARGE and self.chance(0.3):
            case = replace(case, fpmath_mode=self.pick(*MODES))
        elif self.chance(0.2):
            case = replace(case, special=self.pick(1, 1, 3, 40))
        rank = 1 if op == "BiasAddBackward" else len(shapes[0])
        if self.chance(0.7):
            case = replace(case, out=self.layout(rank, broadcast=False), accumulate=self.chance(0.3))
            if self.chance(0.5):
                case = replace(case, tell=False)
        return case

    def layout(self, rank: int, *, broadcast: bool) -> Layout:
        """Dense in most cases."""
        order, gaps, signs = list(range(rank)), [1] * rank, [1] * rank
        if self.chance(0.45):
            order = [int(axis) for axis in self.rng.permutation(rank)]
        if self.chance(0.3):
            gaps = [self.pick(1, 1, 2, 3) for _ in gaps]
        if self.chance(0.3):
            signs = [self.pick(1, 1, -1) for _ in signs]
        if broadcast and self.chance(0.15):
            signs = [self.pick(sign, sign, 0) for sign in signs]
        return Layout(tuple(order), tuple(gaps), tuple(signs))


class _BiasCase(_Draw):
    """A sum over everything but the channels."""

    def make(self) -> Case:
        """Any number of axes."""
        rank, channels = self.below(0, 4), self.pick(self.below(1, 5), self.lane_count())
        extent = tuple(self.below(1, 12 if rank < 3 else 5) for _ in range(rank))
        attributes = {"data_format": self.pick("NCX", "NXC")}
        return self.finish(
            "BiasAddBackward", [_activation(self.below(1, 4), channels, extent, attributes)], attributes, None
        )


def _activation(batch: int, channels: int, extent: tuple, attributes: dict) -> tuple[int, ...]:
    return (batch, channels, *extent) if attributes["data_format"] == "NCX" else (batch, *extent, channels)


def _spatial(shape: tuple, attributes: dict) -> tuple[int, ...]:
    return shape[2:] if attributes["data_format"] == "NCX" else shape[1:-1]


def _weights_shape(family, documented, groups, window, image, kernel, attributes) -> tuple[int, ...]:
    """O is the window side of a convolution and the image side of a transposed one; one of them counts all groups."""
    image, window = (image * groups, window) if documented else (image, window * groups)
    o, i = (window, image) if family == "convolution" else (image, window)
    extents = {"O": (o,), "I": (i,), "X": tuple(kernel)}
    return sum((extents[letter] for letter in attributes["weights_format"]), ())
