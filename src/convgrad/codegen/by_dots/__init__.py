"""Stages of `plan/by_dots`."""
