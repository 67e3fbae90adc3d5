"""What a configuration says of quantised weights: stated, and not modeled. Weights are counted as the dtype has them.

Formats: transformers' ``quantization_config`` (fp8, mxfp4, awq, gptq, bitsandbytes, compressed-tensors, modelopt) and
modelopt's ``hf_quant_config.json`` next to it.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from memwall.core import compat
from memwall.core.errors import UsageError
from memwall.core.files import read_json
from memwall.core.units import size

#: Bits of a weight with its share of the scales: FP8 in blocks of 128x128; NVFP4 has an FP8 scale for 16 numbers, MXFP4
#: an 8-bit one for 32 (OCP Microscaling Formats 1.0).
_BITS: Mapping[str, float] = {
    "fp8": 8.0, "fbgemm_fp8": 8.0, "nvfp4": 4.0 + 8 / 16, "mxfp4": 4.0 + 8 / 32, "mxfp8": 8.0 + 8 / 32, "int8": 8.0,
    "w4a8_awq": 4.0, "w4a16_awq": 4.0, "w8a8_sq": 8.0, "int4_awq": 4.0, "awq": 4.0, "gptq": 4.0,
}  # fmt: skip

#: Keys under which formats list the modules that stay as they are, as names or patterns.
_KEPT = ("modules_to_not_convert", "exclude_modules", "ignore", "ignored_layers")


#: format -> the scheme of products with such weights (:mod:`memwall.ops.quantised`)
_SCHEMES: Mapping[str, str] = {
    "fp8": "fp8", "fbgemm_fp8": "fp8", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "awq": "int4_awq", "int4_awq": "int4_awq",
    "w4a16_awq": "int4_awq", "w8a8_sq": "sq", "int8": "int8_wo", "w4a16_nvfp4": "w4a16_nvfp4",
}  # fmt: skip
#: (type, bits) of compressed-tensors' weights -> scheme
_COMPRESSED: Mapping[tuple[str, Any], str] = {
    ("float", 8): "fp8",
    ("float", 4): "nvfp4",
    ("int", 8): "int8_wo",
    ("int", 4): "int4_wo",
}
#: how the module of a mixture's experts ends
_EXPERTS = ".experts"
#: DeepSeek-V4's ``expert_dtype`` -> scheme: OCP's four-bit floats, multiplied with activations of eight bits
_EXPERT_DTYPES: Mapping[str, str] = {"fp4": "w4a8_mxfp4_mxfp8"}


@dataclass(frozen=True)
class StoredWeights:
    """How a configuration says that weights are stored: the ``scheme`` of products, empty where nothing is said; what
    is ``listed`` stays in the model's dtype. ``mixed`` has the schemes of single modules, where each has its own: all
    others stay in the model's dtype. ``cache`` is how keys and values are: ``fp8``, another or nothing; ``experts`` the
    scheme of stacked experts, where they have another."""

    scheme: str = ""
    listed: tuple[str, ...] = ()
    cache: str = ""
    mixed: Mapping[str, str] = field(default_factory=dict)
    experts: str = ""

    def of(self, path: str) -> str | None:
        """The scheme of the module of that path: empty where it stays as it is, None where it is the scheme of all."""
        if self.experts and path.endswith(_EXPERTS):
            return self.experts
        if not self.mixed:
            return "" if any(_listed(f"{path}.weight", pattern) for pattern in self.listed) else None
        return self._by_name.get(_bare(path), "")

    @cached_property
    def _by_name(self) -> Mapping[str, str]:
        return {_bare(name): scheme for name, scheme in self.mixed.items()}


def stored(raw: Mapping[str, Any], folder: Path) -> StoredWeights:
    """How the weights of a configuration are stored.

    Raises:
        UsageError: in a format that is not modeled; says which are.
    """
    found = _stated(raw, folder)
    if found is None:
        return StoredWeights()
    if isinstance(layers := found.get("quantized_layers"), Mapping):
        mixed = {_whole(name): _known(row, _method(_table(row, name))) for name, row in layers.items()}
        if (
            found.get("weight_block_size")
            and all(name.endswith(_EXPERTS) for name in mixed)
            and len(set(mixed.values())) == 1
        ):
            return StoredWeights(
                "fp8_block", (), _cache(found), experts=next(iter(mixed.values()))
            )  # the others as they were
        most, _ = Counter(mixed.values()).most_common(1)[0] if mixed else ("", 0)
        return StoredWeights(most, _kept(found), _cache(found), mixed)
    experts = _EXPERT_DTYPES.get(str(raw.get("expert_dtype")), "")
    return StoredWeights(_known(found, _method(found)), _kept(found), _cache(found), experts=experts)


def _whole(name: str) -> str:
    """The module of one expert's weights in transformers: one module for all of them."""
    return re.sub(r"\.experts\.\d+\..*", ".experts", name)


