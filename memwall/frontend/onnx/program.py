"""An ``.onnx`` file as a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from memwall.frontend.facts import TraceFacts
from memwall.frontend.program import Program, TraceOptions, TraceResult, described, refuse_options


@dataclass(frozen=True)
class OnnxProgram(Program):
    """A file, and the sizes of its symbolic dimensions by name."""

    kind: ClassVar[str] = "an ONNX file"

    path: Path = Path()
    dims: Mapping[str, int] = field(default_factory=dict)

    def traced(self, options: TraceOptions) -> TraceResult:
        """Its graph: inference as the file says it, each node in order."""
        refuse_options(self, options)
        from memwall.frontend.onnx.reading import read_model

        model = read_model(self.path, self.dims)
        import onnx

        from memwall.frontend.onnx.importer import Importer

        to = Importer(model, str(self.path), options.max_ops, options.attention.chip)
        scope = to.inputs()
        given = [to.placed(tensor) for tensor in scope.values()]
        made = [to.placed(tensor) for tensor in to.graph(model.proto.graph, scope)]
        graph = to.finished(given, made)
        sizes = [(spec.dtype, spec.numel) for spec in graph.specs(graph.parameters)]
        batch = next((graph.values[i].spec.shape[0] for i in given if graph.values[i].spec.shape), None)
        info = described(
            graph, sizes, name=self.name, target=self.target, mode="inference", samples=batch, samples_assumed=True
        )
        notes = (
            f"ONNX opset {model.opset}; views cost nothing, and the host's time is that of PyTorch's eager mode",
            *to.notes,
        )
        return TraceResult(graph, info, TraceFacts(notes=notes), versions={"onnx": onnx.__version__})
