"""How long a training step on many GPUs takes to model: Llama 3 405B on 1,024 GPUs, then other layouts and clusters
from the same trace, in CPU seconds. ``python lab/benchmarks/layout_speed.py``."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memwall.training.run import parallel

MODEL = Path(__file__).parents[2] / "profiles" / "llama3_405b" / "model.py"
LAYOUTS = (
    "tp=8,sp,pp=16,dp=8,fsdp=grad,microbatches=32", "tp=8,sp,pp=9,dp=14,microbatches=36,schedule=interleaved:7",
    "tp=8,sp,pp=18,dp=7,microbatches=512",
)  # fmt: skip
CLUSTERS = ("dgx-h200", "hgx-b200", "dgx-a100-80gb", "gb200-nvl72")


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begun_s = time.process_time()
    return call(), time.process_time() - begun_s


def main() -> None:
    layout = "tp=8,sp,pp=16,dp=8,fsdp=full,microbatches=32,recompute=selective"
    found, first_s = timed(lambda: parallel(str(MODEL), layout=layout, cluster="dgx-h100", batch=1, seq=8192))
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"traced and simulated: {first_s:.1f} s, {peak_bytes / 1e6:.0f} MB")
    for other in LAYOUTS:
        print(f"{other}: {1e3 * timed(lambda text=other: found.on(text))[1]:.0f} ms")
    for cluster in CLUSTERS:
        print(f"{cluster}: {1e3 * timed(lambda name=cluster: found.on(cluster=name))[1]:.0f} ms")


if __name__ == "__main__":
    main()
