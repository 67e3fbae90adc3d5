"""Whole runs of a server that somebody measured × the server as modeled → its engine as it is on that machine.

:mod:`.results` reads runs as vLLM's, SGLang's and InferenceX's benchmarks write them; :mod:`.fitting` fits the seconds
of the engine's CPU and a factor of its kernels to them; :mod:`.page` shows what came of it.
"""

from memwall.serving.calibration.fitting import FittedEngine, calibrate_engine

__all__ = ["FittedEngine", "calibrate_engine"]
