"""Stages of `plan/by_matrix`."""
