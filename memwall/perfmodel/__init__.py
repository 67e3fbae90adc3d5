"""Launch × GPU → seconds."""
