"""Requests × engine → when each token comes: what a server of language models does with the time of one step.

In: an object that knows the seconds of one engine step and the bytes of one sequence's cache
(:class:`~memwall.simulate.serving.engine.Steps`), a :class:`~memwall.simulate.serving.workload.Workload` of requests,
and a :class:`~memwall.simulate.serving.engine.Policy` of the scheduler. Out: time to first token, time per output token
and throughput, by simulation of continuous batching (:mod:`~memwall.simulate.serving.requests`, where to start reading;
:mod:`~memwall.simulate.serving.scheduler` is one engine) or as a fixed point (:mod:`~memwall.simulate.serving.steady`).
"""
