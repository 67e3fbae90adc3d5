"""Versions of torch that can be modeled, with the libraries that their wheels bring; which of its kernels run follows.

The libraries are what the wheel for Linux on x86-64 requires on PyPI (``Requires-Dist`` of its METADATA, of the
last patch of each version). What differs among these versions besides is the order of the backends of attention and the
ops that autocast runs in float32. Older ones have other kernels: an RMS norm of four, a loss picked by 32 threads.
Which ops are lowered by version and GPU, and by what rules, is the table of :mod:`memwall.ops.lowering`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memwall.core.errors import unknown

#: backends of scaled dot-product attention in torch's order where it prefers cuDNN, by which a backend that the user
#: names excludes those before it
BACKENDS = ("cudnn", "flash", "efficient", "math")
#: implementations of flash attention to which ``torch.nn.attention.activate_flash_attention_impl`` switches -> the name
#: there, the first version that has it (pytorch pull requests 172040 and 167348), and the compute capabilities that run
#: it, by the instructions of their tensor cores (``_get_device_major`` in ``_fa3.py`` and ``_fa4.py``)
FLASH: Mapping[str, tuple[str, tuple[int, int], tuple[str, ...]]] = {
    "flash3": ("FA3", (2, 11), ("wgmma",)),
    "flash4": ("FA4", (2, 10), ("wgmma", "tcgen05")),
}


@dataclass(frozen=True, slots=True)
class TorchVersion:
    """A version of torch and the libraries that come with it."""

    name: str
    cuda: str
    cudnn: tuple[int, int, int]
    triton: str

    @property
    def number(self) -> tuple[int, ...]:
        """``2.13`` as numbers, which compare."""
        return tuple(map(int, self.name.split(".")))

    @property
    def libraries(self) -> str:
        """``CUDA 13.0, cuDNN 9.20``."""
        return f"CUDA {self.cuda}, cuDNN {self.cudnn[0]}.{self.cudnn[1]}"

    @property
    def prefers_cudnn(self) -> bool:
        """Whether attention goes to cuDNN first on compute capability 9.0 and 10.x: from 2.10 on, where cuDNN is newer
        than 9.15.0 (``sdp_utils.cpp``, ``check_prefer_cudnn_attention``; pytorch issue 169849)."""
        return self.number >= (2, 10) and self.cudnn > (9, 15, 0)


#: name → version, the oldest first
TORCH: Mapping[str, TorchVersion] = {
    row.name: row
    for row in (
        TorchVersion("2.9", "12.8", (9, 10, 2), "3.5"),
        TorchVersion("2.10", "12.8", (9, 10, 2), "3.6"),
        TorchVersion("2.11", "13.0", (9, 19, 0), "3.6"),
        TorchVersion("2.12", "13.0", (9, 20, 0), "3.7"),
        TorchVersion("2.13", "13.0", (9, 20, 0), "3.7"),
        TorchVersion("2.14", "13.0", (9, 24, 0), "3.8"),
        TorchVersion("2.15", "13.2", (9, 26, 0), "3.9"),
    )
}
#: what is modeled where no version is named
NEWEST = list(TORCH)[-1]
#: what records that name none were made for
UNSAID = "2.9"


def torch_version(name: str) -> TorchVersion:
    """The version of that name, ``2.13`` or ``2.13.1+cu130``. Raises UsageError: memwall knows no such version."""
    short = ".".join(name.partition("+")[0].split(".")[:2])
    if short not in TORCH:
        raise unknown("torch", name, TORCH)
    return TORCH[short]
