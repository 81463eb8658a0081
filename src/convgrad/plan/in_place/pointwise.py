"""X or Y of one tap, channels first: a product of matrices, whose planes are read and written as they lie."""

from __future__ import annotations

from convgrad.plan.in_place.flat_data import FlatDataPlan
from convgrad.values import frozen


@frozen(kw_only=True)
class PointwisePlan(FlatDataPlan):
    """A FlatDataPlan of one tap, from any number of channels: no lane is ever beside the image.

    A task computes all output channels of some tiles, so that L2 has the input when it is read again for the next.
    """

    KIND = "along outputs, pointwise"

    @property
    def fetches_ahead(self) -> bool:
        """No: tiles would ask for the same lines in every block of output channels."""
        return False

    def validate(self) -> None:
        """Assert what the emitter relies on."""
        FlatDataPlan.validate(self)
        assert self.taps == 1
        assert self.columns is None
