"""A file → its module of StableHLO, whichever of its forms it has; and a module → an artifact of ``jax.export``."""

from __future__ import annotations

import dataclasses
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
    data = _read(path)
    text = _text(data)
    if text is not None:
        return _parsed(path, text)
    return _deserialized(path, data if data.startswith(_BYTECODE) else _artifact(path, data).mlir_module_serialized)


def as_artifact(path: Path, platform: str) -> bytes:
    """What ``jax.export`` serializes of a file's module; an artifact as it is. Errors as of :func:`read_module`."""
    data = _read(path)
    if _text(data) is None and not data.startswith(_BYTECODE):
        return data
    import jax
    from jaxlib.mlir.dialects import stablehlo

    module = read_module(path)
    main = next(each for each in module.body.operations if str(each.operation.attributes["sym_name"]) == '"main"')
    kind = main.operation.attributes["function_type"].value
    given, made = ([_shape(path, each) for each in side] for side in (kind.inputs, kind.results))

    def alike(*arguments: Any) -> list[Any]:
        """A function of the same arguments and results, in whose place the module stands."""
        return [jax.numpy.zeros(each.shape, each.dtype) for each in made]

    around = jax.export.export(jax.jit(alike, keep_unused=True), platforms=(platform,))(*given)
    content = stablehlo.serialize_portable_artifact(module, stablehlo.get_minimum_version())
    return bytes(dataclasses.replace(around, mlir_module_serialized=content).serialize())


def _shape(path: Path, kind: Any) -> Any:
    """A ranked tensor as a shape of JAX."""
    import jax

    from memwall.frontend.stablehlo.attributes import DTYPES

    try:
        return jax.ShapeDtypeStruct(tuple(kind.shape), jax.numpy.dtype(DTYPES[str(kind.element_type)]))
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path}: policy xla takes no arguments of {kind}; give what jax.export serializes") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error


def _text(data: bytes) -> str | None:
    try:
        text = data.decode("utf-8").lstrip()
    except UnicodeDecodeError:
        return None
    return text if text and "\0" not in text[:1000] else None


def _parsed(path: Path, text: str) -> Any:
    from jax.interpreters import mlir
    from jaxlib.mlir import ir

    if text.startswith("HloModule"):
        raise UsageError(f"{path} is text of HLO, not of StableHLO: write lowered.as_text(), as_text('stablehlo')")
    try:
        return ir.Module.parse(text, mlir.make_ir_context())
    except Exception as error:  # jaxlib's own kinds of errors
        raise _wrong(path, error) from error


def _deserialized(path: Path, data: bytes) -> Any:
    from jax.interpreters import mlir
    from jaxlib.mlir.dialects import stablehlo

    context = mlir.make_ir_context()
    try:
        with context:
            return stablehlo.deserialize_portable_artifact(context, data)
    except Exception as error:
        raise _wrong(path, error) from error


def _wrong(path: Path, error: Exception) -> UsageError:
    text = message_of(error)
    where = next((line for line in text.splitlines() if "error" in line), text[:200])
    return UsageError(f"{path} is no module of StableHLO, or is cut short: {where.strip()}")


def _artifact(path: Path, data: bytes) -> Any:
    """The ``jax.export.Exported`` of a file, of known sizes."""
    from jax import export

    try:
        found = export.deserialize(bytearray(data))
        sizes = [size for each in found.in_avals for size in each.shape]
    except Exception as error:
        raise UsageError(
            f"{path} is neither StableHLO (text or bytecode) nor what jax.export serializes, or is cut short"
        ) from error
    if any(not isinstance(size, int) for size in sizes):
        raise UsageError(f"{path} was exported with symbolic sizes; export it with those of the inputs that are meant")
    return found
