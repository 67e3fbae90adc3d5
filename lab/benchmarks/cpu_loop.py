"""Validation on a CPU: ceilings measured here, models modeled on them, and the same models timed here, op by op.

    python lab/benchmarks/cpu_loop.py                        calibrate, then model and measure BERT-base and ResNet-50
    python lab/benchmarks/cpu_loop.py --spec cpu.toml        the same on a spec that is there already
    python lab/benchmarks/cpu_loop.py --calibrate-repeat 5   how far five calibrations lie apart
    python lab/benchmarks/cpu_loop.py --chain                four pointwise ops: eager and fused by torch.compile

One thread; every timing is CPU time, so that waiting for the core is no part of it. Other processes still slow it down:
caches, memory and, on some machines, the core's arithmetic are shared. Figures count on an idle machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

from memwall.bench.calibrate import calibrate  # noqa: E402
from memwall.bench.clock import timing_environment  # noqa: E402
from memwall.hardware.lookup import load_gpu  # noqa: E402

BERT_BASE = {"WIDTH": 768, "HEADS": 12, "FFN": 3072, "LAYERS": 12}
#: label -> model file, constants that replace the file's, arguments of its inputs()
WORKLOADS = {
    "bert-base 1 x 128": ("bert_large", BERT_BASE, {"batch": 1, "seq": 128}),
    "bert-base 4 x 128": ("bert_large", BERT_BASE, {"batch": 4, "seq": 128}),
    "bert-base 1 x 512": ("bert_large", BERT_BASE, {"batch": 1, "seq": 512}),
    "resnet-50 4": ("resnet50", {}, {"batch": 4}),
    "resnet-50 8": ("resnet50", {}, {"batch": 8}),
}
PASSES = 7
CHAIN_ELEMENTS = 64 << 20


def build(label: str):
    """The module in float32 and eval mode, and its inputs."""
    name, constants, sizes = WORKLOADS[label]
    spec = importlib.util.spec_from_file_location(f"{name}_model", ROOT / "profiles" / name / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for constant, value in constants.items():
        setattr(module, constant, value)
    return module.model().float().eval(), module.inputs(**sizes)


# ---- measured, in a process of its own


def measure_model(label: str) -> dict:
    """Seconds of the whole pass, and of each op name within it: medians over the passes."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Timer(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.ops = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            start = time.process_time()
            result = function(*args, **(kwargs or {}))
            self.ops.append((str(function), time.process_time() - start))
            return result

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, inputs = build(label)
    whole, by_op = [], defaultdict(list)
    with torch.no_grad():
        model(*inputs)
        model(*inputs)
        for _ in range(PASSES):
            start = time.process_time()
            model(*inputs)
            whole.append(time.process_time() - start)
            with Timer() as timer:
                model(*inputs)
            sums = Counter()
            for name, seconds in timer.ops:
                sums[name] += seconds
            for name, seconds in sums.items():
                by_op[name].append(seconds)
    return {"whole_s": whole, "ops_s": {name: statistics.median(samples) for name, samples in by_op.items()}}


def measure_chain() -> dict:
    """Seconds of relu((x + b) * g) + r over 64 Mi float32: four eager kernels, and one of torch.compile's."""
    import torch

    torch.set_num_threads(1)
    x, b, r, g = (torch.randn(CHAIN_ELEMENTS) for _ in range(4))
    o1, o2, o3, o4 = (torch.empty(CHAIN_ELEMENTS) for _ in range(4))

    def eager():
        torch.add(x, b, out=o1)
        torch.mul(o1, g, out=o2)
        torch.clamp_min(o2, 0, out=o3)
        torch.add(o3, r, out=o4)

    compiled = torch.compile(lambda x, b, r, g, out: out.copy_(torch.relu((x + b) * g) + r))
    eager()
    wanted = o4.clone()
    compiled(x, b, r, g, o4)
    same = bool(torch.equal(wanted, o4))
    samples = {"eager": [], "fused": []}
    for _ in range(PASSES):
        for name, run in (("eager", eager), ("fused", lambda: compiled(x, b, r, g, o4))):
            start = time.process_time()
            run()
            samples[name].append(time.process_time() - start)
    return {"equal": same, **{name: statistics.median(taken) for name, taken in samples.items()}}


