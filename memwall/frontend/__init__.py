"""A program → Graph."""
