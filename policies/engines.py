"""KV-cache bytes per token from a model's own ``config.json``, so that nobody states them by hand."""

from __future__ import annotations

from policies.document import KvDoc
from sidecar.core.geometry import HF, Found, inspect
from sidecar.core.model import KvProfile

__all__ = ["read_checkpoint", "read_engine"]


def read_engine(data: bytes) -> KvProfile | str:
    """Bytes per token over all ranks, and the engine's block size; a text says why it can't be told."""
    found = inspect(data)
    if isinstance(found, str):
        return f"not a TensorRT-LLM engine's config.json: {found}"
    if found.kind == HF:
        return "not a TensorRT-LLM engine's config.json but a checkpoint's: write it as kv.checkpoint"
    return _profile(found)


def read_checkpoint(data: bytes, kv: KvDoc) -> KvProfile | str:
    """The same from a Hugging Face ``config.json``, run as ``kv`` says."""
    found = inspect(
        data, dtype=kv.dtype, tokens_per_block=kv.tokens_per_block, tensor_parallel=kv.tensor_parallel,
        batched_tokens=kv.batched_tokens,
    )  # fmt: skip
    if isinstance(found, str):
        return f"not a checkpoint's config.json: {found}"
    if found.kind != HF:
        return "not a checkpoint's config.json but an engine's: write it as kv.engine_config"
    return _profile(found)


def _profile(found: Found) -> KvProfile:
    return KvProfile(found.bytes_per_token, found.tokens_per_block, found.window)
