"""``hf:FOLDER_OR_CONFIG_JSON``: any transformers model from its configuration; no weights, no network, no remote code.

The class is the configuration's ``architectures[0]``, else the first of transformers' auto classes that knows the model
type. A vision-language model runs on text only: the number of image tokens depends on its processor.

No input is padded and none holds several packed sequences.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError, message_of, need
from memwall.core.files import read_json
from memwall.frontend.workload.blame import blame
from memwall.frontend.workload.contract import Workload
from memwall.frontend.workload.inputs import InputSpec, input_builder, make_tensor

_DEFAULT_SEQ, _DEFAULT_IMAGE, _DEFAULT_AUDIO = 512, 224, 16_000

#: transformers' tables of head classes by model type, an encoder-decoder whole before its halves.
_AUTO_MAPPINGS = (
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "MODEL_FOR_CTC_MAPPING_NAMES", "MODEL_MAPPING_NAMES",
)  # fmt: skip

_POSITION_KEYS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len", "seq_length")

#: Ends of the names of classes that take labels, one for each token or one for each sample.
_TOKEN_LABELS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForTokenClassification")
_SAMPLE_LABELS = ("ForSequenceClassification", "ForImageClassification", "ForVideoClassification",
                  "ForAudioClassification", "ForQuestionAnswering")  # fmt: skip


def from_config(
    path: Path, target: str, *, mode: str, sizes: Mapping[str, int], input_specs: Sequence[str]
) -> Workload:
    """The workload of a configuration file or of the folder that holds one; a UsageError where transformers does not
    know it."""
    source = path / "config.json" if path.is_dir() else path
    raw = read_json(source)
    transformers: Any = need("transformers", "hf")
    config = _config(transformers, raw, source)
    model_class = _model_class(transformers, config, source)
    if input_specs:
        if sizes:
            raise UsageError(f"--{next(iter(sizes))} has no effect with --input: write the size into the input's shape")
        inputs: Callable[[], Any] = input_builder(input_specs)
    else:
        specs = _input_specs(config, model_class, sizes, target)
        labels = _label_specs(model_class, specs) if mode == "training" else ()
        vocabulary = getattr(config.get_text_config(decoder=True), "vocab_size", None)
        inputs = _builder((*specs, *labels), vocabulary if isinstance(vocabulary, int) and vocabulary > 0 else 2)
    name = source.parent.name if source.name == "config.json" and source.parent.name else model_class.__name__
    return Workload(lambda: _build(model_class, config), inputs, None, "adamw", name, target)


def _config(transformers: Any, raw: Any, source: Path) -> Any:
    model_type = raw.get("model_type") if isinstance(raw, dict) else None
    if not isinstance(model_type, str):
        raise UsageError(f'{source} is not a transformers configuration: it has no "model_type"')
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        custom = " (its own code is not run)" if "auto_map" in raw else ""
        raise UsageError(
            f"{source}: transformers {transformers.__version__} has no model type {model_type[:40]!r}{custom}"
        )
    try:
        config = CONFIG_MAPPING[model_type].from_dict(raw)
    except Exception as error:
        raise blame(error, f"reading {source}") from error
    config.use_cache = False
    if hasattr(config, "apply_spec_augment"):
        config.apply_spec_augment = False  # draws its mask on the CPU, from the data
    return config


def _model_class(transformers: Any, config: Any, source: Path) -> Any:
    for name in config.architectures or ():
        found = getattr(transformers, str(name), None)
        if inspect.isclass(found):
            return found
    from transformers.models.auto import modeling_auto

    for mapping in _AUTO_MAPPINGS:
        name = getattr(modeling_auto, mapping, {}).get(config.model_type)
        name = name[0] if isinstance(name, (list, tuple)) else name
        if name and hasattr(transformers, name):
            return getattr(transformers, name)
    wanted = f" (architectures: {', '.join(map(str, config.architectures))[:80]})" if config.architectures else ""
    raise UsageError(f"{source}: transformers has no model class for {config.model_type!r}{wanted}")


def _build(model_class: Any, config: Any) -> Any:
    """The module, with SDPA where the model supports it."""
    try:
        return model_class._from_config(config, attn_implementation="sdpa")
    except (ValueError, ImportError) as error:
        said = message_of(error)
        if "attention" not in said and "sdpa" not in said:
            raise
        return model_class._from_config(config, attn_implementation="eager")


def _input_specs(config: Any, model_class: Any, sizes: Mapping[str, int], target: str) -> tuple[InputSpec, ...]:
    """The model's inputs, by the name of its main input."""
    main = getattr(model_class, "main_input_name", "input_ids")
    maker = _MODALITIES.get(main)
    if maker is None:
        raise UsageError(
            f"{target}: memwall does not know the input {main!r} of {model_class.__name__}; "
            f"give it by --input '{main}=f32[...]'"
        )
    batch = sizes.get("batch", 1)
    text = config.get_text_config(decoder=True)
    lengths = [n for key in _POSITION_KEYS if isinstance(n := getattr(text, key, None), int) and n > 0]
    seq = sizes.get("seq") or min([_DEFAULT_SEQ, *lengths])
    specs = [maker(config, batch, seq)]
    if config.is_encoder_decoder:
        specs.append(InputSpec("int64", (batch, seq), "decoder_input_ids"))
    elif (  # two towers
        main == "input_ids"
        and hasattr(config, "text_config")
        and hasattr(config, "vision_config")
        and model_class.__name__.endswith("Model")
        and "pixel_values" in inspect.signature(model_class.forward).parameters
    ):
        specs.append(_pixels(config.vision_config, batch, seq, config))
    if "seq" in sizes and not any(spec.dtype == "int64" for spec in specs):
        raise UsageError(f"--seq {seq} was given, but {model_class.__name__} takes no token ids")
    return tuple(specs)


