"""What there is to say of a result besides right or wrong: the spread of errors, and what the worst is made of."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, prod
from typing import Any

import numpy as np

from convgrad.cli.bounds import Check
from convgrad.cli.display import Table
from convgrad.cli.sampling import define_at, factors_of
from convgrad.engines.interface import Task
from convgrad.spec.schemas import SCHEMAS
from convgrad.values import frozen

EDGES = (0.0, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 10.0, 1e3)  # of the histogram, in bounds
SHOWN = 3  # products of the worst element
MOST_PLACES = 2**26  # elements of the inputs whose places are looked for
BAR = 40


@frozen
class Product:
    """One of the products that an element is the sum of."""

    places: tuple[tuple[int, ...], tuple[int, ...]]  # in the first and the second input
    factors: tuple[float, float]


@frozen
class Worst:
    """The element with the largest error."""

    index: tuple[int, ...]
    got: float
    expected: float
    products: int  # that it is a sum of
    largest: tuple[Product, ...]
    inputs: tuple[str, ...]  # names

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity."""
        return {
            "index": list(self.index),
            "got": self.got if isfinite(self.got) else str(self.got),
            "expected": self.expected if isfinite(self.expected) else str(self.expected),
            "products": self.products,
            "largest_products": [
                {name: {"index": list(place), "value": value}} | {other: {"index": list(elsewhere), "value": second}}
                for product in self.largest
                for (name, other), (place, elsewhere), (value, second) in [
                    (self.inputs[:2], product.places, product.factors)
                ]
            ],
        }

    def lines(self) -> list[str]:
        """For people."""
        lines = [
            f"worst element {list(self.index)}: got {self.got:.9g}, exactly {self.expected:.9g}, "
            f"the sum of {self.products} products"
        ]
        for product in self.largest:
            terms = zip(self.inputs[:2], product.places, product.factors, strict=True)
            lines.append("  " + " · ".join(f"{name}{list(place)} = {value:.6g}" for name, place, value in terms))
        more = self.products - len(self.largest)
        return [*lines, f"  and {more} smaller ones"] if self.largest and more > 0 else lines


def histogram(check: Check) -> list[dict[str, Any]]:
    """Elements by their error in bounds; what is not a number lies beyond all."""
    errors = np.where(np.isnan(check.errors), np.inf, check.errors)
    exact = int(np.count_nonzero(errors == 0))
    counts = np.histogram(errors[errors > 0], [*EDGES, np.inf])[0]
    rows = [{"from": 0.0, "to": 0.0, "elements": exact}]
    limits = zip(EDGES, (*EDGES[1:], None), counts.tolist(), strict=True)
    return rows + [{"from": low, "to": high, "elements": count} for low, high, count in limits]


def histogram_table(check: Check) -> Table:
    """A bar for each range."""
    rows = histogram(check)
    most = max((row["elements"] for row in rows), default=0)
    while len(rows) > 1 and not rows[-1]["elements"]:
        rows.pop()
    cells = [[_range(row), f"{row['elements']}", "#" * -(-BAR * row["elements"] // max(1, most))] for row in rows]
    return Table(["error in bounds", "elements", ""], cells, numbers=["elements"])


def _range(row: dict[str, Any]) -> str:
    if row["to"] is None:
        return f"FAILED above {row['from']:g}"
    if row["to"] == 0:
        return "exact"
    return f"{'FAILED ' if row['from'] >= 1 else ''}up to {row['to']:g}"


def worst(task: Task, check: Check, inputs: Sequence[np.ndarray], result: np.ndarray) -> Worst | None:
    """The element with the largest error and the largest products that it is made of."""
    resolved = task.resolved
    if not result.size:
        return None
    got = float(result[check.worst])
    names = SCHEMAS[resolved.op].inputs
    if resolved.op == "BiasAddBackward":
        channel = 1 if resolved.data_format == "NCX" else inputs[0].ndim - 1
        column = np.moveaxis(inputs[0], channel, 0)[check.worst[0]].astype(np.float64)
        return Worst(check.worst, got, float(column.sum()), column.size, (), names)
    expected = float(define_at(resolved, inputs, np.array([check.worst]))[0][0])
    if sum(prod(shape) for shape in resolved.input_shapes[:2]) > MOST_PLACES:
        return Worst(check.worst, got, expected, 0, (), names)
    places = factors_of(resolved, resolved.input_shapes, check.worst)
    values = [array.ravel()[flat].astype(np.float64) for array, flat in zip(inputs, places, strict=False)]
    order = np.argsort(-np.abs(values[0] * values[1]))[:SHOWN]
    largest = tuple(_product(resolved.input_shapes, places[:, i], [float(v[i]) for v in values]) for i in order)
    return Worst(check.worst, got, expected, places.shape[1], largest, names)


def _product(shapes: Sequence[Sequence[int]], flat: np.ndarray, values: Sequence[float]) -> Product:
    one, two = (
        tuple(int(i) for i in np.unravel_index(int(place), tuple(shape)))
        for place, shape in zip(flat, shapes, strict=False)
    )
    return Product((one, two), (values[0], values[1]))
