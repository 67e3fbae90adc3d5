"""A file of StableHLO as a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

from memwall.core.errors import MissingError
from memwall.frontend.facts import TraceFacts
from memwall.frontend.program import Program, TraceOptions, TraceResult, described, refuse_options
from memwall.frontend.targets.loading import start_jax, without_devices


@dataclass(frozen=True)
class StablehloProgram(Program):
    """A module in a file: text, bytecode, or an artifact of ``jax.export``."""

    kind: ClassVar[str] = "a StableHLO file"

    path: Path = Path()

    def traced(self, options: TraceOptions) -> TraceResult:
        """Its graph: the module's main function, calls entered and loops written out."""
        refuse_options(self, options)
        jax = _jax()
        from memwall.frontend.stablehlo.importer import StablehloImporter
        from memwall.frontend.stablehlo.reading import read_module

        to = StablehloImporter(read_module(self.path), str(self.path), options.max_ops)
        graph = to.graph()
        specs = graph.specs(graph.parameters)
        batch = next((spec.shape[0] for spec in graph.specs(graph.inputs) if spec.shape), None)
        phases = {op.phase for op in graph.ops}
        info = described(
            graph,
            [(spec.dtype, spec.numel) for spec in specs],
            name=self.name,
            target=self.target,
            mode="training" if "backward" in phases else "inference",
            samples=batch,
            samples_assumed=batch is not None,
        )
        return TraceResult(graph, info, TraceFacts(notes=tuple(to.notes)), versions={"jax": jax.__version__})

    def exported(self, options: TraceOptions, platform: str) -> Callable[[], bytes]:
        """As :meth:`memwall.frontend.program.Program.exported`: an artifact as it is, another module in one."""
        refuse_options(self, options)
        _jax()
        from memwall.frontend.stablehlo.reading import as_artifact

        return cache(partial(as_artifact, self.path, platform))


def _jax() -> Any:
    try:
        start_jax()
        with without_devices():
            import jax
    except ImportError as error:
        raise MissingError("a StableHLO file needs JAX: pip install 'memwall-roofline[jax]'") from error
    return jax
