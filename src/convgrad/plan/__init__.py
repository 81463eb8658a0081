"""How a problem is computed, as data."""

from convgrad.plan.choose import Plan, choose

__all__ = ["Plan", "choose"]
