"""The modeled memory peak of a ResNet-50 training step next to torch's own MemTracker, which follows real lifetimes.

    python lab/benchmarks/memory_peak.py

MemTracker runs the step on fake CPU tensors, twice, so that the optimizer's state exists. ResNet-50 has no op whose CPU
form keeps other tensors for backward than the CUDA form does.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

import memwall
from memwall.frontend.targets import resolve

TARGET = Path(__file__).parents[2] / "profiles" / "resnet50" / "model.py"


def on_fake_tensors(module: nn.Module) -> nn.Module:
    """The module with its ``meta`` tensors replaced by fake CPU ones."""
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
                    held[name] = nn.Parameter(fake, tensor.requires_grad) if held is part._parameters else fake
    return module


def tracked_bytes() -> int:
    """Peak bytes of the second step, by MemTracker."""
    workload = resolve(str(TARGET))
    with torch.device("meta"):
        module = workload.model()
    with FakeTensorMode():
        module, inputs = on_fake_tensors(module), workload.inputs()
        optimizer = workload.optimizer(module.parameters())
        for group in optimizer.param_groups:
            group["foreach"] = True
        tracker = MemTracker()
        tracker.track_external(module, optimizer, *inputs)
        with tracker:
            for step in range(2):
                workload.loss(module(*inputs)).backward()
                optimizer.step()
                optimizer.zero_grad()
                if step == 0:
                    tracker.reset_mod_stats()
        (snapshot,) = tracker.get_tracker_snapshot("peak").values()
        return int(snapshot["Total"])


def main() -> None:
    tracked = tracked_bytes()
    modeled = memwall.profile(TARGET, mode="training").simulations[0].memory.total
    print(f"MemTracker {tracked:,} B, memwall {modeled:,} B, ratio {modeled / tracked:.4f}")


if __name__ == "__main__":
    main()
