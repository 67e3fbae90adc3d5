"""What TorchDynamo captures of a program: partial graphs, the breaks between them, guards, recompilations.

``run`` is the entry point: a workload, and the graph whose ops it numbers → ``Capture``
(:mod:`memwall.record.capture`). ``record`` runs the step through Dynamo under the recorder, ``alone`` isolates it from
other uses of Dynamo in the process, ``text`` shortens Dynamo's messages.
"""
