"""What compiles, in a process of its own: JAX is imported here alone."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from typing import Any

from memwall.core.errors import UsageError, message_of
from memwall.xla.target import XlaTarget

#: sizes of ``memory_analysis()`` that are kept, by the name that they have here
_SIZES = {
    "argument_bytes": "argument_size_in_bytes",
    "output_bytes": "output_size_in_bytes",
    "alias_bytes": "alias_size_in_bytes",
    "temp_bytes": "temp_size_in_bytes",
}
#: marks of an argument whose memory a result may take, in StableHLO
_DONATED = ("jax.buffer_donor", "tf.aliasing_output")
#: characters of a compiler's message that are shown
_SHOWN = 300


def compiled(artifact: bytes, target: XlaTarget) -> Mapping[str, Any]:
    """Compile what ``jax.export`` serialized.

    Returns:
        ``text``, the optimized HLO; ``devices`` that the program runs on; bytes of the buffer assignment;
        ``only_libraries``, whether every product had to be a library's.

    Raises:
        UsageError: it is no artifact of this JAX, or the compiler fails.
    """
    import jax
    from jax import export

    jax.config.update("jax_traceback_in_locations_limit", 0)  # lines are of the program, not of this module
    try:
        exported = export.deserialize(bytearray(artifact))
    except Exception as error:
        raise UsageError(f"not a program that jax.export serialized, or of another version: {_line(error)}") from error
    if target.platform not in exported.platforms:
        raise UsageError(
            f"the program was exported for {', '.join(exported.platforms)}, not for {target.platform}: export it by"
            f" jax.export.export(function, platforms=('{target.platform}',)), or name the program itself"
        )
    try:
        arguments = _arguments(exported, _devices(target, exported.nr_devices))
        call = jax.jit(
            lambda *flat: exported.call(*_unflatten(exported, flat)[0], **_unflatten(exported, flat)[1]),
            donate_argnums=_donated(exported),
            keep_unused=True,
        )
        executable, is_second = _executable(call.lower(*arguments), target.platform)
        found, sizes = executable.as_text(), executable.memory_analysis()
    except Exception as error:
        raise UsageError(f"XLA does not compile it: {_line(error)}") from error
    sizes = {name: int(getattr(sizes, key, 0)) for name, key in _SIZES.items()}
    return {"text": found, "devices": exported.nr_devices, "only_libraries": is_second, **sizes}


def _executable(lowered: Any, platform: str) -> tuple[Any, bool]:
    """The compiled program, and whether products had to be left to libraries: the tiles of Triton's fusions are not
    timed without a device, and for some products the compiler finds none."""
    if platform != "cuda":
        return lowered.compile(), False
    untimed: dict[str, Any] = {"xla_gpu_autotune_level": 0}
    try:
        return lowered.compile(compiler_options=untimed), False
    except Exception as error:
        with contextlib.suppress(Exception):
            return lowered.compile(compiler_options={**untimed, "xla_gpu_enable_triton_gemm": False}), True
        raise error


def _devices(target: XlaTarget, count: int) -> list[Any]:
    import jax
    from jax.experimental import topologies

    jax.devices()  # registers the plugin of CUDA
    return list(topologies.get_topology_desc(**target.topology(count)).devices)[:count]


def _arguments(exported: Any, devices: list[Any]) -> list[Any]:
    """The arguments as shapes, each laid on the devices as it was when the program was exported."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    everywhere = NamedSharding(Mesh(np.array(devices), ("all",)), PartitionSpec())
    found = []
    for shape, laid in zip(exported.in_avals, exported.in_shardings_jax(None), strict=True):
        if laid is not None and math.prod(laid.mesh.axis_sizes) == len(devices):
            mesh = laid.mesh
            placed = Mesh(np.array(devices).reshape(mesh.axis_sizes), mesh.axis_names, axis_types=mesh.axis_types)
            laid = NamedSharding(placed, laid.spec)
        else:
            laid = everywhere
        found.append(jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=laid))
    return found


def _unflatten(exported: Any, flat: tuple[Any, ...]) -> Any:
    import jax

    return jax.tree.unflatten(exported.in_tree, flat)


def _donated(exported: Any) -> tuple[int, ...]:
    """The arguments whose memory a result may take, which the call of an exported program does not pass on."""
    if not any(mark.encode() in exported.mlir_module_serialized for mark in _DONATED):
        return ()
    head = re.search(r"func\.func public @main\((.*?)\) -> ", exported.mlir_module(), re.DOTALL)
    each = re.split(r"%arg\d+: ", head[1])[1:] if head else []
    kept = exported.module_kept_var_idx
    marked = [any(mark in one for mark in _DONATED) for one in each[len(each) - len(kept) :]]
    return tuple(index for index, is_marked in zip(kept, marked, strict=False) if is_marked)


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in message_of(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:_SHOWN]
