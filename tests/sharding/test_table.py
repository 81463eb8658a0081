"""The table of docs/sharding.md says of every operation and axis what plans say."""

from pathlib import Path

import pytest

from convgrad.errors import AttributeRuleError
from convgrad.sharding import AXES, shard_plan
from convgrad.spec.schemas import SCHEMAS

PAGE = Path(__file__).parents[2] / "docs" / "sharding.md"
ROWS = {
    cells[0]: cells[1:]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if (cells := [cell.strip() for cell in line.strip("|").split("|")])[0] in SCHEMAS
}
AT = {
    "Convolution": dict(shapes=[(2, 8, 4), (3, 2, 4), (4,)], groups=2),
    "ConvolutionBackwardData": dict(shapes=[(2, 6, 4), (3, 2, 4)], groups=2, dst_shape=(2, 8, 4)),
    "ConvolutionBackwardWeights": dict(shapes=[(2, 8, 4), (2, 6, 4)], groups=2, weights_shape=(3, 2, 4)),
    "ConvTranspose": dict(shapes=[(2, 6, 4), (3, 2, 4), (4,)], groups=2),
    "ConvTransposeBackwardData": dict(shapes=[(2, 8, 4), (3, 2, 4)], groups=2),
    "ConvTransposeBackwardWeights": dict(shapes=[(2, 6, 4), (2, 8, 4)], groups=2, weights_shape=(3, 2, 4)),
    "BiasAddBackward": dict(shapes=[(2, 8, 4)]),
}


def words(op, axis):
    """What the cell of the table has to say."""
    try:
        plan = shard_plan(op, axis, 2, **AT[op])
    except AttributeRuleError:
        return ""
    haloed = {share.tensor for part in plan.parts for share in part.inputs if share.fetches}
    tensors = [tensor for tensor in (*SCHEMAS[op].inputs, SCHEMAS[op].output) if tensor in plan.boundaries]
    names = ", ".join(f"{tensor} with halo" if tensor in haloed else tensor for tensor in tensors)
    return names + ("; sum" if plan.needs_sum else "")


@pytest.mark.parametrize("op", SCHEMAS)
def test_the_table_says_what_plans_say(op):
    assert ROWS[op] == [words(op, axis) for axis in (*AXES, 0)]
