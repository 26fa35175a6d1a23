"""How large a KV cache is by its engine's word, and what no engine could truly say."""

from __future__ import annotations

import pytest

from sidecar.core.model import KvProfile, LivePool
from sidecar.triton.believed import judge
from sidecar.triton.gauges import EngineGauges

KV = KvProfile(bytes_per_token=131_072, tokens_per_block=64)  # Llama-3-8B, fp16: a block of 8 MiB
BLOCK = 8_388_608
STATED = 1000


def test_blocks_times_their_size() -> None:
    """facts/triton.md §4: 1,000 blocks of 64 tokens of Llama-3-8B in fp16."""
    assert judge(EngineGauges(1000, 250, 750, 64), KV, STATED, None) == LivePool(1000 * BLOCK, 250 * BLOCK)
    assert judge(EngineGauges(1000, 250, 750, 64), KV, STATED, 80 * 2**30) == LivePool(1000 * BLOCK, 250 * BLOCK)


def test_the_engines_own_block_size_counts_not_the_bundles() -> None:
    assert judge(EngineGauges(1000, 250, None, 32), KV, STATED, None) == LivePool(500 * BLOCK, 125 * BLOCK)


def test_a_usage_alone_is_of_what_the_bundle_states() -> None:
    assert judge(EngineGauges(usage=0.25), KV, STATED, None) == LivePool(1000, 250)
    assert judge(EngineGauges(1000, None, None, 64, usage=0.25), KV, STATED, None) == LivePool(
        1000 * BLOCK, 250 * BLOCK
    )


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (None, "its engine is not in Triton's metrics"),
        (EngineGauges(pending=0), "its engine tells no block count and no usage"),
        (EngineGauges(max_blocks=1000, used_blocks=1), "its engine tells no block count and no usage"),
        (EngineGauges(0, 0, 0, 64), "0 blocks of 64 tokens are no KV cache"),
        (EngineGauges(1000, 0, 1000, 0), "1000 blocks of 0 tokens are no KV cache"),
        (EngineGauges(1000, 0, 1000, 65_537), "1000 blocks of 65537 tokens are no KV cache"),
        (EngineGauges(1000, 1001, None, 64), "1001 blocks in use, of 1000"),
        (EngineGauges(1000, None, None, 64), "None blocks in use, of 1000"),
        (EngineGauges(1000, 100, 100, 64), "100 blocks in use and 100 free are not 1000"),
        (
            EngineGauges(10_241, 0, 10_241, 64),
            "10241 blocks take 85907734528 bytes, and all GPUs have 85899345920",
        ),
    ],
)
def test_what_cannot_be_is_not_believed(told: EngineGauges | None, why: str) -> None:
    assert judge(told, KV, STATED, 80 * 2**30) == why


def test_what_nobody_here_has_reserved_is_a_strangers() -> None:
    live = LivePool(1000, 400)
    assert live.beside(0) == LivePool(1000, 400, 400)
    assert live.beside(399) == LivePool(1000, 400, 1)
    assert live.beside(401) == LivePool(1000, 400, 0)
