"""What is saved: the profile of a workload, its measurements, and its schedules on demand.

In: graphs with their costs (:mod:`memwall.ops`) and schedules (:mod:`memwall.simulate`). Out: a :class:`Profile`, which
:meth:`~Profile.save` writes as ``memwall.profile/1`` and :meth:`~Profile.load` reads back with every key checked. It
holds the graph, so :meth:`Profile.schedule` plans and simulates it again for any GPU and policy, without torch and
without the model; only this package plans.

Start with :mod:`~memwall.record.profile`. :mod:`~memwall.record.format` has the rows of the file,
:mod:`~memwall.record.measurement` what was timed on a device, :mod:`~memwall.record.schedules` the plans and schedules
that are made once, :mod:`~memwall.record.kernels` where a kernel belongs, :mod:`~memwall.record.traced` what is known
of the trace beside the graph, :mod:`~memwall.record.capture` what Dynamo captured.

A field of the file is a field of a row in ``format``, ``graphs`` or ``measurement``, and of ``Estimate``, ``Totals``
and ``MemoryPeak``, which are saved as they are. To rename one in Python alone give it ``metadata={"key": OLD}``; else
older files and ``profiles/baselines`` are refused. :mod:`memwall.report.json_schema` makes the schema.
"""
