"""A file → its module of StableHLO, whichever of its forms it has; and a module → an artifact of ``jax.export``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError, message_of

#: what MLIR's bytecode begins with
_BYTECODE = b"ML\xefR"


def read_module(path: Path) -> Any:
    """The ``ir.Module`` of a file: bytecode, text, or an artifact of ``jax.export``, told by its contents.

    Raises:
        UsageError: the file is of another format, or cut short.
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
    from jaxlib.mlir.passmanager import PassManager

    module = read_module(path)
    named = {each.operation.attributes["sym_name"].value: each for each in module.body.operations}
    if "main" not in named:
        raise UsageError(f"{path} has no function main, which policy xla compiles; it has {', '.join(named)}")
    kind = named["main"].operation.attributes["function_type"].value
    given, made = ([_shape(path, each) for each in side] for side in (kind.inputs, kind.results))

    def alike(*arguments: Any) -> list[Any]:
        """A function of the same arguments and results, in whose place the module stands."""
        return [jax.numpy.zeros(each.shape, each.dtype) for each in made]

    around = jax.export.export(jax.jit(alike, keep_unused=True), platforms=(platform,))(*given)
    stablehlo.register_stablehlo_passes()
    with _refusing(module.context, f"{path} is not of StableHLO alone, which policy xla compiles"):
        # an artifact holds no CHLO
        PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(module.operation)
        content = stablehlo.serialize_portable_artifact(module, stablehlo.get_minimum_version())
    return bytes(dataclasses.replace(around, mlir_module_serialized=content).serialize())


def _shape(path: Path, kind: Any) -> Any:
    """A ranked tensor as a shape of JAX."""
    import jax

    from memwall.frontend.stablehlo.attributes import DTYPES

    try:
        return jax.ShapeDtypeStruct(tuple(kind.shape), jax.numpy.dtype(DTYPES[str(kind.element_type)]))
    except (KeyError, TypeError, AttributeError) as error:
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
    from jaxlib.mlir import ir

    if text.startswith("HloModule"):
        raise UsageError(f"{path} is text of HLO, not of StableHLO; name it {path.stem}.hlo")
    return _module(path, lambda context: ir.Module.parse(text, context))


def _deserialized(path: Path, data: bytes) -> Any:
    from jaxlib.mlir.dialects import stablehlo

    return _module(path, lambda context: stablehlo.deserialize_portable_artifact(context, data))


def _module(path: Path, read: Callable[[Any], Any]) -> Any:
    """What is read in a context of MLIR; a UsageError with the first of its complaints, which it would print."""
    from jax.interpreters import mlir

    context = mlir.make_ir_context()
    with _refusing(context, f"{path} is no module of StableHLO, or is cut short"):
        return read(context)


@contextmanager
def _refusing(context: Any, what: str) -> Iterator[None]:
    """What MLIR refuses within a context is a UsageError: ``what`` is wrong, and the first of its complaints."""
    said: list[str] = []
    with context:
        handler = context.attach_diagnostic_handler(lambda each: said.append(each.message) or True)  # type: ignore
        try:
            yield
        except Exception as error:  # jaxlib's own kinds of errors
            lines = [*said, *(line for line in message_of(error).splitlines() if "error" in line), message_of(error)]
            raise UsageError(f"{what}: {lines[0].strip().splitlines()[0]}") from error
        finally:
            handler.detach()


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
        raise UsageError(f"{path} was exported with symbolic sizes; export it with sizes of the inputs that are meant")
    return found
