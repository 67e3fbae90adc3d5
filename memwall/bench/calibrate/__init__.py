"""``memwall calibrate``: measure what this machine reaches, and write it down as a hardware spec.

Importing this imports no torch; measuring happens in a child process.
"""

from memwall.bench.calibrate.run import Calibration, calibrate, default_spec_path
from memwall.bench.calibrate.sampling import Quantity

__all__ = ["Calibration", "Quantity", "calibrate", "default_spec_path"]
