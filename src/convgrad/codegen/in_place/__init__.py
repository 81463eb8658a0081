"""Stages of `plan/in_place`."""
