"""Repeated blocks, traced once: the first of its kind is recorded, the others copy its ops.

``replay`` replaces module calls: start there. ``structure`` says which modules have equal structure, ``template`` is
what a replay keeps of a block.
"""
