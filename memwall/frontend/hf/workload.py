"""A configuration → the workload of its model, with inputs as its processor would make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError, need
from memwall.core.graph import SERVING
from memwall.frontend.hf.asked import AskedModel
from memwall.frontend.hf.classes import build, model_class
from memwall.frontend.hf.config import guesses, read_config, static_tokens
from memwall.frontend.hf.inputs import make_inputs, with_mask
from memwall.frontend.hf.labels import with_labels
from memwall.frontend.hf.quantized import quantization_note, stored
from memwall.frontend.hf.serving import CachedStep
from memwall.frontend.targets.contract import Workload
from memwall.frontend.targets.inputs import input_builder


def from_config(
    path: Path, target: str, *, mode: str, sizes: Mapping[str, Any], input_specs: Sequence[str]
) -> Workload:
    """The workload of a configuration file or of the folder that holds one; a UsageError where transformers does not
    know it."""
    transformers: Any = need("transformers", "hf")
    read = read_config(transformers, path)
    kind = model_class(transformers, read, path)
    folder = path if path.is_dir() else path.parent
    built = _Built(kind, read.config)
    said: list[str] = []
    notes: list[str | Callable[[Any], str]] = [*read.notes, lambda module: "; ".join(dict.fromkeys(said))]
    if (quantized := quantization_note(read.raw, folder)) is not None:
        notes.append(quantized)
    if sizes.get("seq") == 1:
        notes.append("one token without a cache is no decode step: for that, give --mode decode --context TOKENS")
    advance = most = context = encoder = samples = None
    fronts: tuple[str, ...] = ()
    if input_specs:
        if sizes:
            raise UsageError(f"--{next(iter(sizes))} has no effect with --input: write the size into the input's shape")
        inputs: Callable[[], Any] = input_builder(input_specs)
    else:
        asked = AskedModel(read.config, kind, sizes, training=mode == "training")
        asked.check()
        samples = asked.batch
        if asked.normalises_vectors and "batch" not in sizes:
            notes.append("the batch is 2, as a batch norm of one vector for each sample needs two samples in training")

        def inputs() -> Any:
            made = with_mask(asked, make_inputs(asked, built.again, said.append))
            return with_labels(asked, made, said.append) if asked.training else made

        if mode in SERVING:
            made = partial(make_inputs, model=built.again, note=said.append)
            served = CachedStep(asked, mode, made, static_tokens(read.raw, folder))
            inputs, advance, most, context = served.inputs, served.advance, served.most or None, served.before
            encoder = served.source if read.config.is_encoder_decoder else None
            fronts = asked.fronts if encoder is None else ()
            notes.append(lambda module: served.note())

    name = folder.absolute().name if path.is_dir() or path.name == "config.json" else kind.__name__
    return Workload(
        built,
        inputs,
        None,
        "adamw",
        name or kind.__name__,
        target,
        notes=tuple(notes),
        advance=advance,
        most_tokens=most,
        context=context,
        encoder=encoder,
        fronts=fronts,
        guesses=guesses(read.raw),
        samples=samples,
        stored=partial(stored, read.raw, folder),
    )


class _Built:
    """Builds the model; what is built without data is kept, as its inputs ask it."""

    def __init__(self, kind: Any, config: Any) -> None:
        self._kind, self._config, self._kept = kind, config, None

    def __call__(self) -> Any:
        made = build(self._kind, self._config)
        self._kept = made if next((p.is_meta for p in made.parameters()), False) else None
        return made

    def again(self) -> Any:
        """The model that was built, or another one."""
        return self._kept if self._kept is not None else build(self._kind, self._config)
