"""KV-cache bytes per token from a TensorRT-LLM engine's ``config.json``, so that nobody states them by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from sidecar.core.model import KvProfile

__all__ = ["read_engine"]

_DTYPE_BYTES: Final = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
# NVFP4 keeps 4-bit values and one FP8 scale for 16 of them.
_QUANTISED_BYTES: Final = {"FP8": 1.0, "INT8": 1.0, "NVFP4": 0.5 + 1 / 16}


def read_engine(data: bytes) -> KvProfile | str:
    """Bytes per token over all ranks, and the engine's block size; a text says why it can't be told.

    TensorRT-LLM's kvCacheManager: per rank Σ local layers × local KV heads × 2 (K and V) × head size × bytes of the
    cache's type, where a KV head is copied to several ranks when there are more ranks than heads. Attention kinds with
    another layout (MLA) and context parallelism are not guessed at.
    """
    try:
        config = json.loads(data)
        model, build = config["pretrained_config"], config["build_config"]
        mapping = model.get("mapping") or {}
        if _whole(mapping, "cp_size", 1) != 1 or model.get("kv_lora_rank"):
            return "an engine with context parallelism or MLA; state bytes_per_token and tokens_per_block"
        heads = _whole(model, "num_attention_heads")
        kv_heads, ranks = _whole(model, "num_key_value_heads", heads), _whole(mapping, "tp_size", 1)
        head_size = _whole(model, "head_size", _whole(model, "hidden_size", heads) // heads)
        values = 2 * _whole(model, "num_hidden_layers") * ranks * max(1, -(-kv_heads // ranks)) * head_size
        size = _element_bytes(model)
        block = _whole(build["plugin_config"], "tokens_per_block")
    except KeyError as fault:
        return f"not a TensorRT-LLM engine's config.json: {fault.args[0]} is missing"
    except (ValueError, TypeError, AttributeError, RecursionError) as fault:
        return f"not a TensorRT-LLM engine's config.json: {fault}"
    if size is None:
        return "the KV cache's type is not known; state bytes_per_token and tokens_per_block"
    return KvProfile(bytes_per_token=round(values * size), tokens_per_block=block)


def _whole(section: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = section.get(key)
    if value is None:
        if default is None:
            raise KeyError(key)
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 2**31:
        raise ValueError(f"{key} is not a number in range")
    return value


def _element_bytes(model: Mapping[str, Any]) -> float | None:
    quantised = (model.get("quantization") or {}).get("kv_cache_quant_algo")
    if quantised is not None:
        return _QUANTISED_BYTES.get(quantised)
    return _DTYPE_BYTES.get(model.get("kv_dtype") or model["dtype"])
