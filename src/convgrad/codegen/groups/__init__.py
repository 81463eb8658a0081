"""Stages of `plan/groups`."""
