"""Walks through blocks and register tiles."""
