"""What TorchDynamo captures of a program: partial graphs, the breaks between them, guards, recompilations.

``capture`` is the one way in: a workload, and the graph whose ops it numbers → ``Capture``. ``record`` runs the step
through Dynamo under the recorder, ``alone`` keeps it apart from what else uses Dynamo in the process, ``text`` shortens
what Dynamo says.
"""
