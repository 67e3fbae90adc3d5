"""memwall's planner next to Inductor's decisions on 33 models of many kinds: DRAM bytes and kernels on an A100.

    python lab/benchmarks/inductor_models.py [--python PYTHON] [--name 'swin*'] [--mode inference] [--rows FILE]

The models are the zoo's at its default shapes (transformers' keep two layers and take a batch of 8),
and a 3-D U-Net; PYTHON is the zoo's environment (``lab/benchmarks/zoo.py``) with Triton in it. Each is compared in a
process of its own, and its row is added to FILE (reports/inductor_models.csv) as it comes; models that have one are
skipped. Inductor compiles most in half a minute, a loop over time in some minutes. ``python
lab/reports/inductor_report.py --models`` prints the rows, with the reason where Inductor's plan moves fewer bytes.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab" / "benchmarks")]

GPU = "a100-80gb-sxm"
BATCH = 8
ROWS = ROOT / "reports/inductor_models.csv"
#: name → the suite of the zoo that makes it; empty: :mod:`zoo_models.unet_3d`
MODELS: Mapping[str, str] = {
    **dict.fromkeys((
        "coatnet_0_rw_224", "convnext_tiny", "densenet121", "efficientnet_b0", "focalnet_tiny_srf", "gmlp_s16_224",
        "hrnet_w18", "levit_128", "maxvit_tiny_tf_224", "mixer_b16_224", "mobilenetv3_large_100", "nfnet_l0",
        "poolformer_s12", "regnety_008", "resmlp_12_224", "resnet50", "swin_tiny_patch4_window7_224",
        "vit_small_patch16_224", "xcit_tiny_12_p16_224",
    ), "timm"),
    **dict.fromkeys(("deeplabv3_resnet50", "inception_v3", "r3d_18", "shufflenet_v2_x1_0"), "torchvision"),
    **dict.fromkeys(("bert", "mamba", "qwen2", "t5", "whisper", "xlstm"), "transformers"),
    **dict.fromkeys(("AutoencoderKL", "DiTTransformer2DModel", "UNet2DConditionModel_sd15"), "diffusers"),
    "unet_3d": "",
}  # fmt: skip
#: columns of the rows: launches, and compulsory DRAM bytes by memwall's counting rules
COLUMNS = ("suite", "name", "mode", "kernels", "inductor_kernels", "bytes", "inductor_bytes")


def profiled(name: str, mode: str) -> Any:
    """The model's trace on meta."""
    import torch
    from zoo_models.suites import SUITES
    from zoo_models.unet_3d import UNet3D

    import memwall

    if not MODELS[name]:
        return memwall.profile(UNet3D(), (torch.empty(2, 1, 64, 64, 64, device="meta"),), gpu=GPU, mode=mode)
    with tempfile.TemporaryDirectory() as folder:
        workload = SUITES[MODELS[name]]().workload(name, mode, Path(folder))
        batch = BATCH if isinstance(workload, str) else None
        return memwall.profile(workload, gpu=GPU, mode=mode, batch=batch)


def compare(name: str, mode: str) -> dict[str, Any]:
    """The row of a model: both plans of its forward and backward."""
    import memwall
    from memwall.fusing.plan_diff import plan_diff
    from memwall.fusion import plan_graph

    record, gpu = profiled(name, mode), memwall.load_gpu(GPU)
    graph, costs = record.graph, record.costs[0]
    plans = [plan_graph(policy, graph, costs, gpu) for policy in ("memwall", "inductor")]
    found = plan_diff(graph, *plans, gpu)
    cells = (MODELS[name] or "own", name, mode, *found.kernels, *found.dram_bytes)
    return dict(zip(COLUMNS, cells, strict=True))


def _add(name: str, mode: str, rows: Path) -> None:
    """Compare in a fork, so that neither memory nor compiled state outlasts the model."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        row = compare(name, mode)
        is_new = not rows.exists()
        with rows.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(row)
        print(f"{name} {mode}: {row['bytes'] / row['inductor_bytes']:.4f}", flush=True)
    except Exception as error:
        print(f"{name} {mode}: {type(error).__name__}: {error}", flush=True)
    finally:
        os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the zoo's environment")
    parser.add_argument("--name", default="*", help="a pattern of the models' names")
    parser.add_argument("--mode", nargs="+", default=["inference"], choices=("inference", "training"))
    parser.add_argument("--rows", type=Path, default=ROWS)
    options = parser.parse_args()
    if options.python != sys.executable:
        os.execv(options.python, [options.python, __file__, *_without_python(sys.argv[1:])])
    from zoo_models.compiled_ops import import_compiled

    import_compiled()
    import transformers

    transformers.logging.set_verbosity_error()
    known = list(csv.DictReader(options.rows.open(encoding="utf-8"))) if options.rows.exists() else []
    done = {(row["name"], row["mode"]) for row in known}
    for mode in options.mode:
        for name in MODELS:
            if fnmatch.fnmatch(name, options.name) and (name, mode) not in done:
                _add(name, mode, options.rows)


def _without_python(arguments: list[str]) -> list[str]:
    place = next(i for i, text in enumerate(arguments) if text.startswith("--python"))
    return arguments[:place] + arguments[place + (1 if "=" in arguments[place] else 2) :]


if __name__ == "__main__":
    main()
