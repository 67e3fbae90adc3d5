"""A file → its module of StableHLO, whichever of its forms it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError, message_of

#: what MLIR's bytecode begins with
_BYTECODE = b"ML\xefR"


def read_module(path: Path) -> Any:
    """The ``ir.Module`` of a file: bytecode, text, or an artifact of ``jax.export``, told by its contents.

    Raises:
        UsageError: it is none of these, or cut short.
    """
    from jax.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    context = mlir.make_ir_context()
    text = _text(data)
    if text is not None and text.startswith("HloModule"):
        raise UsageError(f"{path} is text of HLO, not of StableHLO: write lowered.as_text(), as_text('stablehlo')")
    if text is None and not data.startswith(_BYTECODE):
        return _exported(path, data)
    try:
        if text is not None:
            return ir.Module.parse(text, context)
        with context:
            return stablehlo.deserialize_portable_artifact(context, data)
    except Exception as error:  # jaxlib's own kinds of errors
        where = next((line for line in message_of(error).splitlines() if "error" in line), message_of(error)[:200])
        raise UsageError(f"{path} is no module of StableHLO, or is cut short: {where.strip()}") from error


def _text(data: bytes) -> str | None:
    try:
        text = data.decode("utf-8").lstrip()
    except UnicodeDecodeError:
        return None
    return text if text and "\0" not in text[:1000] else None


def _exported(path: Path, data: bytes) -> Any:
    from jax import export

    try:
        found = export.deserialize(bytearray(data))
        module = found.mlir_module_serialized
    except Exception as error:
        raise UsageError(
            f"{path} is neither StableHLO (text or bytecode) nor what jax.export serializes, or is cut short"
        ) from error
    from jax.interpreters import mlir
    from jaxlib.mlir.dialects import stablehlo

    if found.uses_global_constants or any(not isinstance(size, int) for aval in found.in_avals for size in aval.shape):
        raise UsageError(f"{path} was exported with symbolic sizes; export it with those of the inputs that are meant")
    context = mlir.make_ir_context()
    with context:
        return stablehlo.deserialize_portable_artifact(context, module)
