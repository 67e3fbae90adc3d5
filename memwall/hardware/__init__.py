"""What a GPU can do.

In: the TOML files of ``hardware_specs/``, or one of the user's own; out: a :class:`Gpu`, its ceilings and the constants
of every kernel family; constants that it lacks come from the nearest GPU that has them.

Start with :mod:`~memwall.hardware.lookup` (a GPU by its name), then :mod:`~memwall.hardware.gpu` (what one is, or a
CPU). What a file may say is in :mod:`~memwall.hardware.gpu_spec`, what its constants mean in
:mod:`~memwall.hardware.constants`, what all GPUs of a compute capability share in :mod:`~memwall.hardware.chips`, the
links between GPUs in :mod:`~memwall.hardware.cluster`; :mod:`~memwall.hardware.files` finds the files.
"""
