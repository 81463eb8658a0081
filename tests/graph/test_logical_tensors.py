import pytest

from convgrad import GraphError
from convgrad.graph import LogicalTensor
from convgrad.graph.tensors import dense_strides, span


def test_dense_strides_are_row_major_and_an_empty_axis_counts_as_one():
    assert dense_strides((2, 3, 4)) == (12, 4, 1)
    assert dense_strides((2, 0, 4)) == (4, 4, 1)
    assert dense_strides(()) == ()


def test_strides_are_filled_in_once_the_shape_is_known():
    unknown = LogicalTensor(1, "f32", (None, 3))
    assert unknown.strides is None
    assert unknown.with_shape((2, 3)).strides == (3, 1)
    assert LogicalTensor(1, "f32", [2, 3], strides=[1, 2]).strides == (1, 2)
    assert LogicalTensor(1, "f32", (2, 3), "any", (3, 1)).strides is None


def test_an_unknown_extent_alone_is_an_unknown_rank_for_files_spell_both_the_same():
    assert LogicalTensor(1, "f32", (None,)) == LogicalTensor(1, "f32", None)


@pytest.mark.parametrize(
    ("shape", "strides", "elements"),
    [
        ((2, 3), (3, 1), 6),
        ((2, 3), (10, 2), 15),
        ((1, 3), (99, 1), 3),
        ((0, 3), (3, 1), 0),
        ((), (), 1),
        ((4,), (0,), 1),
    ],
)
def test_memory_reaches_from_the_first_to_the_last_element(shape, strides, elements):
    assert span(shape, strides) == elements
    assert LogicalTensor(1, "bf16", shape, strides=strides).memory_bytes == 2 * elements


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1,), r"a tensor id is -1"),
        ((True,), r"a tensor id is True"),
        ((1, "float"), r"tensor 1: dtype is 'float'; it must be one of f32, bf16"),
        ((1, "f32", (2, -1)), r"tensor 1: an extent is -1"),
        ((1, "f32", (2, 1.5)), r"tensor 1: an extent is 1.5"),
        ((1, "f32", (1,) * 13), r"tensor 1: more than 12 extents; a tensor has at most 12"),
        ((1, "f32", range(10**12)), r"tensor 1: more than 12 extents; a tensor has at most 12"),
        ((1, "f32", 5), r"tensor 1: extents are 5; give a list of integers"),
        ((1, "f32", (2, 2), "strided", 3.5), r"tensor 1: strides are 3.5; give a list of integers"),
        ((1, "f32", (2, 2), "strided", (None, 1)), r"a stride is None; give every stride, or none"),
        ((1, "f32", (2,), "blocked"), r"layout_type is 'blocked'"),
        ((1, "f32", (2, 2), "strided", (1,)), r"1 strides for 2 axes"),
        ((1, "f32", (2, 2), "strided", (1, -2)), r"a stride is -2"),
        ((1, "f32", (2,), "strided", None, "const"), r"property_type is 'const'"),
        ((1, "f32", (2**31, 2**31)), r"18446744073709551616 bytes are more than any memory"),
        ((1, "f32", (2, 2), "strided", (2**62, 1)), r"bytes are more than any memory"),
    ],
)
def test_what_no_tensor_can_be_is_refused(arguments, message):
    with pytest.raises(GraphError, match=message):
        LogicalTensor(*arguments)
