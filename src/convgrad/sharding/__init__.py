"""Operations in parts: what each part of an operation that is split along one axis reads, computes and gives.

Nothing here computes or communicates; it is arithmetic on extents.
"""

from convgrad.sharding.ownership import Proportions, balanced
from convgrad.sharding.parts import Fetch, Part, Selection, ShardPlan, Share
from convgrad.sharding.plan import AXES, shard_plan

__all__ = ["AXES", "Fetch", "Part", "Proportions", "Selection", "ShardPlan", "Share", "balanced", "shard_plan"]
