"""Bytes of memwall's generated kernels in the reference workloads, by the planner and by the reader of Triton kernels.

``python lab/reports/generated_bytes.py [--mode training] [WORKLOAD ...]``
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

import memwall  # noqa: E402
from memwall_lab.generated_bytes import counted  # noqa: E402

WORKLOADS = ("bert_large", "bert_layer", "dlrm", "gpt2_xl", "llama3_8b", "mixtral_8x7b", "resnet50", "unet", "vit_l16")
GPU = "h100"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=WORKLOADS)
    parser.add_argument("--mode", default="inference")
    asked = parser.parse_args()
    for name in asked.workloads:
        target = ROOT / "profiles" / name / "model.py"
        kernels = list(counted(memwall.profile(target, gpu=GPU, policy="memwall", mode=asked.mode), GPU))
        for several in (False, True):
            some = [kernel for kernel in kernels if (kernel.launches > 1) == several]
            equal = sum(kernel.agree for kernel in some)
            print(
                f"{name}: {'several launches' if several else 'one launch'}: {equal} of {len(some)} equal", flush=True
            )
            for kernel in some:
                if not kernel.agree:
                    print(f"  {kernel}", flush=True)


if __name__ == "__main__":
    main()
