"""How large a model's KV cache is by what its engine says; or why that isn't believed."""

from __future__ import annotations

from typing import Final

from sidecar.core.model import KvProfile, LivePool
from sidecar.triton.gauges import EngineGauges

__all__ = ["judge"]

_PAGE_MAX: Final = 65_536  # tokens of one block: real ones have up to 128
_SLACK: Final = 100  # a hundredth: used and free blocks may have been counted a moment apart


def judge(told: EngineGauges | None, kv: KvProfile, stated: int, gpu_total: int | None) -> LivePool | str:
    """``stated``: bytes, by the bundle. Of an engine that tells only which part is in use, that size is believed."""
    if told is None:
        return "its engine is not in Triton's metrics"
    blocks, size = told.max_blocks, told.tokens_per_block
    if blocks is None or size is None:
        if told.usage is None:
            return "its engine tells no block count and no usage"
        return LivePool(stated, round(told.usage * stated))
    used = round(told.usage * blocks) if told.used_blocks is None and told.usage is not None else told.used_blocks
    fault = _size_fault(blocks, size, size * kv.bytes_per_token, gpu_total) or _use_fault(
        blocks, used, told.free_blocks
    )
    if used is None or fault:
        return fault
    return LivePool(blocks * size * kv.bytes_per_token, used * size * kv.bytes_per_token)


def _size_fault(blocks: int, size: int, block: int, gpu_total: int | None) -> str:
    """``block``: its bytes."""
    if not blocks or not 0 < size <= _PAGE_MAX:
        return f"{blocks} blocks of {size} tokens are no KV cache"
    if gpu_total is not None and blocks * block > gpu_total:
        return f"{blocks} blocks take {blocks * block} bytes, and all GPUs have {gpu_total}"
    return ""


def _use_fault(blocks: int, used: int | None, free: int | None) -> str:
    if used is None or used > blocks:
        return f"{used} blocks in use, of {blocks}"
    if free is not None and abs(used + free - blocks) * _SLACK > blocks + _SLACK:
        return f"{used} blocks in use and {free} free are not {blocks}"
    return ""
