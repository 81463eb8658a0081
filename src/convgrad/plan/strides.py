"""Strides of packed buffers."""

from convgrad.problem.conv import Ints


def row_major(extents: Ints, innermost: int) -> Ints:
    """Steps per axis where the last axis has step `innermost`."""
    strides: list[int] = []
    for extent in reversed(extents):
        strides.insert(0, innermost)
        innermost *= extent
    return tuple(strides)
