"""Stages of `plan/general`."""
