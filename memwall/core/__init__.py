"""What every stage shares; it imports nothing of memwall.

:mod:`~memwall.core.graph` is the type that all data flows in: values, storages, ops. :mod:`~memwall.core.layers`
finds what repeats in one, :mod:`~memwall.core.flow` who writes and reads each value. :mod:`~memwall.core.structure`
turns any dataclass into JSON and back with every key checked; :mod:`~memwall.core.files` reads and writes files whole
or not at all; :mod:`~memwall.core.process` runs child processes with a limit and a cause of death;
:mod:`~memwall.core.errors` has the errors that a user can fix, and wrong names; :mod:`~memwall.core.units` turns
numbers into text. Start with the graph.
"""
