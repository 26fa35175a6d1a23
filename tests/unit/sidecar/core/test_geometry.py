"""The worked examples of facts/triton.md §4, read from the files that state them, to the byte; and files that lie."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.core.geometry import Found, inspect

LLAMA_8B = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
LLAMA_70B = {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192}
MIXTRAL_8X7B = LLAMA_8B | {"num_local_experts": 8}
MIXTRAL_8X22B = {"num_hidden_layers": 56, "num_attention_heads": 48, "num_key_value_heads": 8, "hidden_size": 6144}
DEEPSEEK = {
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64,
}  # fmt: skip


def engine(model: dict[str, Any], *, tp: int = 1, pp: int = 1, cache: str | None = None, **more: Any) -> bytes:
    """As TensorRT-LLM writes it now."""
    pretrained = {
        "architecture": "X", "dtype": "float16", **model,
        "mapping": {"world_size": tp * pp, "tp_size": tp, "pp_size": pp},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": cache}, **more,
    }  # fmt: skip
    build = {"max_seq_len": 8192, "plugin_config": {"paged_kv_cache": True, "tokens_per_block": 64}}
    return json.dumps({"version": "0.16.0", "pretrained_config": pretrained, "build_config": build}).encode()


def old(layers: int, heads: int, kv_heads: int | None, hidden: int, *, tp: int = 1, mode: int = 0) -> bytes:
    """As TensorRT-LLM wrote it before 0.7."""
    builder = {
        "precision": "float16", "num_layers": layers, "num_heads": heads, "num_kv_heads": kv_heads,
        "hidden_size": hidden, "tensor_parallel": tp, "pipeline_parallel": 1, "quant_mode": mode,
        "max_input_len": 3000, "max_output_len": 1096,
    }  # fmt: skip
    return json.dumps({"builder_config": builder, "plugin_config": {"tokens_per_block": 64}}).encode()


def checkpoint(model: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"torch_dtype": "bfloat16", **model, **more}).encode()


def read(data: bytes, **options: Any) -> Found:
    found = inspect(data, **options)
    assert isinstance(found, Found), found
    return found


WORKED = {
    # name: (file, bytes a token on one rank, over all ranks, a 64-token block of one rank, 8,192 tokens of one rank)
    "Llama-3-8B fp16": (engine(LLAMA_8B), 131_072, 131_072, 8_388_608, 2**30),
    "Llama-3-8B fp8": (engine(LLAMA_8B, cache="FP8"), 65_536, 65_536, 4_194_304, 2**29),
    "Llama-3-8B int8": (engine(LLAMA_8B, cache="INT8"), 65_536, 65_536, 4_194_304, 2**29),
    "Llama-3-8B NVFP4": (engine(LLAMA_8B, cache="NVFP4"), 36_864, 36_864, 2_359_296, 288 * 2**20),
    "Llama-3-70B fp16": (engine(LLAMA_70B), 327_680, 327_680, 20_971_520, 2560 * 2**20),
    "Llama-3-70B fp8": (engine(LLAMA_70B, cache="FP8"), 163_840, 163_840, 10_485_760, 1280 * 2**20),
    "Llama-3-70B fp8 TP4": (engine(LLAMA_70B, cache="FP8", tp=4), 40_960, 163_840, 2_621_440, 320 * 2**20),
    "Llama-3-70B fp16 TP16": (engine(LLAMA_70B, tp=16), 40_960, 655_360, 2_621_440, 320 * 2**20),
    "Llama-3-70B fp16 TP4 PP2": (engine(LLAMA_70B, tp=4, pp=2), 40_960, 327_680, 2_621_440, 320 * 2**20),
    "Mixtral-8x7B fp16": (engine(MIXTRAL_8X7B), 131_072, 131_072, 8_388_608, 2**30),
    "Mixtral-8x22B fp16": (engine(MIXTRAL_8X22B), 229_376, 229_376, 14_680_064, 1792 * 2**20),
    "DeepSeek-V3 bf16": (engine(DEEPSEEK, dtype="bfloat16"), 70_272, 70_272, 4_497_408, 575_668_224),
    "before 0.7, Llama-70B": (old(80, 64, 8, 8192), 327_680, 327_680, 20_971_520, 2560 * 2**20),
    "before 0.7, fp8 cache, TP4": (old(80, 64, 8, 8192, tp=4, mode=64), 40_960, 163_840, 2_621_440, 320 * 2**20),
    "before 0.7, int8 cache": (old(32, 32, 8, 4096, mode=32), 65_536, 65_536, 4_194_304, 2**29),
    "before 0.7, every head its own": (old(32, 32, None, 4096), 524_288, 524_288, 33_554_432, 2**32),
}


@pytest.mark.parametrize(("data", "rank", "total", "block", "window"), WORKED.values(), ids=WORKED)
def test_engines(data: bytes, rank: int, total: int, block: int, window: int) -> None:
    found = read(data)
    assert (found.geometry.bytes_per_token_per_rank, found.bytes_per_token, found.tokens_per_block) == (rank, total, 64)
    assert (rank * 64, rank * 8192) == (block, window)


CHECKPOINTS = {
    "grouped queries": (checkpoint(LLAMA_8B), {}, 131_072),
    "grouped queries, fp8 cache": (checkpoint(LLAMA_8B), {"dtype": "fp8"}, 65_536),
    "every head its own": (checkpoint({k: v for k, v in LLAMA_8B.items() if k != "num_key_value_heads"}), {}, 524_288),
    "heads wider than hidden size": (checkpoint(LLAMA_8B, head_dim=256), {}, 262_144),
    "latent attention": (checkpoint(DEEPSEEK), {}, 70_272),
    "latent attention, vLLM's fp8": (checkpoint(DEEPSEEK), {"dtype": "fp8_ds_mla"}, 40_016),
    "latent attention on every rank": (checkpoint(DEEPSEEK), {"tensor_parallel": 8}, 8 * 70_272),
    "nested": (
        json.dumps({"torch_dtype": "float16", "text_config": LLAMA_8B, "vision_config": {}}).encode(),
        {},
        131_072,
    ),
    "heads held twice": (checkpoint(LLAMA_70B), {"tensor_parallel": 16}, 655_360),
    "GPT-2's names": (
        json.dumps({"n_layer": 12, "n_head": 12, "n_embd": 768, "torch_dtype": "float32"}).encode(),
        {},
        2 * 12 * 768 * 4,
    ),
}


@pytest.mark.parametrize(("data", "options", "total"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_checkpoints(data: bytes, options: dict[str, Any], total: int) -> None:
    found = read(data, **options)
    assert (found.bytes_per_token, found.tokens_per_block) == (total, 16)


def test_a_window_bounds_the_cache_only_where_every_layer_keeps_to_it() -> None:
    def read(data: bytes) -> Found:
        found = inspect(data, batched_tokens=2048)
        assert isinstance(found, Found)
        return found

    kept = 4096 - 1 + 2048  # vLLM: while a prompt is read
    assert read(checkpoint(LLAMA_8B, sliding_window=4096)).window == kept
    unstated = inspect(checkpoint(LLAMA_8B, sliding_window=4096))
    assert isinstance(unstated, Found)
    assert unstated.window is None
    assert read(checkpoint(LLAMA_8B, sliding_window=None)).window is None
    assert read(checkpoint(LLAMA_8B, sliding_window=4096, use_sliding_window=False)).window is None
    mixed = checkpoint(LLAMA_8B, sliding_window=4096, layer_types=["sliding_attention", "full_attention"])
    assert read(mixed).window is None
    alike = checkpoint(LLAMA_8B, sliding_window=4096, layer_types=["sliding_attention"] * 32)
    assert read(alike).window == kept


def test_a_quantised_checkpoint_says_what_its_cache_is_kept_in() -> None:
    def quantised(algorithm: str | None, **options: Any) -> int | str:
        beside = json.dumps({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": algorithm}}).encode()
        found = inspect(checkpoint(LLAMA_8B), quantised=beside, **options)
        return found if isinstance(found, str) else found.bytes_per_token

    assert quantised("FP8") == 65_536
    assert quantised("NVFP4") == 36_864
    assert quantised(None) == 131_072
    assert quantised("FP8", dtype="bfloat16") == 131_072  # the server is told otherwise
    assert "hf_quant_config.json quantization.kv_cache_quant_algo: 'INT3'" in str(quantised("INT3"))
    assert "hf_quant_config.json is not JSON" in str(inspect(checkpoint(LLAMA_8B), quantised=b"{"))


def test_every_number_of_the_arithmetic_is_a_line_with_its_source() -> None:
    lines = {step.what: (step.value, step.source) for step in read(engine(LLAMA_8B, cache="FP8")).steps}
    assert lines["layers"] == (32, "pretrained_config.num_hidden_layers")
    assert lines["values a head"] == (128, "hidden size / heads")
    assert lines["bytes an element"] == ("1", "pretrained_config.quantization.kv_cache_quant_algo FP8")
    assert lines["tokens a block"] == (64, "build_config.plugin_config.tokens_per_block")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b'{"x": 1}', "has neither pretrained_config, builder_config nor num_hidden_layers"),
        (b'{"pretrained_config": 5}', "pretrained_config is not an object"),
        (engine(LLAMA_8B | {"num_hidden_layers": True}), "num_hidden_layers is True, not a number in range"),
        (engine(LLAMA_8B | {"num_hidden_layers": 10**12}), "not a number in range"),
        (engine(LLAMA_8B, cache="INT3"), "no type that a KV cache is known to have"),
        (old(32, 32, 8, 4096, mode=True), "quant_mode is True, not a number"),
        (checkpoint({**LLAMA_8B, "torch_dtype": 4}), "torch_dtype is not a text"),
        (json.dumps(LLAMA_8B).encode(), "torch_dtype is missing"),
        (checkpoint(LLAMA_8B | {"num_key_value_heads": -8}), "num_key_value_heads is -8"),
    ],
)
def test_what_cannot_be_read_says_why_and_where(data: bytes, said: str) -> None:
    found = inspect(data)
    assert isinstance(found, str)
    assert said in found
