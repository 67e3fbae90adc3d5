"""``memwall profile --parallel``: a training step under a layout of many GPUs.

One rank is traced (:mod:`memwall.training.rank`) and read as blocks (:mod:`~memwall.training.blocks`); a step adds the
pipeline's schedule, messages, optimizer and memory (:mod:`~memwall.training.step`). :mod:`~memwall.training.search`
finds the fastest layout, best first by the bounds that it has, :mod:`~memwall.training.kinds` are the points of a
sweep, :mod:`~memwall.training.question` the options. Start with :mod:`memwall.training.run`.
"""
