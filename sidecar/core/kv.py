"""How much KV cache a call takes: blocks handed out × tokens a block × bytes a token (facts/triton.md §4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final

from sidecar.core.model import KvProfile

__all__ = ["MLA_FP8_BYTES", "KvDtype", "KvGeometry", "kv_blocks", "kv_bytes"]

MLA_FP8_BYTES: Final = 656  # per token and layer of vLLM's fp8_ds_mla: 512 latent + 128 rope (64 × bf16) + 16 of scales


class KvDtype(Enum):
    """What one element of the cache takes, in bytes; NVFP4 is half a byte and one scale byte for 16 elements."""

    FP32 = Fraction(4)
    FP16 = Fraction(2)  # and bfloat16
    FP8 = Fraction(1)  # and int8
    NVFP4 = Fraction(9, 16)


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """A model's attention as its engine or checkpoint states it.

    ``layers`` are the attention layers of the whole model. Multi-head latent attention (MLA) keeps one vector for keys
    and values: ``kv_heads=1``, ``head_dim=kv_lora_rank + qk_rope_head_dim``, ``latent=True``.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: KvDtype
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    latent: bool = False

    @property
    def bytes_per_token_per_rank(self) -> int:
        """Layers and heads are dealt to ranks rounding up; with more ranks than heads, heads are held twice.

        TensorRT-LLM ``kvCacheManager``: Σ local layers of kv_heads_local × kvFactor × head_size × bytes of the dtype.
        """
        layers = -(-self.layers // self.pipeline_parallel)
        heads = max(1, -(-self.kv_heads // self.tensor_parallel))
        factor = 1 if self.latent else 2
        exact = layers * heads * factor * self.head_dim * self.dtype.value
        return -(-exact.numerator // exact.denominator)

    @property
    def bytes_per_token(self) -> int:
        """Over all ranks: what ``KvProfile.bytes_per_token`` states."""
        return self.bytes_per_token_per_rank * self.tensor_parallel * self.pipeline_parallel


def kv_blocks(prompt_tokens: int, output_tokens: int, sequences: int, tokens_per_block: int) -> int:
    """Blocks that ``sequences`` continuations of one prompt take, ``output_tokens`` each.

    Whole blocks of the prompt are shared; its last, partly filled one and all that is generated is each sequence's own.
    Full price even where blocks are reused from another call: a discount would tell tenants what others asked.
    """
    shared = prompt_tokens // tokens_per_block
    each = -(-(prompt_tokens + output_tokens) // tokens_per_block)
    return shared + sequences * (each - shared)


def kv_bytes(profile: KvProfile, prompt_tokens: int, output_tokens: int, sequences: int = 1) -> int:
    """Bytes of KV cache over all ranks, whole blocks."""
    size, window = profile.tokens_per_block, profile.window
    blocks = kv_blocks(prompt_tokens, output_tokens, sequences, size)
    if window is not None:
        # What has left the window is given back a block at a time, so one more than fits into it may be held.
        blocks = min(blocks, sequences * (-(-window // size) + 1))
    return blocks * profile.tokens_per_block * profile.bytes_per_token
