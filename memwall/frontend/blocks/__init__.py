"""Repeated blocks, traced once: the first of its kind is recorded, the others copy its ops.

``replay`` stands in for module calls: start there. ``structure`` says which modules are built alike, ``template`` is
what a replay keeps of a block. The copies are noted in ``Graph.layers``.
"""
