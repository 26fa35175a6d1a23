"""KV arithmetic to the byte, against the worked examples of facts/triton.md §4."""

from __future__ import annotations

import pytest

from sidecar.core.kv import MLA_FP8_BYTES, KvDtype, KvGeometry, kv_blocks, kv_bytes
from sidecar.core.model import KvProfile

G, D = KvGeometry, KvDtype
MIB = 2**20
WORKED = {
    # model: (geometry, bytes per token, of a 64-token block, of 8,192 tokens), the last three of one rank
    "Llama-3-8B fp16": (G(32, 8, 128, D.FP16), 131_072, 8_388_608, 1024 * MIB),
    "Llama-3-8B fp8": (G(32, 8, 128, D.FP8), 65_536, 4_194_304, 512 * MIB),
    "Llama-3-8B NVFP4": (G(32, 8, 128, D.NVFP4), 36_864, 2_359_296, 288 * MIB),
    "Llama-3-8B fp32": (G(32, 8, 128, D.FP32), 262_144, 16_777_216, 2048 * MIB),
    "Llama-3-70B fp16": (G(80, 8, 128, D.FP16), 327_680, 20_971_520, 2560 * MIB),
    "Llama-3-70B fp8": (G(80, 8, 128, D.FP8), 163_840, 10_485_760, 1280 * MIB),
    "Llama-3-70B fp8 TP4": (G(80, 8, 128, D.FP8, tensor_parallel=4), 40_960, 2_621_440, 320 * MIB),
    "Llama-3-70B fp16 TP16": (G(80, 8, 128, D.FP16, tensor_parallel=16), 40_960, 2_621_440, 320 * MIB),
    "Mixtral-8x7B fp16": (G(32, 8, 128, D.FP16), 131_072, 8_388_608, 1024 * MIB),
    "Mixtral-8x22B fp16": (G(56, 8, 128, D.FP16), 229_376, 14_680_064, 1792 * MIB),
    "DeepSeek-V3 MLA bf16": (G(61, 1, 512 + 64, D.FP16, latent=True), 70_272, 4_497_408, 575_668_224),
    "DeepSeek-V3 fp8_ds_mla": (G(61, 1, MLA_FP8_BYTES, D.FP8, latent=True), 40_016, 2_561_024, 327_811_072),
    "Llama-3-8B fp16 PP3": (G(32, 8, 128, D.FP16, pipeline_parallel=3), 45_056, 2_883_584, 352 * MIB),
}


@pytest.mark.parametrize(("geometry", "token", "block", "window"), WORKED.values(), ids=WORKED)
def test_bytes_per_token_per_rank(geometry: KvGeometry, token: int, block: int, window: int) -> None:
    assert geometry.bytes_per_token_per_rank == token
    assert kv_bytes(KvProfile(token, 64), 64, 0) == block
    assert kv_bytes(KvProfile(token, 64), 8000, 192) == window


def test_heads_held_twice_are_paid_twice() -> None:
    assert G(80, 8, 128, D.FP16, tensor_parallel=16).bytes_per_token == 655_360
    assert G(80, 8, 128, D.FP16, tensor_parallel=8).bytes_per_token == 327_680
    # Six heads over four ranks: two ranks' worth of padding, rounded up.
    assert G(1, 6, 64, D.FP16, tensor_parallel=4).bytes_per_token == 4 * 2 * 2 * 64 * 2


@pytest.mark.parametrize(
    ("tokens", "by_block"),
    [
        (1, {16: 2_097_152, 32: 4_194_304, 64: 8_388_608}),
        (33, {16: 6_291_456, 32: 8_388_608, 64: 8_388_608}),
        (1000, {16: 132_120_576, 32: 134_217_728, 64: 134_217_728}),
    ],
)
def test_rounding_to_whole_blocks(tokens: int, by_block: dict[int, int]) -> None:
    for block, expected in by_block.items():
        assert kv_bytes(KvProfile(131_072, block), tokens, 0) == expected
        assert kv_bytes(KvProfile(131_072, block), tokens - 1, 1) == expected


@pytest.mark.parametrize(
    ("prompt", "output", "sequences", "block", "blocks"),
    [
        (64, 64, 1, 64, 2),
        (64, 64, 4, 64, 1 + 4),  # the prompt's one block is shared
        (65, 1, 4, 64, 1 + 4),  # its partly filled second one is not
        (63, 1, 4, 64, 4),
        (63, 2, 4, 64, 8),
        (0, 10, 3, 1, 30),
        (10, 0, 3, 1, 10),
        (100, 16, 2, 1, 132),
        (0, 0, 5, 16, 0),
        (128, 0, 7, 64, 2),
    ],
)
def test_beams_share_whole_prompt_blocks_only(
    prompt: int, output: int, sequences: int, block: int, blocks: int
) -> None:
    assert kv_blocks(prompt, output, sequences, block) == blocks
