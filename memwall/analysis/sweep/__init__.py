"""Many configurations at once, apart from how each is evaluated (:mod:`memwall.sweeping` does that).

In go axes (an option and its values) and conditions as a user writes them; out come the points that they span, in a
fixed order, and of the evaluated points those that are left, the best, and the Pareto front. Start with
:mod:`.axes`.
"""
