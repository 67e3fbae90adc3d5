"""Profiles → tables."""
