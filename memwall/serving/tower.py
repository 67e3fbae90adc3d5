"""What stands in front of a prompt, images, frames of a clip and sound: the tokens that it becomes, and the towers that
make these, as engines run them.

The towers are traced alone, with as much of everything as a request has. PyTorch runs their kernels op by op, as in
vLLM's and SGLang's towers, outside of CUDA graphs; their attention is that which the engine takes
(:data:`TOWER_ATTENTION`), one call for all images of a layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError
from memwall.core.graph import Op
from memwall.core.units import counted
from memwall.frontend.targets.sizes import SIZES
from memwall.frontend.targets.target import split_target
from memwall.hardware.chips import chip_of, target_of
from memwall.hardware.host import HostWork
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops.product_launches import FusedAttention
from memwall.ops.sdpa import runs_on
from memwall.pipeline import profile
from memwall.record.profile import Profile
from memwall.serving.steps import ServedKernels
from memwall.serving.steps.kernels import Tower
from memwall.simulate.issue import work_of

#: engine -> compile target -> the attention of towers there, and of all others: the kernels whose times the
#: collectors of encoders' attention measured for each engine (kernel_source of aic_encoder_attention.csv)
TOWER_ATTENTION: Mapping[str, tuple[Mapping[str, str], str]] = {
    "vllm": ({"sm_90": "flash3", "sm_100": "flash4", "sm_103": "flash4"}, "flash"),
    "sglang": ({"sm_90": "flash3", "sm_100": "flash4"}, "triton"),
    "trtllm": ({}, "trtllm"),
}


#: size of :data:`memwall.frontend.targets.sizes.SIZES` -> the option of ``memwall serve`` that says it
MEDIA = {"images": "images", "image": "image", "video": "frames", "seconds": "audio"}


def media_of(said: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """What stands in front of each prompt, by some options of :func:`memwall.serve`: sizes with their names, none
    without images, frames and sound.

    Raises:
        UsageError: a size is wrong, or is of images that are not asked for.
    """
    given = ((size, option, said.get(option)) for size, option in MEDIA.items())
    sizes = {size: SIZES[size](option, value) for size, option, value in given if value is not None}
    if "image" in sizes and not sizes.keys() & {"images", "video"}:
        raise UsageError("--image is the size of --images and --frames, of which none are given")
    return tuple(sizes.items())


@dataclass(frozen=True, kw_only=True)
class Media:
    """What stands in front of each prompt: in words with the tokens of each part, the tokens in all, and the towers.
    ``notes`` say what was assumed."""

    said: str
    tokens: int
    tower: Tower
    fronts: frozenset[str]
    notes: tuple[str, ...] = ()

    def beside(self, served: ServedKernels) -> ServedKernels:
        """The kernels of a model and of its towers, whose weights were among the weights that no kernel reads."""
        others = max(served.other_bytes - self.tower.weight_bytes, 0)
        return replace(served, kernels=(*served.kernels, (self.tower, 1)), other_bytes=others)


def read_media(target: Any, asked: Sequence[tuple[str, Any]], dtype: str | None = None) -> Media:
    """Trace the towers of a target for what stands in front of one prompt (:func:`media_of`).

    Raises:
        UsageError: the target is no configuration of transformers, or the model reads no such thing.
    """
    sizes = dict(asked)
    option = MEDIA[next(iter(sizes))]
    kind, place, _ = split_target(str(target)) if not isinstance(target, Profile) else ("profile", "", "")
    if kind != "hf":
        raise UsageError(f"--{option} is of a configuration, hf:FOLDER: of others memwall does not know what reads it")
    from memwall.frontend.hf.tower import front_tower

    found = front_tower(Path(place), sizes)
    made = profile(found.workload, dtype=dtype, assume="nonzero=1")  # nothing of it is padding
    told = [f"{_called(size, sizes)} as {counted(tokens, 'token')}" for size, tokens in found.tokens.items()]
    return Media(
        said=" and ".join(told),
        tokens=sum(found.tokens.values()),
        tower=tower_of(made),
        fronts=frozenset("sounds" if size == "seconds" else "images" for size in found.tokens),
        notes=found.notes,
    )


def _called(size: str, sizes: Mapping[str, Any]) -> str:
    """``2 images of 448 x 448``."""
    if size == "seconds":
        return f"{sizes[size]:g} s of sound"
    of = f" of {sizes['image'][0]} x {sizes['image'][1]}" if "image" in sizes else ""
    return (counted(sizes[size], "image") if size == "images" else f"a clip of {counted(sizes[size], 'frame')}") + of


def tower_of(made: Profile) -> Tower:
    """The kernels of a traced tower. The calls of attention of one module are one, as engines hand it all images."""
    graph = made.graph
    held = {graph.values[i].storage for op in graph.ops for i in op.inputs}
    weights = [s.nbytes for s in graph.storages if s.id in held and s.role in ("parameter", "buffer")]
    counts: Counter[Cost] = Counter()
    calls: dict[tuple[str, Cost], int] = {}
    for op, cost in zip(graph.ops, made.costs[0], strict=True):
        if _is_fused(op, cost):
            calls[op.module, cost] = calls.get((op.module, cost), 0) + 1
        else:
            counts[cost] += 1
    counts.update(_of_all(cost, times) for (_, cost), times in calls.items())
    work = work_of(graph, "eager", [((number,), cost.kernels) for number, cost in enumerate(made.costs[0])])
    issued = HostWork(*map(sum, zip(*work, strict=True)))
    return Tower(costs=tuple(counts.items()), weight_bytes=sum(weights), issued=issued)


def _is_fused(op: Op, cost: Cost) -> bool:
    return op.op_class == "attention" and any(isinstance(work, FusedAttention) for work in cost.launches)


def _of_all(cost: Cost, times: int) -> Cost:
    """So many calls as one."""
    launches = tuple(
        replace(
            work, batch=work.batch * times, read_bytes=work.read_bytes * times, write_bytes=work.write_bytes * times
        )
        for work in cost.launches
        if isinstance(work, FusedAttention)
    )
    flops = {pipe: count * times for pipe, count in cost.flops.items()}
    dense = None if cost.dense_flops is None else cost.dense_flops * times
    return replace(
        cost,
        flops=flops,
        read_bytes=cost.read_bytes * times,
        write_bytes=cost.write_bytes * times,
        dense_flops=dense,
        launches=launches,
    )


def as_attended(cost: Cost, gpu: Gpu, engine: str) -> Cost:
    """The cost with attention in the kernel of an engine, where the GPU has fused attention of its kind."""
    if not any(isinstance(work, FusedAttention) for work in cost.launches) or "flash" not in runs_on(chip_of(gpu)):
        return cost
    by_target, other = TOWER_ATTENTION[engine]
    kernel = by_target.get(target_of(gpu), other)
    launches = (replace(work, kernel=kernel) if isinstance(work, FusedAttention) else work for work in cost.launches)
    return replace(cost, launches=tuple(launches))
