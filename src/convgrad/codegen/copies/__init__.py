"""Copies that convert, turn, deal or split as they go, and the slabs and panels they fill."""
