"""Plan × GPU → Schedule."""
