"""Plans for numbers that are not finite: every product of the definition, and no other.

Kernels that multiply the zeros around an image give NaN where these meet an infinity. Where that has happened, the call
is computed again by such a plan, which finds for every result the taps that meet the image: a dot product at a time.
"""

from __future__ import annotations

from math import prod

from convgrad.dtypes import COMPUTE
from convgrad.plan.axes import GatherAxis, gather_axes
from convgrad.plan.strides import row_major
from convgrad.plan.window_axes import WindowAxis, window_axes
from convgrad.problem.conv import ConvProblem, Ints, Unknown
from convgrad.values import frozen

RESULTS = {Unknown.X: "gcq", Unknown.W: "gck", Unknown.Y: "gkp"}  # indices of Φ that vectors may run along
SUMMED = {Unknown.X: "k", Unknown.W: "p", Unknown.Y: "c"}  # then lanes are added at the end


@frozen(kw_only=True)
class InsidePlan:
    """A problem, and the index of Φ that vectors run along; of p and q the innermost axis, q by phases."""

    problem: ConvProblem
    isa: str
    compute: str
    lanes: int
    along: str
    most_tasks: int
    kept: int | None = None  # the byte of shared memory where a copy of the old weights is; None: they are as they were

    @property
    def sums_lanes(self) -> bool:
        """Whether the lanes of a vector are parts of one sum."""
        return self.along == SUMMED[self.problem.unknown]

    @property
    def data_axes(self) -> tuple[GatherAxis, ...]:
        """Solving for X or Y."""
        return gather_axes(self.problem)

    @property
    def window_axes(self) -> tuple[WindowAxis, ...]:
        """Solving for W."""
        return window_axes(self.problem)

    @property
    def grid(self) -> Ints:
        """Sums, or vectors of them: x or y in the order (n, g, channel, and of every axis phase, output), or w."""
        p = self.problem
        if p.unknown is Unknown.W:
            names, extents = ("g", "k", "c"), list(p.shapes["w"])
        else:
            channel = "k" if p.unknown is Unknown.Y else "c"
            axes = self.data_axes[1:]
            names = ("n", "g", channel, *("",) * (2 * len(axes) - 1), "p" if channel == "k" else "q")
            counts = (number for axis in axes for number in (len(axis.phases), axis.count))
            extents = [*p.shapes[p.solved][:3], *counts]
        for n, name in enumerate(names):
            if name == self.along:
                extents[n] = -(-extents[n] // self.lanes)
        return tuple(extents)

    @property
    def tasks(self) -> int:
        """No more than find work."""
        return max(1, min(self.most_tasks, prod(self.grid)))

    def step(self, tensor: str) -> int:
        """From one lane of a tensor to the next; 0 where all are the same number."""
        return lane_step(self.problem, tensor, self.along)

    @property
    def shared_bytes(self) -> int:
        """Up to the end of the copy of the old weights."""
        return 0 if self.kept is None else self.kept + kept_bytes(self.problem)

    @property
    def kept_strides(self) -> Ints:
        """Of the copy of the old weights, which is dense and has their axes in the order that they have in memory."""
        shape, strides = self.problem.shapes["w"], self.problem.w_strides
        order = sorted(range(len(shape)), key=lambda axis: -abs(strides[axis]))
        dense = row_major(tuple(shape[axis] for axis in order), 1)
        return tuple(dense[order.index(axis)] for axis in range(len(shape)))

    def __str__(self) -> str:
        return f"products inside the image, one by one, on {self.isa}: vectors along {self.along}, {self.tasks} tasks"


def inside_plan(problem: ConvProblem, isa: str, lanes: int, most_tasks: int, kept: int | None = None) -> InsidePlan:
    """Vectors along what the given tensors have side by side."""

    def cost(along: str) -> float:
        extent = _extent(problem, along)
        apart = [lanes for name in sorted({"x", "w", "y"} - {problem.solved})
                 if lane_step(problem, name, along) not in (0, 1)]  # fmt: skip
        return (3 + sum(apart)) * -(-extent // lanes) / extent

    choices = RESULTS[problem.unknown] + SUMMED[problem.unknown]
    along = min((index for index in choices if _extent(problem, index)), key=cost)
    return InsidePlan(
        problem=problem, isa=isa, compute=COMPUTE[problem.dtype], lanes=lanes, along=along, most_tasks=most_tasks,
        kept=kept,
    )  # fmt: skip


def lane_step(p: ConvProblem, tensor: str, along: str) -> int:
    """Elements of a tensor from an index of Φ to the next, where windows and outputs of a phase move together."""
    if along in "pq":
        spatial = {"x": p.stride[-1] * p.x_strides[-1], "w": 0, "y": p.y_strides[-1]}
        return spatial[tensor]
    names = {"x": "gc", "w": "gkc", "y": "gk"}[tensor]
    first = 0 if tensor == "w" else 1
    return p.strides[tensor][first + names.index(along)] if along in names else 0


def kept_bytes(p: ConvProblem) -> int:
    """Of a copy of the weights, in whole cache lines."""
    return -(-p.bytes_of("w") // 64) * 64


def _extent(p: ConvProblem, along: str) -> int:
    extents = {"g": p.groups, "c": p.x_channels, "k": p.y_channels, "p": p.y_extent[-1]}
    return extents[along] if along != "q" else -(-p.x_extent[-1] // p.stride[-1])
