"""Stages of `plan/few_channels`."""