def in_child(*arguments: str) -> dict:
    """The answer of this script in a process with the allocator's settings."""
    command = [sys.executable, __file__, "--child", *arguments]
    done = subprocess.run(command, env=timing_environment("cpu", 1), capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# ---- modeled


def model_classes(label: str, spec: Path) -> tuple[float, Counter]:
    """Modeled seconds of the whole pass and of each op class, eager."""
    import memwall

    module, inputs = build(label)
    profile = memwall.profile(module, inputs, gpu=spec)
    schedule = profile.simulations[0]
    by_class = Counter()
    for kernel in schedule.kernels:
        by_class[kernel.op_class] += kernel.time_s
    return schedule.totals.time_s, by_class


def compare(label: str, spec: Path) -> tuple[float, float]:
    """Print modeled next to measured for one workload; both totals in seconds."""
    from memwall.ops import classify

    measured = in_child(label)
    total_s, modeled = model_classes(label, spec)
    timed = Counter()
    for name, seconds in measured["ops_s"].items():
        timed[classify(name)] += seconds
    whole_s = statistics.median(measured["whole_s"])
    low, high = min(measured["whole_s"]), max(measured["whole_s"])
    print(f"\n{label}: modeled {total_s * 1e3:.1f} ms, measured {whole_s * 1e3:.1f} ms "
          f"({low * 1e3:.1f} to {high * 1e3:.1f}): {total_s / whole_s - 1:+.1%}")  # fmt: skip
    for name in sorted({*modeled, *timed}, key=lambda name: -timed[name]):
        error = f"{modeled[name] / timed[name] - 1:+8.0%}" if timed[name] else "        "
        print(f"  {name:14} modeled {modeled[name] * 1e3:8.2f} ms, measured {timed[name] * 1e3:8.2f} ms {error}")
    return total_s, whole_s


def compare_chain(spec: Path) -> None:
    """Print the chain's times: the model is bytes over the triad's rate, 11 arrays eager and 5 fused."""
    gpu = load_gpu(spec)
    rate = gpu.dram_bytes_per_s * gpu.achievable["dram"]
    modeled = {"eager": 11 * 4 * CHAIN_ELEMENTS / rate, "fused": 5 * 4 * CHAIN_ELEMENTS / rate}
    measured = in_child("chain")
    for name, seconds in modeled.items():
        print(f"chain, {name}: modeled {seconds * 1e3:.1f} ms, measured {measured[name] * 1e3:.1f} ms: "
              f"{seconds / measured[name] - 1:+.1%}")  # fmt: skip
    print(f"chain, speed-up: modeled {modeled['eager'] / modeled['fused']:.2f}, "
          f"measured {measured['eager'] / measured['fused']:.2f}; results equal: {measured['equal']}")  # fmt: skip


# ---- how far calibrations lie apart


def repeat_calibration(times: int, accept_busy: bool) -> None:
    """Calibrate again and again; print how far each quantity lies from its median at most."""
    runs = [{q.name: q.rate for q in calibrate(accept_busy=accept_busy).quantities} for _ in range(times)]
    worst = {}
    for name in runs[0]:
        rates = [run[name] for run in runs]
        middle = statistics.median(rates)
        worst[name] = max(abs(rate / middle - 1) for rate in rates)
    for name, off in sorted(worst.items(), key=lambda item: -item[1]):
        rates = ", ".join(f"{run[name]:.3e}" for run in runs)
        print(f"{name:30} at most {off:6.1%} from the median  ({rates})")
    within = sum(off <= 0.05 for off in worst.values())
    print(f"{within} of {len(worst)} quantities within 5 % over {times} calibrations; load {os.getloadavg()[0]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path)
    parser.add_argument("--calibrate-repeat", type=int, metavar="N")
    parser.add_argument("--chain", action="store_true")
    parser.add_argument("--only", choices=tuple(WORKLOADS), action="append")
    parser.add_argument("--accept-busy", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure_chain() if options.child == "chain" else measure_model(options.child)))
        return
    if options.calibrate_repeat:
        repeat_calibration(options.calibrate_repeat, options.accept_busy)
        return
    with TemporaryDirectory() as folder:
        spec = options.spec or Path(folder) / "cpu.toml"
        if not options.spec:
            spec.write_text(calibrate(accept_busy=options.accept_busy).spec, encoding="utf-8")
        if options.chain:
            compare_chain(spec)
            return
        print(f"load {os.getloadavg()[0]:.2f}")
        for label in options.only or WORKLOADS:
            compare(label, spec)


if __name__ == "__main__":
    main()
