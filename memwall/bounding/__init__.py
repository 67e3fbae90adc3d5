"""``memwall bound``: the speed of light of a kernel, what libraries and compilers reach of it, and how good a measured
time is.

A target is anything that can be profiled, written out too: ``mm(bf16[4096,8192], bf16[8192,4096])``. Its bound is that
of one kernel that does all of it: each input read once, each result written once, all FLOPs at the peak of their pipe.
Next to it stand the predictions of kernels that exist, each with its 80 % range.

:mod:`.question` has the options, :mod:`.run` is the whole way: start there. :mod:`.answer` is what is said and saved,
:mod:`.judging` says whether a measured time is possible and where it stands, :mod:`.problems` asks in bulk,
:mod:`.page` is what is shown.
"""