def _pixels(config: Any, batch: int, seq: int, parent: Any = None) -> InputSpec:
    size = getattr(config, "image_size", None) or _DEFAULT_IMAGE
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    frames = getattr(config, "num_frames", None)
    lead = (batch, frames) if isinstance(frames, int) else (batch,)
    shape = (*lead, getattr(config, "num_channels", 3), height, width)
    return InputSpec(_dtype(parent or config), shape, "pixel_values")


_MODALITIES: Mapping[str, Callable[[Any, int, int], InputSpec]] = {
    "input_ids": lambda config, batch, seq: InputSpec("int64", (batch, seq), "input_ids"),
    "pixel_values": _pixels,
    "input_features": lambda config, batch, seq: InputSpec(  # the encoder's second convolution has stride 2
        _dtype(config),
        (batch, getattr(config, "num_mel_bins", 80), 2 * getattr(config, "max_source_positions", 1500)),
        "input_features",
    ),
    "input_values": lambda config, batch, seq: InputSpec(_dtype(config), (batch, _DEFAULT_AUDIO), "input_values"),
}


def _label_specs(model_class: Any, specs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
    """Labels for a head that computes its own loss; empty for any other."""
    name = model_class.__name__
    if name.endswith(_TOKEN_LABELS):
        ids = [spec.shape for spec in specs if spec.dtype == "int64"]
        return (InputSpec("int64", ids[-1], "labels"),) if ids else ()
    if not name.endswith(_SAMPLE_LABELS):
        return ()
    names = ("start_positions", "end_positions") if name.endswith("ForQuestionAnswering") else ("labels",)
    return tuple(InputSpec("int64", specs[0].shape[:1], label) for label in names)


def _builder(specs: Sequence[InputSpec], vocabulary: int) -> Callable[[], dict[str, Any]]:
    def inputs() -> dict[str, Any]:
        import torch

        made = {}
        for spec in specs:
            if spec.dtype != "int64":
                made[str(spec.name)] = make_tensor(spec)
            elif str(spec.name).endswith("input_ids"):
                made[str(spec.name)] = torch.randint(0, vocabulary, spec.shape)
            else:  # labels: class 0 exists whatever the number of classes
                made[str(spec.name)] = torch.zeros(spec.shape, dtype=torch.int64)
        return made

    return inputs


def _dtype(config: Any) -> str:
    dtype = getattr(config, "dtype", None)
    return str(dtype).removeprefix("torch.") if dtype is not None else "float32"
