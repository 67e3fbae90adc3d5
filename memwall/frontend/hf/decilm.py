"""DeciLM (Nemotron-NAS, arXiv 2411.19146): a Llama whose layers have the widths that ``block_configs`` states, some of
them without attention or without a feed-forward network.

transformers has no such model; all that its own code, which is not run, adds to Llama is in the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError

#: widths of feed-forward networks are multiples of it
_MULTIPLE = 256
#: of attention, what is not modeled where it is stated
_OTHERS = ("replace_with_linear", "sparsify", "window_length", "num_sink_tokens", "unshifted_sink")


def as_llama(raw: Mapping[str, Any], source: Path) -> dict[str, Any] | None:
    """The configuration of the Llama that a DeciLM begins from; None where it is no DeciLM.

    Raises:
        UsageError: blocks do not fit the layers, or have what is not modeled.
    """
    blocks = raw.get("block_configs")
    if "DeciLMForCausalLM" not in (raw.get("architectures") or ()) or not isinstance(blocks, list):
        return None
    try:
        if len(blocks) != raw["num_hidden_layers"]:
            raise UsageError(f"{source}: {len(blocks)} block_configs for {raw['num_hidden_layers']} layers")
        for i, block in enumerate(blocks):
            attention, network = block["attention"], block["ffn"]
            strange = [f"attention.{name}" for name in _OTHERS if attention.get(name)]
            strange += [f"ffn.{name}" for name in ("replace_with_linear", "sparsify") if network.get(name)]
            if strange:
                raise UsageError(f"{source}: block_configs[{i}] has {strange[0]}, which is not modeled")
        groups = {block["attention"]["n_heads_in_group"] for block in blocks if not block["attention"]["no_op"]}
        widths = [_width(block, raw["hidden_size"]) for block in blocks]
        if len(groups) != 1 or blocks[0]["attention"]["no_op"]:
            raise UsageError(
                f"{source}: block_configs whose first layer has no attention, or whose layers have groups"
                " of several sizes, are not modeled"
            )
        heads = raw["num_attention_heads"] // groups.pop()
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise UsageError(f"{source}: these are no block_configs of a DeciLM: {type(error).__name__} {error}") from None
    return {
        **raw,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_key_value_heads": heads,
        "intermediate_size": max(widths),
    }


def note(raw: Mapping[str, Any]) -> str:
    """How it is built, for the pages of a profile."""
    blocks = raw["block_configs"]
    without = sum(block["attention"]["no_op"] for block in blocks)
    return (
        f"it is built as LlamaForCausalLM with the widths of its block_configs, {without} of {len(blocks)} layers"
        " without attention"
    )


def _width(block: Mapping[str, Any], hidden: int) -> int:
    """Columns of a layer's feed-forward network: ``2/3 * ffn_mult * hidden``, rounded up; 0 without one."""
    network = block["ffn"]
    if network["no_op"]:
        return 0
    return -(-int(2 * network["ffn_mult"] * hidden / 3) // _MULTIPLE) * _MULTIPLE


def shape_layers(module: Any) -> None:
    """Give the layers of a Llama the widths of the ``block_configs`` in its configuration, if it has some."""
    blocks = getattr(module.config, "block_configs", None)
    if not blocks:
        return
    dtype = next(module.parameters()).dtype
    for i, block in enumerate(blocks):
        layer, own = module.model.layers[i], copy(module.config)
        own.intermediate_size = _width(block, own.hidden_size)
        network = type(layer.mlp)(own).to(dtype) if own.intermediate_size else None
        if network is not None and not block["attention"]["no_op"]:
            layer.mlp = network
        else:
            module.model.layers[i] = _half(layer, network)


def _half(layer: Any, network: Any) -> Any:
    """A layer of which one half, or both, are left out."""
    from torch.nn import Module

    class Half(Module):
        def __init__(self) -> None:
            super().__init__()
            if network is None:
                self.input_layernorm, self.self_attn = layer.input_layernorm, layer.self_attn
            else:
                self.post_attention_layernorm, self.mlp = layer.post_attention_layernorm, network

        def forward(self, hidden_states: Any, **others: Any) -> Any:
            if network is not None:
                return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
            return hidden_states + self.self_attn(hidden_states=self.input_layernorm(hidden_states), **others)[0]

    return Half()
