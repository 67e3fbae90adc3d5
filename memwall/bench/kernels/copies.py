"""What the machine itself reaches: a large copy, and a kernel that does nothing."""

from __future__ import annotations

import torch

from memwall.bench.kernels.devices import Device
from memwall.bench.kernels.messages import Copied

#: bytes copied where the caller does not say, by kind of device, and the most of the free memory
SIZES = {"cuda": 2 << 30, "cpu": 512 << 20}
MOST_SHARE = 0.25
BUDGET_S = 10.0


def copy_and_floor(device: Device, nbytes: int, samples: int) -> Copied:
    """Time a copy of an array of ``nbytes`` (0: a usual size) and one addition to a single element."""
    wanted = nbytes or min(SIZES[device.kind], int(MOST_SHARE * device.free_bytes()))
    source = torch.ones(wanted // 4, device=device.torch_device)
    target = torch.empty_like(source)
    copied, sensors = device.samples(device.ready(lambda: target.copy_(source), _nothing), samples, BUDGET_S)
    one = torch.ones(1, device=device.torch_device)
    floor, _ = device.samples(device.ready(lambda: one.add_(1.0), _nothing), samples, BUDGET_S)
    return Copied(2 * source.numel() * 4, tuple(copied), tuple(floor), sensors)


def _nothing() -> None:
    """There is nothing to put back."""
