"""The process that measures: ``python -m memwall.bench.calibrate.child '{"rounds": 15, ...}'`` prints one JSON
document.

It is apart because glibc's allocator reads its settings at the start: memory that it hands back and gets anew costs a
page fault per 4 KiB, which is slower than any kernel that writes there.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Measure a device; the quantities, or why there are none."""
    from memwall.bench.calibrate.sampling import Busy

    if job["device"] == "cuda":
        from memwall.bench.calibrate.cuda import measure_cuda

        return measure_cuda(job["rounds"])
    import torch

    from memwall.bench.calibrate.benchmarks import all_benchmarks
    from memwall.bench.calibrate.machine import cache_bytes
    from memwall.bench.calibrate.sampling import measure

    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    caches = cache_bytes()
    with torch.no_grad():
        try:
            found = measure(all_benchmarks(torch, caches), job["rounds"], accept_busy=job["accept_busy"])
        except Busy as busy:
            return {"busy": str(busy)}
    return {
        "torch": torch.__version__,
        "isa": torch.backends.cpu.get_cpu_capability(),
        "cache_bytes": caches,
        "quantities": [quantity.to_dict() for quantity in found.values()],
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201  the parent reads it
