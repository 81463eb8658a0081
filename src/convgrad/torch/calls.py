"""What calls of PyTorch's operators came to: remembered by all that they depend on, and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any

from convgrad.errors import ConvError
from convgrad.values import frozen

MOST_PLANS = 4096  # per operator; a program that makes up more geometries starts afresh


@frozen
class Taken:
    """Calls since `enable`; `print` says them, but for products that were left, which is no loss."""

    operations: dict[str, int]  # name of an operation: how often it was computed here
    left: dict[tuple[str, str], int]  # operator of convolution, why it was left to PyTorch: how often
    left_products: dict[tuple[str, str], int] = field(default_factory=dict)  # the same of matrix products

    def __str__(self) -> str:
        """A line for each operation, and for each reason."""
        lines = [f"{count} x {name}" for name, count in sorted(self.operations.items())] or ["nothing taken"]
        lines += [f"{count} x {name} left to PyTorch: {why}" for (name, why), count in sorted(self.left.items())]
        return "\n".join(lines)


class Left:
    """Why calls are left to PyTorch."""

    __slots__ = ("calls", "why")

    def __init__(self, why: str):
        self.why, self.calls = why, 0


class Plans:
    """Those of one operator. A plan has `parts`, each of which counts its `calls`, or is a reason against."""

    def __init__(self, name: str, plan: Callable[..., Any]) -> None:
        """`plan` makes a plan of tensors and words; what it gives as text, or raises as a ConvError, is a reason."""
        self.name = name
        self._plan = plan
        self._found: dict[tuple, Any] = {}
        self.get = self._found.get
        self._misaligned = Left("not aligned to its elements")
        self._gone: Counter = Counter()  # calls of plans that were dropped

    def learn(self, key: tuple, *arguments: Any) -> Any:
        """Plan for tensors that were not seen before, and remember it."""
        try:
            found = self._plan(*arguments)
        except ConvError as error:
            found = str(error)
        if len(self._found) >= MOST_PLANS:
            self._gone += self._counts(list(self._found.values()))
            self._found.clear()
        return self._found.setdefault(key, Left(found) if isinstance(found, str) else found)

    def leave(self, left: Left | None) -> None:
        """One more call that is left to PyTorch; None stands for numbers that lie across their addresses."""
        left = left or self._misaligned
        left.calls += 1

    def counts(self) -> Counter:
        """Calls by name of the operation, or by name and reason where PyTorch was left to do it."""
        return self._gone + self._counts([*self._found.values(), self._misaligned])

    def forget_counts(self) -> None:
        """Begin to count anew; plans stay."""
        self._gone.clear()
        for plan in (*self._found.values(), self._misaligned):
            for part in _parts(plan):
                part.calls = 0

    def _counts(self, plans: Iterable[Any]) -> Counter:
        counts: Counter = Counter()
        for part in (part for plan in plans for part in _parts(plan)):
            counts[(self.name, part.why) if isinstance(part, Left) else part.name] += part.calls
        return counts


def _parts(plan: Any) -> Iterable[Any]:
    return getattr(plan, "parts", (plan,))


def taken_of(convolutions: Iterable[Plans], products: Iterable[Plans]) -> Taken:
    """What was computed here and what was left, of several operators."""
    of_convolutions, of_products = (
        sum((each.counts() for each in plans), Counter()) for plans in (convolutions, products)
    )
    operations = {name: count for name, count in (of_convolutions + of_products).items() if isinstance(name, str)}
    return Taken(operations, _left(of_convolutions), _left(of_products))


def _left(counts: Counter) -> dict[tuple[str, str], int]:
    return {name: count for name, count in counts.items() if isinstance(name, tuple)}
