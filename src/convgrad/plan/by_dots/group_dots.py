"""W of a few channels per group, lanes along x across groups, by dot products of windows of two images."""

from __future__ import annotations

from convgrad.plan.by_matrix.matrix import watched
from convgrad.plan.groups.group_weights import GroupWeightsPlan
from convgrad.plan.kinds import as_kind
from convgrad.values import frozen, replace


@frozen(kw_only=True)
class GroupDotsPlan(GroupWeightsPlan):
    """A GroupWeightsPlan whose slabs hold words: a number of an image and that of the next one at the same place.

    So borders are those of one image. The first axis counts pairs of images; the last one may be alone, next to zeros.
    Numbers are looked at as they are packed; `fallback` computes everything again where dot products may not stand for
    f32 arithmetic.
    """

    KIND = "lanes along x across groups, y picked, by dot products of two images"
    ON_UNITS = True

    fallback: GroupWeightsPlan | None = None

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        GroupWeightsPlan.validate(self)
        assert self.problem.dtype == "bf16"
        assert self.fallback is not None
        assert self.axes[0].windows == -(-self.problem.batch // 2)
        assert not self.problem.accumulate
        assert not self.problem.bias_gradient, "whose sums are of single images"

    def __str__(self) -> str:
        return "\n".join([GroupWeightsPlan.__str__(self), *watched(self.fallback)])


def of_two_images(plan: GroupWeightsPlan) -> GroupDotsPlan:
    """The same of pairs of images, for which blocks are to be found."""
    pairs = -(-plan.problem.batch // 2)
    batch = replace(plan.axes[0], windows=pairs, image=pairs)
    return as_kind(GroupDotsPlan, plan, axes=(batch, *plan.axes[1:]), fallback=plan)
