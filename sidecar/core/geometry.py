"""Reads a model's attention from its TensorRT-LLM engine's or its Hugging Face ``config.json`` (facts/triton.md §4)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sidecar.core.kv import MLA_FP8_BYTES, KvDtype, KvGeometry

__all__ = ["ENGINE", "HF", "HF_QUANT", "Found", "Step", "inspect"]

ENGINE: Final = "TensorRT-LLM engine"
OLD_ENGINE: Final = "TensorRT-LLM engine, before 0.7"
HF: Final = "Hugging Face checkpoint"
HF_QUANT: Final = "hf_quant_config.json"
VLLM_BLOCK: Final = 16  # tokens; vLLM's default on GPUs
_LARGEST: Final = 2**31

_TYPES: Final = {
    "float32": KvDtype.FP32, "fp32": KvDtype.FP32,
    "float16": KvDtype.FP16, "fp16": KvDtype.FP16, "bfloat16": KvDtype.FP16, "bf16": KvDtype.FP16,
    "fp8": KvDtype.FP8, "fp8_e4m3": KvDtype.FP8, "fp8_e5m2": KvDtype.FP8, "float8_e4m3fn": KvDtype.FP8,
    "int8": KvDtype.FP8, "nvfp4": KvDtype.NVFP4, "fp8_ds_mla": KvDtype.FP8,
}  # fmt: skip
# TensorRT-LLM's QuantMode bits (quantization/mode.py): what the KV cache is kept in.
_INT8_KV, _FP8_KV = 1 << 5, 1 << 6


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the arithmetic: what, its value, where it is from."""

    what: str
    value: int | str
    source: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a configuration says. ``window``: the most tokens of a sequence that its cache keeps; None: all."""

    kind: str
    geometry: KvGeometry
    tokens_per_block: int
    window: int | None
    max_sequence: int | None  # tokens, prompt and output
    steps: tuple[Step, ...]

    @property
    def bytes_per_token(self) -> int:
        """Over all ranks."""
        return self.geometry.bytes_per_token

    @property
    def bytes_per_block(self) -> int:
        return self.geometry.bytes_per_token * self.tokens_per_block


class _Wrong(Exception):  # noqa: N818 — the file's fault, told as a text
    pass


def inspect(  # noqa: PLR0911 — each kind of file, and each that is none
    data: bytes, *, dtype: str | None = None, tokens_per_block: int | None = None, tensor_parallel: int | None = None,
    batched_tokens: int | None = None, quantised: bytes | None = None,
) -> Found | str:  # fmt: skip
    """Read either kind of ``config.json``; a text says what is missing or wrong, and where.

    The first four options state what a Hugging Face configuration can't know: how the server will run it.
    ``batched_tokens`` is vLLM's max_num_batched_tokens. ``quantised``: the ``hf_quant_config.json`` beside it.
    """
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as fault:
        return f"is not JSON: {fault}"
    if not isinstance(config, dict):
        return "is not a JSON object"
    options = _Options(dtype, tokens_per_block, tensor_parallel, batched_tokens, None)
    try:
        if dtype is None and quantised is not None:
            options = replace(options, cache=_quantised_cache(quantised))
        if "pretrained_config" in config:
            return _engine(config)
        if "builder_config" in config:
            return _old_engine(config)
        if "num_hidden_layers" in config or "text_config" in config or "n_layer" in config:
            return _checkpoint(config, options)
    except _Wrong as wrong:
        return str(wrong)
    return "is no model's config.json: it has neither pretrained_config, builder_config nor num_hidden_layers"


@dataclass(frozen=True, slots=True)
class _Options:
    dtype: str | None
    tokens_per_block: int | None
    tensor_parallel: int | None
    batched_tokens: int | None
    cache: str | None  # what a quantised checkpoint says its KV cache is kept in


def _quantised_cache(data: bytes) -> str | None:
    """None: its cache is not quantised."""
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as fault:
        raise _Wrong(f"{HF_QUANT} is not JSON: {fault}") from None
    section = _Section(HF_QUANT, config, []).inner("quantization")
    return section.text("kv_cache_quant_algo")


class _Section:
    """One mapping of the file; what is read is remembered as a line of the arithmetic."""

    def __init__(self, name: str, data: Any, steps: list[Step]) -> None:
        if not isinstance(data, Mapping):
            raise _Wrong(f"{name} is not an object")
        self._name, self._data, self._steps = name, data, steps

    def has(self, key: str) -> bool:
        return self._data.get(key) is not None

    def inner(self, key: str) -> _Section:
        value = self._data.get(key)
        return _Section(self._where(key), {} if value is None else value, self._steps)

    def raw(self, key: str) -> Any:
        return self._data.get(key)

    def whole(self, what: str, *keys: str, default: int | None = None, because: str = "") -> int:
        """The first of ``keys`` that is there, a whole number above nothing."""
        for key in keys:
            value = self._data.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _LARGEST:
                raise _Wrong(f"{self._where(key)} is {value!r:.40}, not a number in range")
            self._steps.append(Step(what, value, self._where(key)))
            return value
        if default is None:
            raise _Wrong(f"{self._where(keys[0])} is missing")
        self._steps.append(Step(what, default, because or f"{self._where(keys[0])} is absent"))
        return default

    def text(self, key: str) -> str | None:
        value = self._data.get(key)
        if value is not None and not isinstance(value, str):
            raise _Wrong(f"{self._where(key)} is not a text")
        return value

    def dtype(self, key: str, written: str | None = None, source: str = "") -> KvDtype:
        name = written if written is not None else self.text(key)
        if name is None:
            raise _Wrong(f"{self._where(key)} is missing")
        found = _TYPES.get(name.lower().removeprefix("torch."))
        if found is None:
            raise _Wrong(f"{source or self._where(key)}: {name!r:.40} is no type that a KV cache is known to have")
        self._steps.append(Step("bytes an element", str(found.value), f"{source or self._where(key)} {name}"))
        return found

    def _where(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key


def _engine(config: Mapping[str, Any]) -> Found:
    steps: list[Step] = []
    model = _Section("pretrained_config", config["pretrained_config"], steps)
    build = _Section("build_config", config.get("build_config"), steps)
    mapping, quantised = model.inner("mapping"), model.inner("quantization")
    if (context := mapping.raw("cp_size")) not in (None, 1):
        raise _Wrong(f"pretrained_config.mapping.cp_size is {context!r:.20}: context parallelism is not known here")
    algorithm = quantised.text("kv_cache_quant_algo")
    if algorithm is not None:
        dtype = quantised.dtype("kv_cache_quant_algo")
    else:
        dtype = model.dtype("kv_dtype") if model.has("kv_dtype") else model.dtype("dtype")
    geometry = _geometry(
        model, dtype, mapping.whole("tensor parallel", "tp_size", default=1),
        mapping.whole("pipeline parallel", "pp_size", default=1),
    )  # fmt: skip
    block = build.inner("plugin_config").whole("tokens a block", "tokens_per_block")
    _power_of_two(block, "build_config.plugin_config.tokens_per_block")
    longest = build.whole("longest sequence", "max_seq_len", default=0) if build.has("max_seq_len") else None
    if longest is None and build.has("max_input_len") and build.has("max_output_len"):
        longest = build.whole("longest prompt", "max_input_len") + build.whole("longest output", "max_output_len")
    return Found(ENGINE, geometry, block, None, longest, tuple(steps))


def _old_engine(config: Mapping[str, Any]) -> Found:
    steps: list[Step] = []
    model = _Section("builder_config", config["builder_config"], steps)
    plugins = _Section("plugin_config", config.get("plugin_config"), steps)
    mode = model.raw("quant_mode")
    if not isinstance(mode, int | None) or isinstance(mode, bool):
        raise _Wrong(f"builder_config.quant_mode is {mode!r:.40}, not a number")
    written = "fp8" if (mode or 0) & _FP8_KV else "int8" if (mode or 0) & _INT8_KV else None
    source = "builder_config.quant_mode" if written else ""
    dtype = model.dtype("precision", written, source)
    geometry = _geometry(
        model, dtype, model.whole("tensor parallel", "tensor_parallel", default=1),
        model.whole("pipeline parallel", "pipeline_parallel", default=1),
    )  # fmt: skip
    block = plugins.whole("tokens a block", "tokens_per_block")
    _power_of_two(block, "plugin_config.tokens_per_block")
    longest = None
    if model.has("max_input_len") and model.has("max_output_len"):
        longest = model.whole("longest prompt", "max_input_len") + model.whole("longest output", "max_output_len")
    return Found(OLD_ENGINE, geometry, block, None, longest, tuple(steps))


def _checkpoint(config: Mapping[str, Any], options: _Options) -> Found:
    steps: list[Step] = []
    name = "text_config" if isinstance(config.get("text_config"), Mapping) else ""
    model = _Section(name, config["text_config"] if name else config, steps)
    outer = _Section("", config, steps)
    if options.dtype is not None:
        dtype = model.dtype("", options.dtype, "as stated:")
    elif options.cache is not None:
        dtype = model.dtype("", options.cache, f"{HF_QUANT} quantization.kv_cache_quant_algo")
    else:
        holder = next((each for each in (model, outer) if each.has("torch_dtype") or each.has("dtype")), None)
        if holder is None:
            raise _Wrong("torch_dtype is missing; state the KV cache's type")
        dtype = holder.dtype("torch_dtype" if holder.has("torch_dtype") else "dtype")
    parallel = options.tensor_parallel or 1
    steps.append(Step("tensor parallel", parallel, "as stated" if options.tensor_parallel else "one GPU"))
    geometry = _geometry(model, dtype, parallel, 1, stated=options.dtype or "")
    block = options.tokens_per_block or VLLM_BLOCK
    _power_of_two(block, "tokens_per_block")
    steps.append(Step("tokens a block", block, "as stated" if options.tokens_per_block else "vLLM's default"))
    longest = (
        model.whole("longest sequence", "max_position_embeddings", "n_positions")
        if model.has("max_position_embeddings") or model.has("n_positions")
        else None
    )
    return Found(HF, geometry, block, _window(model, geometry.layers, options, steps), longest, tuple(steps))


def _window(model: _Section, layers: int, options: _Options, steps: list[Step]) -> int | None:
    """Only where every layer keeps to the window is the cache bounded by it; one full layer keeps all.

    vLLM keeps window - 1 + max_num_batched_tokens while it reads a prompt (SlidingWindowSpec.max_memory_usage_bytes).
    """
    if not model.has("sliding_window") or model.raw("use_sliding_window") is False:
        return None
    kinds = model.raw("layer_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str) and any(k != "sliding_attention" for k in kinds):
        full = sum(kind != "sliding_attention" for kind in kinds)
        steps.append(Step("window", "none", f"{full} of {layers} layers attend to everything, so all is charged"))
        return None
    window = model.whole("window", "sliding_window")
    if options.batched_tokens is None:
        why = "while a prompt is read as many more are kept as are batched: not stated, so all is charged"
        steps.append(Step("batched tokens", "none", why))
        return None
    steps.append(Step("batched tokens", options.batched_tokens, "as stated"))
    return window - 1 + options.batched_tokens


def _geometry(
    model: _Section, dtype: KvDtype, tensor_parallel: int, pipeline_parallel: int, *, stated: str = ""
) -> KvGeometry:
    layers = model.whole("layers", "num_hidden_layers", "num_layers", "n_layer")
    if model.has("kv_lora_rank"):
        latent = model.whole("latent values", "kv_lora_rank")
        rope = model.whole("rotary values", "qk_rope_head_dim")
        if stated == "fp8_ds_mla":
            latent, rope = MLA_FP8_BYTES, 0
        # The one latent head is held by every rank of tensor parallelism.
        return KvGeometry(layers, 1, latent + rope, dtype, tensor_parallel, pipeline_parallel, latent=True)
    heads = model.whole("heads", "num_attention_heads", "num_heads", "n_head")
    kv_heads = model.whole("KV heads", "num_key_value_heads", "num_kv_heads", default=heads, because="as many as heads")
    if kv_heads > heads:
        raise _Wrong(f"{kv_heads} KV heads are more than the {heads} heads that they are for")
    hidden = 0
    if not (model.has("head_size") or model.has("head_dim")):
        hidden = model.whole("hidden size", "hidden_size", "n_embd")
        if hidden % heads:
            raise _Wrong(f"hidden size {hidden} is no multiple of its {heads} heads; head_size is missing")
    size = model.whole("values a head", "head_size", "head_dim", default=hidden // heads, because="hidden size / heads")
    return KvGeometry(layers, kv_heads, size, dtype, tensor_parallel, pipeline_parallel)


def _power_of_two(block: int, where: str) -> None:
    if block & (block - 1):
        raise _Wrong(f"{where} is {block}, not a power of two")
