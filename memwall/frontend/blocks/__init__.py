"""Repeated blocks, traced once."""
