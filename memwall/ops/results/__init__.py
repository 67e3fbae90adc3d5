"""Rules for the results of a recorded call: shapes and dtypes from those of its arguments, without torch.

In: a :class:`memwall.ops.recorded.Recorded`. Out: the specs of its results, or an ``Unsupported`` that says what the
trace lacks. An op's row names its rule; start with :mod:`memwall.ops.results.derive`.
"""
