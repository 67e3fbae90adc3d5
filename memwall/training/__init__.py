"""``memwall profile --parallel``: a training step under a layout of many GPUs.

One rank is traced (:mod:`memwall.training.rank`) and read as blocks (:mod:`~memwall.training.blocks`); a step adds the
pipeline's schedule, messages, optimizer and memory (:mod:`~memwall.training.step`). :mod:`~memwall.training.search`
finds the fastest layout, :mod:`~memwall.training.kinds` are the points of a sweep. Start with
:mod:`memwall.training.run`.
"""