def _known(found: Mapping[str, Any], method: str) -> str:
    """The scheme of a format. Raises UsageError: it is not modeled, or several are mixed."""
    scheme = _scheme(found, method.lower())
    if not scheme:
        known = ", ".join(sorted({*_SCHEMES, "gptq", "compressed-tensors"}))
        raise UsageError(
            f"weights quantised as {method} are not modeled; --weights says as what to take them"
            f" (formats known: {known})"
        )
    return scheme


def _cache(found: Mapping[str, Any]) -> str:
    """The format of keys and values for which a checkpoint has scales: compressed-tensors' ``kv_cache_scheme``,
    modelopt's ``kv_cache_quant_algo``."""
    said = found.get("kv_cache_scheme") or found.get("kv_cache_quant_algo") or ""
    if isinstance(said, Mapping):
        kind, bits = said.get("type"), said.get("num_bits")
        said = "fp8" if (kind, bits) == ("float", 8) else f"{kind} of {bits} bits"
    return str(said).lower()[:40]


def _kept(found: Mapping[str, Any]) -> tuple[str, ...]:
    given = (found.get(key) or () for key in _KEPT)
    lists = (names if isinstance(names, (list, tuple)) else (names,) for names in given)
    return tuple(str(name) for names in lists for name in names)


def _scheme(found: Mapping[str, Any], method: str) -> str:
    """The scheme of a format; empty where it is not known, or where groups of modules have several."""
    groups = found.get("config_groups")
    schemes = {_of_group(group) for group in groups.values()} if isinstance(groups, Mapping) else set()
    if len(schemes) > 1:
        return ""
    (stated,) = schemes or {None}
    if stated is not None and method not in _SCHEMES:
        return stated
    if method == "gptq":
        return {4: "int4_wo", 8: "int8_wo"}.get(found.get("bits", 4), "")
    scheme = _SCHEMES.get(method, "")
    if scheme == "fp8" and found.get("weight_block_size"):
        return "fp8_block"
    static = found.get("activation_scheme") == "static" or "quant_algo" in found  # modelopt calibrates
    return "fp8_static" if scheme == "fp8" and static else scheme


def _of_group(group: Any) -> str | None:
    """The scheme of a group of modules of compressed-tensors; empty where it is not known, None where it says nothing
    of weights."""
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    scheme = _COMPRESSED.get((str(weights.get("type")), weights.get("num_bits")), "")
    if scheme == "int8_wo" and group.get("input_activations"):
        return "sq"
    blocks = weights.get("strategy") == "block" or weights.get("block_structure")
    return "fp8_block" if scheme == "fp8" and blocks else scheme


def quantization_note(raw: Mapping[str, Any], folder: Path) -> Callable[[Any], str] | None:
    """A function of the module that says how its weights are quantised, and that they are counted as they are built;
    None where nothing is said of quantisation."""
    found = _stated(raw, folder)
    if found is None:
        return None
    method = _method(found)
    bits = _bits(found, method)
    experts = str(raw.get("expert_dtype", ""))  # DeepSeek V4: MXFP4, whatever the other weights are
    if experts and experts != method:
        method, bits = f"{method} (experts {experts})", None
    kept = _kept(found)

    def note(module: Any) -> str:
        weights = list(_weights(module, kept))
        if not weights or bits is None:
            return f"weights quantised as {method} are not modeled: they are counted as {_dtypes(module)}"
        built = sum(weight.numel() * weight.element_size() for weight in weights)
        packed = sum(weight.numel() for weight in weights) * bits / 8
        return (
            f"weights quantised as {method} are not modeled: they are counted as {_dtypes(module)}, {size(built)}"
            f" instead of about {size(packed)}"
        )

    return note


