"""What a caller hears who asks for parts that cannot be."""

import pytest

from convgrad.errors import AttributeRuleError, ShapeError
from convgrad.sharding import shard_plan

SHAPES = [(1, 8, 2), (3, 2, 4)]


def refused(error, match, axis=0, parts=2, op="Convolution", shapes=SHAPES, **keywords):
    with pytest.raises(error, match=match):
        shard_plan(op, axis, parts, shapes=shapes, **keywords)


@pytest.mark.parametrize("axis", ["height", 1, True])
def test_an_axis_that_is_none(axis):
    refused(
        AttributeRuleError,
        rf"Convolution: axis is {axis!r}, but the operation can be split along batch, groups, input_channels, "
        r"output_channels or a spatial axis from 0 to 0",
        axis,
    )


def test_a_bias_gradient_has_two_names_and_perhaps_no_spatial_axis():
    refused(
        AttributeRuleError,
        r"axis is 'groups', but the operation can be split along batch, output_channels or no spatial axis",
        "groups",
        op="BiasAddBackward",
        shapes=[(2, 3)],
    )


def test_no_parts():
    refused(AttributeRuleError, "Convolution: parts holds 0, but must be at least 1", parts=0)


def test_one_list_for_two_extents():
    refused(
        AttributeRuleError,
        r"boundaries is a list, but along spatial axis 0 src has 8 elements and dst has 6 elements; give \{tensor",
        boundaries=[0, 4, 8],
    )


def test_boundaries_of_another_tensor():
    refused(
        AttributeRuleError,
        r"boundaries are given for 'weights', but the axis 0 is one of src and dst; leave them out",
        boundaries={"weights": [0, 1, 3]},
    )


def test_one_axis_is_cut_once():
    refused(
        AttributeRuleError,
        "boundaries of input_channels differ between src and weights; give them once",
        "input_channels",
        boundaries={"src": [0, 1, 2], "weights": [0, 0, 2]},
    )


def test_boundaries_of_another_extent_or_number():
    refused(ShapeError, r"boundaries of src \[0, 4, 9\] end at 9, but the axis has 8 ", boundaries={"src": [0, 4, 9]})
    refused(AttributeRuleError, r"boundaries of src \[0, 8\] has 2 entries, but 2 parts", boundaries={"src": [0, 8]})


def test_mistakes_in_the_operation_are_heard_as_ever():
    refused(ShapeError, "Convolution: src has 2 channels, which groups = 3 does not divide", groups=3)
    refused(AttributeRuleError, "there is no attribute 'stride'", stride=[1])
    refused(AttributeRuleError, "Convolve: no such operation", op="Convolve")
    refused(ShapeError, "0 inputs are given", shapes=[])
