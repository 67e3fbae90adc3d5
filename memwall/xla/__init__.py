"""What XLA would compile a JAX program to on a GPU or TPU that is not there: its own fusions, layouts, collectives and
buffers, read but not run.

A child process compiles the exported program for a description of the device (:mod:`~memwall.xla.target`,
:mod:`~memwall.xla.compiling`); :mod:`memwall.frontend.hlo` reads the optimized HLO. What needs timing on the device is
not decided without it: which product becomes Triton's, cuBLAS's or cuDNN's, and with which tiles. Fusion boundaries are
the compiler's, and products are priced as libraries reach them. JAX is imported in the child alone.
"""
