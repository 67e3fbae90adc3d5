"""How XLA is told of a device that is not there: a GPU's limits and rates as text, a TPU's slice by name.

The fields of a GPU are from ``GpuTargetConfigProto`` and ``GpuDeviceInfoProto`` (xla/stream_executor/
device_description.proto), as XLA's own files of known GPUs have them (xla/backends/gpu/target_config/specs).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memwall.core.errors import UsageError
from memwall.core.graph import Pipe
from memwall.hardware.chips import chip_of
from memwall.hardware.lookup import Gpu

#: GPUs of a host, as DGX systems have them
GPUS_OF_HOST = 8
#: chips of a host of a TPU slice by axis: libtpu's default
CHIPS_OF_HOST = (2, 2, 1)
#: versions that a target names. They only choose among code paths of the compiler: cuDNN's fusions want its version
CUDA_VERSION, DRIVER_VERSION, CUDNN_VERSION = "12.8.0", "13.0.0", (9, 10, 0)
#: from Hopper on the compiler may use instructions of that chip alone (sm_90a)
_OWN_INSTRUCTIONS = 9
_CAN = "XLA compiles without a device for NVIDIA GPUs from the P100 on, and for TPU v4, v5e, v5p, v6e and 7x"


@dataclass(frozen=True)
class TpuSlice:
    """A generation of TPUs: libtpu's name of it, the axes of its torus, and further options of a topology."""

    name: str
    axes: int
    options: Mapping[str, Any] = field(default_factory=dict)


#: part of a spec's name → its generation. Two cores of a v4 and a v5p are one device (megacore), two cores of a 7x are
#: two
TPUS: Mapping[str, TpuSlice] = {
    "v4": TpuSlice("v4", 3, {"chip_config_name": "megacore"}),
    "v5e": TpuSlice("v5e", 2),
    "v5p": TpuSlice("v5p", 3),
    "v6e": TpuSlice("v6e", 2),
    "7x": TpuSlice("tpu7x", 3),
}


@dataclass(frozen=True)
class XlaTarget:
    """A device as XLA is told of it. ``platform``: ``cuda`` or ``tpu``; ``description``: a GPU's target config, or the
    generation of a TPU, a key of :data:`TPUS`."""

    platform: str
    description: str

    def topology(self, devices: int) -> dict[str, Any]:
        """Arguments of ``jax.experimental.topologies.get_topology_desc`` for at least so many devices."""
        if self.platform == "cuda":
            hosts, rest = divmod(devices, GPUS_OF_HOST)
            by_host = f"1x{hosts}x{GPUS_OF_HOST}" if hosts and not rest else f"1x1x{devices}"
            return {
                "platform": "cuda",
                "topology_name": "memwall",
                "target_config": self.description,
                "topology": by_host,
            }
        tpu = TPUS[self.description]
        shape = slice_of(devices, tpu.axes)
        host = [most if size % most == 0 else 1 for size, most in zip((*shape, 1)[:3], CHIPS_OF_HOST, strict=True)]
        name = f"{tpu.name}:{'x'.join(map(str, shape))}"
        return {"platform": "tpu", "topology_name": name, "chips_per_host_bounds": host, **tpu.options}


def target_of(gpu: Gpu) -> XlaTarget:
    """What XLA compiles for on a GPU or TPU.

    Raises:
        UsageError: XLA has no compiler for it that runs without the device.
    """
    if gpu.architecture == "tpu":
        generation = next((name for name in TPUS if name in gpu.name), None)
        if generation is not None:
            return XlaTarget("tpu", generation)
    elif gpu.vendor == "NVIDIA" and gpu.compute_capability:
        return XlaTarget("cuda", target_config(gpu))
    why = "; its compiler for AMD needs ROCm's libraries and a GPU at start-up" * (gpu.vendor == "AMD")
    raise UsageError(f"XLA compiles nothing for {gpu.name} here{why}: {_CAN}, such as --gpu h100-sxm")


def target_config(gpu: Gpu) -> str:
    """An NVIDIA GPU as text of ``GpuTargetConfigProto``."""
    chip, capability = chip_of(gpu), gpu.compute_capability or ""
    major, minor = map(int, capability.split("."))
    features = {"feature_extension": "ACCELERATED_FEATURES"} if major >= _OWN_INSTRUCTIONS else {}
    adders = gpu.peak(Pipe("vector", "float32")) / (2 * gpu.sm_count * gpu.boost_clock_hz)
    dnn = dict(zip(("major", "minor", "patch"), CUDNN_VERSION, strict=True))
    described = f'"{gpu.name}"'
    return _text({
        "gpu_device_info": {
            "threads_per_block_limit": 1024,
            "threads_per_warp": chip.warp_size,
            "shared_memory_per_block": 48 * 1024,
            "shared_memory_per_core": chip.shared_bytes,
            "threads_per_core_limit": chip.threads,
            "core_count": gpu.sm_count,
            "fpus_per_core": round(adders),
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 2**16 - 1,
            "block_dim_limit_z": 2**16 - 1,
            "memory_bandwidth": round(gpu.dram_bytes_per_s),
            "l2_cache_size": gpu.l2_bytes,
            "clock_rate_ghz": gpu.boost_clock_hz / 1e9,
            "device_memory_size": gpu.dram_bytes,
            "shared_memory_per_block_optin": chip.shared_block_bytes,
            "registers_per_core_limit": chip.registers,
            "registers_per_block_limit": chip.registers,
            "cuda_compute_capability": {"major": major, "minor": minor, **features},
            "driver_version": f'"{DRIVER_VERSION}"',
            "runtime_version": f'"{CUDA_VERSION}"',
            "compile_time_toolkit_version": f'"{CUDA_VERSION}"',
            "dnn_version": f'"{".".join(map(str, CUDNN_VERSION))}"',
            "name": described,
        },
        "platform_name": '"CUDA"',
        "dnn_version_info": dnn,
        "device_description_str": described,
    })  # fmt: skip


def slice_of(chips: int, axes: int) -> tuple[int, ...]:
    """The shape of a slice of so many TPU chips that is nearest to a square or a cube: its sizes multiply to them."""
    sizes, left = [1] * axes, chips
    for prime in _primes(left):
        sizes[sizes.index(min(sizes))] *= prime
    return tuple(sorted(sizes))


def _primes(number: int) -> list[int]:
    """The prime factors of a number, the largest first."""
    found, prime = [], 2
    while number > 1:
        while number % prime == 0:
            found.append(prime)
            number //= prime
        prime += 1
    return found[::-1]


def _text(message: Mapping[str, Any]) -> str:
    """A message in protobuf's text format."""
    return " ".join(f"{k} {{ {_text(v)} }}" if isinstance(v, dict) else f"{k}: {v}" for k, v in message.items())
