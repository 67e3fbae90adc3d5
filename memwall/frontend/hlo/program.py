"""A file of HLO as a target: what XLA dumps (``--xla_dump_to``), or TensorFlow's ``experimental_get_compiler_ir``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from memwall.core.errors import UsageError
from memwall.frontend.facts import TraceFacts
from memwall.frontend.hlo.graph import graph_of
from memwall.frontend.hlo.module import HloModule
from memwall.frontend.hlo.parsing import parse
from memwall.frontend.program import Program, TraceOptions, TraceResult, described, refuse_options

#: in the name of a dump of what XLA has optimized for a CPU; its text does not say so
_OF_CPU = ".cpu_after_optimizations."
_OPTIMIZED = (
    "The file is an optimized program: policy xla has its kernels, and others take its fusions apart into their ops."
)


@dataclass(frozen=True)
class HloProgram(Program):
    """A module in a file of text, before or after optimization."""

    kind: ClassVar[str] = "an HLO file"

    path: Path = Path()

    def traced(self, options: TraceOptions) -> TraceResult:
        """Its graph: the entry, calls entered and loops written out."""
        refuse_options(self, options)
        found = graph_of(self.module, max_ops=options.max_ops)
        graph = found.graph
        batch = next((spec.shape[0] for spec in graph.specs(graph.inputs) if spec.shape), None)
        is_training = any(op.phase == "backward" for op in graph.ops)
        info = described(
            graph,
            [],
            name=self.name,
            target=self.target,
            mode="training" if is_training else "inference",
            samples=batch,
            samples_assumed=batch is not None,
        )
        notes = (*found.notes, *[_OPTIMIZED] * self.module.is_scheduled)
        return TraceResult(graph, info, TraceFacts(notes=notes), versions={"hlo": self.module.name})

    def exported(self, options: TraceOptions, platform: str) -> str:
        """The text itself, which a compiler has made already. Raises ``UsageError``: it is not optimized."""
        refuse_options(self, options)
        if not self.module.is_scheduled:
            raise UsageError(
                f"{self.target} is HLO before optimization: policy xla reads kernels of what XLA has optimized"
                " (...after_optimizations.txt of a dump); --policy memwall plans this one"
            )
        made = "a CPU" if _OF_CPU in self.path.name else "a TPU" if self.module.is_of_tpu else "a GPU"
        asked = "a TPU" if platform == "tpu" else "a GPU"
        if made != asked:
            raise UsageError(
                f"{self.target} was optimized for {made}, and its kernels are none of {asked}: policy xla reads what"
                " XLA has optimized for that kind of device, or compiles the JAX program itself"
            )
        return self._text

    @cached_property
    def module(self) -> HloModule:
        """What the file says."""
        return parse(self._text, self.target or str(self.path))

    @cached_property
    def _text(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"{self.path} is no text, and so no HLO: {error.reason}") from None
        except OSError as error:
            raise UsageError(f"cannot read {self.path}: {error.strerror}") from None
