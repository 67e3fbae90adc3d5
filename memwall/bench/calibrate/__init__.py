"""``memwall calibrate``: measure what this machine reaches, and write it down as a hardware spec, or as a host.

:func:`calibrate` (in ``run``) starts a process that measures; ``benchmarks`` says what is timed, ``sampling`` when a
sample of the CPU counts, ``spec`` writes the quantities as a file that ``--gpu`` takes; ``host_benchmarks`` and
``host_spec`` are the same for ``--host``. Importing this imports no torch.
"""

from memwall.bench.calibrate.run import calibrate, default_spec_path

__all__ = ["calibrate", "default_spec_path"]
