"""Boundaries: equal shares, the same for axes of equal extent, and checked when they are given."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convgrad.errors import AttributeRuleError, ShapeError
from convgrad.sharding import Proportions, balanced

extents = st.integers(0, 1000)
counts = st.integers(1, 9)


@given(extents, counts)
def test_shares_differ_by_one_at_most(extent, parts):
    bounds = balanced(extent, parts)
    sizes = {b - a for a, b in pairwise(bounds)}
    assert (bounds[0], bounds[-1], len(bounds)) == (0, extent, parts + 1)
    assert max(sizes) - min(sizes) <= 1


@given(extents, counts, st.integers(1, 5))
def test_the_windows_of_a_part_lie_on_it_to_within_one(extent, parts, stride):
    for window, element in zip(balanced(extent, parts), balanced(extent * stride, parts), strict=True):
        assert window * stride <= element < (window + 1) * stride


@given(st.integers(0, 60), counts, st.integers(1, 16))
def test_boundaries_may_be_multiples(blocks, parts, multiple):
    bounds = balanced(blocks * multiple, parts, multiple=multiple)
    assert all(bound % multiple == 0 for bound in bounds)
    assert balanced(blocks, parts) == tuple(bound // multiple for bound in bounds)


def test_the_last_share_ends_with_the_axis():
    assert balanced(20, 3, multiple=8) == (0, 8, 16, 20)
    assert balanced(3, 5) == (0, 0, 1, 1, 2, 3)


def test_proportions_cut_other_extents_alike():
    parts = Proportions.of((0, 16, 48, 64))
    assert parts.boundaries(64) == (0, 16, 48, 64)
    assert parts.boundaries(32) == (0, 8, 24, 32)
    assert parts.boundaries(7) == (0, 1, 5, 7)
    assert str(parts) == "parts that end at 1/4, 3/4, 1"
    assert Proportions.even(3).boundaries(10) == balanced(10, 3) == (0, 3, 6, 10)


@pytest.mark.parametrize(
    ("boundaries", "error", "message"),
    [
        ((0,), AttributeRuleError, r"boundaries \[0\] has 1 entries, but 2 entries or more"),
        ((1, 4), AttributeRuleError, r"\[1, 4\] must begin with 0 and never fall"),
        ((0, 4, 3), AttributeRuleError, r"\[0, 4, 3\] must begin with 0 and never fall"),
        ((0, 0), ShapeError, r"\[0, 0\] are of an axis without elements, which has no proportions"),
    ],
)
def test_boundaries_that_are_none(boundaries, error, message):
    with pytest.raises(error, match=message):
        Proportions.of(boundaries)


def test_parts_are_counted():
    with pytest.raises(AttributeRuleError, match="balanced: parts holds 0, but must be at least 1"):
        balanced(4, 0)