def is_quantised(raw: Mapping[str, Any], folder: Path) -> bool:
    """Whether a configuration or the file next to it says that weights are quantised."""
    return _stated(raw, folder) is not None


def _stated(raw: Mapping[str, Any], folder: Path) -> Mapping[str, Any] | None:
    parts = [raw, *(value for value in raw.values() if isinstance(value, Mapping))]
    for key in ("quantization_config", "compression_config"):
        found = next((part[key] for part in parts if part.get(key) is not None), None)
        if found is not None:
            return _table(found, key)
    path = folder / "hf_quant_config.json"
    if not path.is_file():
        return None
    return _table(_table(read_json(path), path.name).get("quantization") or {}, f"quantization of {path.name}") or None


def _table(value: Any, name: str) -> Mapping[str, Any]:
    """A part of a configuration. Raises UsageError: it is no table."""
    if not isinstance(value, Mapping):
        raise UsageError(f'{name} is {str(value)[:40]!r}; want a table such as {{"quant_method": "fp8"}}, or none')
    return value


def _method(found: Mapping[str, Any]) -> str:
    named = found.get("quant_algo") or found.get("quant_method") or found.get("format") or "an unnamed format"
    if named == "bitsandbytes":
        return "bitsandbytes 4-bit" if found.get("load_in_4bit") else "bitsandbytes 8-bit"
    return str(named)[:40]


def _bits(found: Mapping[str, Any], method: str) -> float | None:
    """Bits of a quantised weight; None where the format does not say."""
    known = _BITS.get(method.lower())
    if known is not None and "bits" not in found:
        return known
    if isinstance(found.get("bits"), int):
        return float(found["bits"])
    if method.startswith("bitsandbytes"):
        return 4.0 if found.get("load_in_4bit") else 8.0
    groups = found.get("config_groups")
    weights = [group.get("weights") for group in groups.values()] if isinstance(groups, Mapping) else []
    told = {w["num_bits"] for w in weights if isinstance(w, Mapping) and isinstance(w.get("num_bits"), int)}
    return float(told.pop()) if len(told) == 1 else None


def _weights(module: Any, kept: tuple[str, ...]) -> Iterator[Any]:
    """The weights that are quantised: weights of linear layers and experts, but the head and what is listed."""
    from torch import nn

    embeddings = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    for path, part in module.named_modules():
        if isinstance(part, (nn.Embedding, compat.ConvNd)) or path.endswith(("lm_head", "router", "gate")):
            continue
        for name, weight in part.named_parameters(recurse=False):
            matrix = weight.dim() > 1 and weight.is_floating_point() and id(weight) not in embeddings
            if matrix and not any(_listed(f"{path}.{name}", pattern) for pattern in kept):
                yield weight


def _listed(path: str, pattern: str) -> bool:
    """Whether a pattern names a weight or a module that it is in."""
    if pattern.startswith("re:"):
        return bool(re.match(pattern.removeprefix("re:"), path))
    path, plain = _bare(path), _bare(pattern)
    return fnmatch.fnmatch(path, f"{plain}*") or fnmatch.fnmatch(path, f"*.{plain}.*") or path.startswith(f"{plain}.")


def _bare(name: str) -> str:
    """A name without what checkpoints and transformers call the whole model and its text part:
    ``language_model.model``, ``model.language_model``, ``backbone``."""
    return re.sub(r"^((model|backbone)\.)+", "", name.replace("language_model.", ""))


def _dtypes(module: Any) -> str:
    return str(next((p.dtype for p in module.parameters() if p.is_floating_point()), "float32")).removeprefix("torch.")
