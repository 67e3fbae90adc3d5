"""How depthwise convolutions use a GPU: each channel by a window of its own.

They are no matmuls. PyTorch's kernels loop over the window with one thread per output (DepthwiseConv2d.cu); cuDNN's,
for narrower types and channels last, reach a fraction of the peak, but for float32 with channels last on chips like the
A100: there a block makes one place of all channels and waits for each tap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from memwall.core.units import flop_rate, percent
from memwall.hardware.chips import chip_of
from memwall.hardware.constants import ConvolutionConstants
from memwall.hardware.lookup import Gpu
from memwall.ops.product_launches import Convolution
from memwall.perfmodel.base import Terms, traffic_s

#: clocks of a thread of PyTorch's depthwise kernels for each tap of its output's window, mostly latency: 3 x 3
#: windows on a Titan Xp (2048 threads, 16.4e9 outputs/s) and an RTX 2080 Ti (1024, 22.4e9) take 600 and 540 (PyTorch
#: issue 18631); 5 x 5 on a newer GPU 600 if that is an A100, 900 if an H100 (pull request 125362)
_TAP_CLK = 590
#: the same of a thread that shares its multiprocessor with few others (2 x 96 channels of 14 x 14 on an H200)
_LONE_TAP_CLK = 350
#: clocks of a block of cuDNN's float32 kernel for each tap of its place, channels last: level1_82 and 84 of KernelBench
#: under torch.compile on an A100, 16 x 3 channels by windows of 3 x 3 (800 and 815 of its 32 blocks a multiprocessor)
_PLACE_TAP_CLK = 800
#: shared memory of a multiprocessor beyond which the library has other kernels, as on an A100 and not on an A10G and an
#: L40S: tensor cores for 3-D windows over few channels, a block for each place of a depthwise convolution
LARGE_SHARED = 128 * 1024
#: what PyTorch gives cuDNN of depthwise convolutions that do not have channels last (Convolution.cpp,
#: ``check_cudnn_depthwise_workload_with_filter``): 2 bytes an element, so many channels, one of these square windows
#: over rows of at least so many places
_LIBRARY_CHANNELS, _LIBRARY_WINDOWS, _LIBRARY_PLACES = 32, ((1, 1), (3, 3), (5, 5)), 7
#: with a stride of 2 and several images of them: (least channels, least places of a row), for windows of 3 and 5
_LIBRARY_STRIDED = ((512, 0), (256, 28))


def predict(launch: Convolution, gpu: Gpu, known: ConvolutionConstants, resident: int) -> Terms:
    """The terms of a launch with the constants given; ``resident`` bytes of its reads are in L2."""
    window = math.prod(launch.kernel)
    taps = launch.images * launch.groups * launch.channels_out * math.prod(launch.places_out) * window
    memory_s = traffic_s(gpu, launch.bytes - resident, resident)
    if launch.role == "weight":  # one block per window position reads both tensors
        memory_s += traffic_s(gpu, 0, (window - 1) * launch.read_bytes)
    facts: dict[str, Any] = {"way": "depthwise", "window": window}
    chip, arithmetic_s, waits_s = chip_of(gpu), 2 * taps / gpu.peak(launch.pipe), 0.0
    if _by_library(launch) or launch.role == "weight":  # or a sum over the positions
        facts["rate"] = f"it reaches {percent(known.depthwise, 0)} of {flop_rate(gpu.peak(launch.pipe), launch.pipe)}"
        if launch.channels_last and launch.itemsize == 4 and chip.shared_bytes > LARGE_SHARED:
            rounds = math.ceil(launch.images * math.prod(launch.places_out) / (gpu.sm_count * chip.blocks))
            waits_s = rounds * window * _PLACE_TAP_CLK / gpu.boost_clock_hz
            facts["rate"] += f", in a block for each place: {rounds} rounds of {_PLACE_TAP_CLK} clocks for each tap"
        return Terms.of(arithmetic_s / known.depthwise, memory_s, waits_s, facts=facts)
    facts["rate"] = (
        f"a thread takes {_TAP_CLK} clocks for a tap, and each of {gpu.sm_count} SMs has {chip.threads} threads"
    )
    waits_s = max(taps * _TAP_CLK / (chip.threads * gpu.sm_count), window * _LONE_TAP_CLK) / gpu.boost_clock_hz
    return Terms.of(arithmetic_s, memory_s, waits_s, facts=facts)


def _by_library(launch: Convolution) -> bool:
    """Whether PyTorch gives the launch to cuDNN instead of its own kernels."""
    if launch.channels_last:
        return True
    plain = launch.kernel in _LIBRARY_WINDOWS and all(step == 1 for step in launch.dilation)
    places = launch.places_in[-1]
    if launch.itemsize != 2 or not plain or launch.groups < _LIBRARY_CHANNELS or places < _LIBRARY_PLACES:
        return False
    if set(launch.stride) == {1}:
        return True
    if set(launch.stride) != {2} or launch.kernel == (1, 1):
        return False
    return launch.images == 1 or any(launch.groups >= n and places >= least for n, least in _LIBRARY_STRIDED)


def say(launch: Convolution, gpu: Gpu, facts: Mapping[str, Any]) -> str:
    """Why the launch takes its time: the first half of a sentence."""
    window = "x".join(map(str, launch.kernel))
    return f"A depthwise kernel convolves each of {launch.groups} channels by a window of {window}: {facts['rate']}"
