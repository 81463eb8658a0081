"""Operations in parts: what each part of an operation that is split along one axis reads, computes and gives.

Nothing here computes or communicates; it is arithmetic on extents, and on plans of the whole for its order of sums.
"""

from convgrad.sharding.order import in_order_of
from convgrad.sharding.ownership import Proportions, balanced
from convgrad.sharding.parts import Fetch, Part, Selection, ShardPlan, Share
from convgrad.sharding.plan import AXES, shard_plan

__all__ = [
    "AXES", "Fetch", "Part", "Proportions", "Selection", "ShardPlan", "Share", "balanced", "in_order_of", "shard_plan",
]  # fmt: skip
