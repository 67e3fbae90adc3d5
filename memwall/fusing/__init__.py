"""``memwall fuse``: what fusion would win on each GPU, which pairs it misses and why, and the kernels' source.

:mod:`.run` is the whole way: policies side by side, refusals summed by rule, missed fusions, what graph breaks cost.
:mod:`.breaks` prices graph breaks, :mod:`.plan_diff` says how two plans differ, :mod:`.op_counts` how many ops each
level of PyTorch's representation has, :mod:`.rewrites` what the same model takes with fused layers and losses. Plans
come from :mod:`memwall.fusion`, kernels' source from the wing codegen. The command is :mod:`.command`.
"""
