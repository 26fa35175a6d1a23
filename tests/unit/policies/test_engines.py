"""KV-cache bytes per token as TensorRT-LLM's own formula gives them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policies.document import KvDoc
from policies.engines import read_checkpoint, read_engine
from sidecar.core.model import KvProfile


def engine(block: object = 64, **model: Any) -> bytes:
    """Llama 3 8B by default: 32 layers, 8 KV heads of 128."""
    known = {
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }
    plugins = {"paged_kv_cache": True, "tokens_per_block": block}
    return json.dumps({"pretrained_config": {**known, **model}, "build_config": {"plugin_config": plugins}}).encode()


@pytest.mark.parametrize(
    ("data", "profile"),
    [
        (engine(), KvProfile(2 * 32 * 8 * 128 * 2, 64)),
        (engine(32, dtype="float32"), KvProfile(2 * 32 * 8 * 128 * 4, 32)),
        (engine(head_size=64), KvProfile(2 * 32 * 8 * 64 * 2, 64)),
        (engine(num_key_value_heads=None), KvProfile(2 * 32 * 32 * 128 * 2, 64)),
        (engine(quantization={"kv_cache_quant_algo": "FP8"}), KvProfile(2 * 32 * 8 * 128, 64)),
        (engine(quantization={"kv_cache_quant_algo": "NVFP4"}), KvProfile(round(2 * 32 * 8 * 128 * 0.5625), 64)),
        (engine(mapping={"tp_size": 4, "pp_size": 2}), KvProfile(2 * 32 * 8 * 128 * 2, 64)),
        # More ranks than KV heads: each rank keeps a copy of one.
        (engine(mapping={"tp_size": 16}), KvProfile(2 * 32 * 16 * 128 * 2, 64)),
    ],
)
def test_reads(data: bytes, profile: KvProfile) -> None:
    assert read_engine(data) == profile


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{}", "neither pretrained_config"),
        (b"[]", "not a TensorRT-LLM engine's config.json"),
        (b"nonsense", "not a TensorRT-LLM engine's config.json"),
        (b"[" * 100_000, "not a TensorRT-LLM engine's config.json"),
        (engine(num_hidden_layers="32"), "not a number in range"),
        (engine(num_hidden_layers=0), "not a number in range"),
        (engine(None), "tokens_per_block is missing"),
        (engine(dtype="int4"), "no type that a KV cache is known to have"),
        (engine(quantization={"kv_cache_quant_algo": "FP2"}), "no type that a KV cache is known to have"),
        (engine(mapping={"cp_size": 2}), "context parallelism"),
        (engine(kv_lora_rank=512), "pretrained_config.qk_rope_head_dim is missing"),
        (engine(48), "tokens_per_block is 48, not a power of two"),
        (engine(num_key_value_heads=64), "64 KV heads are more than the 32 heads"),
        (engine(hidden_size=4097), "no multiple of its 32 heads"),
    ],
)
def test_says_why_it_cannot(data: bytes, said: str) -> None:
    found = read_engine(data)
    assert isinstance(found, str)
    assert said in found


def test_a_checkpoint_is_read_as_its_server_runs_it() -> None:
    config = json.dumps(
        {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512, "torch_dtype": "float16"}
    )
    kv = KvDoc(checkpoint="engines/x.json", dtype="fp8", tensor_parallel=2, tokens_per_block=32)
    assert read_checkpoint(config.encode(), kv) == KvProfile(2 * 4 * 8 * 64, 32)
    assert read_checkpoint(config.encode(), KvDoc(checkpoint="engines/x.json")) == KvProfile(4 * 4 * 8 * 64, 16)


def test_one_kind_is_not_taken_for_the_other() -> None:
    checkpoint = b'{"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512, "torch_dtype": "float16"}'
    assert "write it as kv.checkpoint" in str(read_engine(checkpoint))
    assert "write it as kv.engine_config" in str(read_checkpoint(engine(), KvDoc(checkpoint="engines/x.json")))
