"""Plan × GPU → Schedule.

In: a graph and the plan of its kernels (:mod:`memwall.fusion`), and a GPU. Out: a :class:`Schedule`, every kernel's
seconds in launch order with its wall, the sums over them, and the device memory that the step needs.

:mod:`~memwall.simulate.schedule` is where to start reading; it prices each kernel of a plan
(:mod:`~memwall.simulate.plan_context`) with :mod:`memwall.perfmodel`. :mod:`~memwall.simulate.launch_queue` says when
each one starts, :mod:`~memwall.simulate.memory` what is alive and what is still in L2,
:mod:`~memwall.simulate.streams` runs kernels side by side, :mod:`~memwall.simulate.pipeline` stages of programs.
"""
