"""Scaled dot-product attention: one traced op, whose kernels are chosen per GPU.

A trace records each call as ``aten.scaled_dot_product_attention`` (and ``..._backward``), and for each kind of call
what every backend launches that some GPU would take. :class:`memwall.ops.lowering.LowerableGraph` has both, and
makes the graph of one choice, without torch.

The choice is as in torch's ``ATen/native/transformers/cuda/sdp_utils.cpp``: the first backend, in the order of the
version of torch on the chip or in the one that the model set (``sdpa_kernel``, ``enable_flash_sdp``), that takes the
call there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from memwall.core.errors import UsageError
from memwall.core.graph import Graph, Op, TensorSpec
from memwall.hardware.chips import CHIPS, Chip
from memwall.hardware.torch_versions import BACKENDS, FLASH, TorchVersion

FORWARD, BACKWARD = "aten.scaled_dot_product_attention", "aten.scaled_dot_product_attention_backward"
#: torch's order, which a trace finds where the model sets none; a call that was made under another one, or with some of
#: them alone, has that as its attribute ``order``
ORDER = ("flash", "efficient", "math", "cudnn")
#: a chip of each generation by the backend that it prefers, for traces of no particular GPU
GENERATIONS: Mapping[str, Chip] = {
    "cudnn": CHIPS["sm_90"], "flash": CHIPS["sm_80"], "efficient": CHIPS["sm_70"], "math": CHIPS["gfx908"],
}  # fmt: skip


def runs_on(chip: Chip) -> tuple[str, ...]:
    """The attention kernels that torch has on a chip, or can be switched to."""
    fused = {"flash": ("flash", "efficient"), "efficient": ("efficient",), "math": ()}[chip.attention]
    switched = [name for name, (_, _, built_for) in FLASH.items() if chip.products in built_for]
    return (*("cudnn",) * (chip.attention == "flash" and chip.warp_size == 32), *fused, "math", *switched)


class Backends(NamedTuple):
    """What decides between backends besides the call: the chip, the version of torch, and the backend that the user
    names for every GPU, empty: none."""

    chip: Chip
    torch: TorchVersion
    preferred: str = ""

    @property
    def order(self) -> tuple[str, ...]:
        """The backends that torch tries, in order."""
        return BACKENDS if self.torch.prefers_cudnn and self.chip.cudnn_first else ORDER

    @property
    def label(self) -> str:
        """What a graph of these kernels is called: the backend that comes first."""
        preferred = "flash" if self.preferred in FLASH else self.preferred
        return preferred or next(name for name in self.order if name in runs_on(self.chip))

    def ordered(self, given: Sequence[str]) -> list[str]:
        """The backends that a call tries, of the backends that its model allows; the user's backend and what comes
        after it where the model allows any of these."""
        default = tuple(name for name in ORDER if name in given) == tuple(given)
        names = [name for name in self.order if name in given] if default else list(given)
        if not self.preferred:
            return names
        kept = BACKENDS[BACKENDS.index("flash" if self.preferred in FLASH else self.preferred) :]
        return sorted((name for name in names if name in kept), key=kept.index) or names


_HALF = ("float16", "bfloat16")
#: chips on which flash attention has no backward for heads of 193 to 224, nor above with dropout
_SMALL_SHARED = (CHIPS["sm_86"], CHIPS["sm_89"], CHIPS["sm_120"])


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call: its tensors by argument, and what else decides: ``dropout_p``, ``is_causal``, ``enable_gqa``,
    ``gradients`` (the inputs that require one), ``order``."""

    tensors: Mapping[str, TensorSpec]
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, graph: Graph, op: Op) -> AttentionCall:
        """The call that a traced op is."""
        return cls(dict(zip(op.arguments, graph.specs(op.inputs), strict=True)), op.attributes)

    def backend(self, backends: Backends) -> str:
        """The backend that the call runs in.

        Raises:
            UsageError: the model allows none that runs there.
        """
        given, chip = self.attributes.get("order", ORDER), backends.chip
        found = next((n for n in backends.ordered(given) if n == "math" or _TAKES[n](self, backends)), None)
        if found is None:
            raise UsageError(
                f"the model allows only {', '.join(given) or 'no'} attention (sdpa_kernel or enable_*_sdp), and "
                f"{chip.architecture or 'this GPU'} has no such kernel for its call; allow math too"
            )
        if found != "flash" or backends.preferred not in FLASH:
            return found
        if self.attributes.get("dropout_p", 0):
            raise UsageError(f"{FLASH[backends.preferred][0]} has no dropout, which the model's attention has")
        return backends.preferred

    def backends(self, torch: TorchVersion, preferred: str = "") -> tuple[str, ...]:
        """What some chip takes, each once."""
        found = {}
        for chip in CHIPS.values():
            try:
                found[self.backend(Backends(chip, torch, preferred))] = True
            except UsageError:
                continue
        return tuple(found)

    @property
    def _sizes(self) -> tuple[int, int, int]:
        query, key, value = (self.tensors[name].shape[-1] for name in ("query", "key", "value"))
        return query, key, value

    @property
    def _is_plain(self) -> bool:
        """Dense [batch, heads, length, size] of one dtype, of any length but 0, the last axis contiguous."""
        query, key, value = (self.tensors[name] for name in ("query", "key", "value"))
        return (
            all(len(t.shape) == 4 and (t.strides[-1] == 1 or t.shape[-1] == 1) for t in (query, key, value))
            and query.shape[2] * key.shape[2] > 0
            and query.dtype == key.dtype == value.dtype
            and query.shape[0] == key.shape[0] == value.shape[0]
        )

    @property
    def _has_equal_heads(self) -> bool:
        return self.tensors["query"].shape[1] == self.tensors["key"].shape[1] == self.tensors["value"].shape[1]

    def _flash(self, backends: Backends) -> bool:
        chip = backends.chip
        query, key, value = self._sizes
        causal, dropped = self.attributes.get("is_causal"), self.attributes.get("dropout_p", 0) > 0
        lengths = (self.tensors["query"].shape[-2], self.tensors["key"].shape[-2])
        no_backward = chip in _SMALL_SHARED and (192 < query <= 224 or (query > 224 and dropped))
        return (
            chip.attention == "flash"
            and self._is_plain
            and self.tensors["query"].dtype in _HALF
            and "attn_bias" not in self.tensors
            and query == key == value <= _flash_limit(chip)
            and (self._has_equal_heads or bool(self.attributes.get("enable_gqa")))
            and not (causal and lengths[0] != lengths[1])
            and not (no_backward and bool(self.attributes.get("gradients")))
        )

    def _efficient(self, backends: Backends) -> bool:
        chip = backends.chip
        query, key, value = self._sizes
        dtype, unit = self.tensors["query"].dtype, _alignment(self.tensors["query"].dtype, chip)
        return (
            chip.attention != "math"
            and self._is_plain
            and self._has_equal_heads
            and dtype in ("float16", "float32", *(["bfloat16"] if chip.attention == "flash" else ()))
            and query == key
            and query % unit == value % unit == 0
        )

    def _cudnn(self, backends: Backends) -> bool:
        lengths, dropout_p = [self.tensors[name].shape[-2] for name in ("query", "key")], self.attributes["dropout_p"]
        drops = dropout_p * 16 == int(dropout_p * 16) and lengths[0] != 1
        drops = drops and not (9, 11, 0) < backends.torch.cudnn < (9, 14, 0)
        return (
            "cudnn" in runs_on(backends.chip)
            and self._is_plain
            and self.tensors["query"].dtype in _HALF
            and self._cudnn_takes_heads(backends)
            and lengths[1] != 1
            and (drops or not dropout_p)
            and (self._has_equal_heads or bool(self.attributes.get("enable_gqa")))
        )

    def _cudnn_takes_heads(self, backends: Backends) -> bool:
        """Heads of up to 128; on compute capability 9.0 and 10.x also of 192 with values of 128, and with the latest
        up to 256, in training these sizes alone (``check_cudnn_tensor_shapes``, ``check_cudnn_d256_bprop_head_dim``).
        """
        query, _, value = sizes = self._sizes
        cudnn, wide = backends.torch.cudnn, backends.chip.cudnn_first
        most = 128
        if wide and cudnn > (9, 22, 0):
            most = 256
        elif wide and cudnn >= (9, 11, 0) and (query, value) == (192, 128):
            most = 192
        trained = max(sizes) <= 128 or (query, value) in ((192, 128), (256, 256))
        return (
            max(sizes) <= most and not any(s % 8 for s in sizes) and (trained or not self.attributes.get("gradients"))
        )


_TAKES = {
    "flash": AttentionCall._flash,
    "efficient": AttentionCall._efficient,
    "cudnn": AttentionCall._cudnn,
    "overrideable": lambda *_: False,
}


def _flash_limit(chip: Chip) -> int:
    """The widest head; AOTriton's on AMD."""
    return 256 if chip.warp_size == 32 else 512


def _alignment(dtype: str, chip: Chip) -> int:
    """What the memory-efficient kernel wants the head sizes to be a multiple of (``minimum_gemm_alignment``)."""
    half, ampere = dtype in _HALF, chip.attention == "flash"
    has_tensor_cores = chip.architecture != "pascal"
    return (8 if has_tensor_cores else 1) if half else (4 if ampere else 1)


def not_run_by(graph: Graph, chip: Chip) -> tuple[str, ...]:
    """The attention kernels of a graph that a chip has not, as ``flash`` or ``efficient``."""
    wanted = dict.fromkeys(
        name for op in graph.ops if op.op_class == "attention" for name in ORDER if f"_{name}_attention" in op.name
    )
    return tuple(name for name in wanted if name not in runs_on(chip))
