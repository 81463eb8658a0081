"""Stages of `plan/depthwise`."""
