"""Requests × engine → when each token comes: what a server of language models does with the time of one step.

In: an object that knows the seconds of one engine step and the bytes of one sequence's cache
(:class:`~memwall.serving.simulation.engine.Steps`), a :class:`~memwall.serving.simulation.workload.RequestLoad` of
requests, and a :class:`~memwall.serving.simulation.engine.Policy` of the scheduler. Out: time to first token, time per
output token and throughput, by simulation of continuous batching (:mod:`~memwall.serving.simulation.requests`, where to
start reading; :mod:`~memwall.serving.simulation.scheduler` is one engine) or as a fixed point
(:mod:`~memwall.serving.simulation.steady`).
"""
