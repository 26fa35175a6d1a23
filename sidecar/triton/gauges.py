"""Reads what Triton's metrics say of engines: KV-cache blocks, requests at work, GPU memory (facts/triton.md §4).

Prometheus text of some hundred kilobytes in which a dozen lines matter. Whoever wrote it is not trusted to have counted
right: a series that stands there twice, or is no number, makes what it speaks of unknown, not zero.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["BYTES_MAX", "EngineGauges", "Gauges", "read_gauges"]

BYTES_MAX: Final = 8 * 2**20  # of one answer: Triton's own is some KB a model
_SERIES_MAX: Final = 4096  # that matter
_LINE_MAX: Final = 4096  # bytes of one line
_LABELS_MAX: Final = 64  # of one series

_BLOCKS: Final = "nv_trt_llm_kv_cache_block_metrics"
_REQUESTS: Final = "nv_trt_llm_request_metrics"
_PENDING: Final = "nv_inference_pending_request_count"
_GPU_TOTAL: Final = "nv_gpu_memory_total_bytes"
_GPU_USED: Final = "nv_gpu_memory_used_bytes"
_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the newer name first
_CACHE: Final = "vllm:cache_config_info"
_RUNNING: Final = "vllm:num_requests_running"
_WAITING: Final = "vllm:num_requests_waiting"
_WANTED: Final = frozenset({_BLOCKS, _REQUESTS, _PENDING, _GPU_TOTAL, _GPU_USED, *_USAGE, _CACHE, _RUNNING, _WAITING})
_NAME: Final = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|$)')
_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """What the metrics say of one model's engine; None: nothing, or nothing that can be believed.

    Blocks are of all its versions together. ``usage`` is the part (0 to 1) of the KV cache that is in use. ``active``:
    requests the engine is at work on or keeps waiting; ``pending``: those in Triton's own queue.
    """

    max_blocks: int | None = None
    used_blocks: int | None = None
    free_blocks: int | None = None
    tokens_per_block: int | None = None
    usage: float | None = None
    active: int | None = None
    pending: int | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing at all is under way there: only an engine that counts its requests can say so."""
        return self.active == 0 and self.pending in (0, None) and not self.used_blocks


@dataclass(frozen=True, slots=True)
class Gauges:
    """One reading. ``gpu_total``, ``gpu_used``: bytes over all GPUs; None: not told."""

    engines: Mapping[str, EngineGauges] = field(default_factory=dict)
    gpu_total: int | None = None
    gpu_used: int | None = None


@dataclass(frozen=True, slots=True)
class _Sample:
    labels: Mapping[str, str]
    value: float

    @property
    def model(self) -> str:
        """Triton's label, or vLLM's own where it is scraped without Triton around it."""
        return self.labels.get("model") or self.labels.get("model_name", "")


_Samples = Mapping[str, list[_Sample]]


def read_gauges(text: bytes) -> Gauges | str:
    """The reading; or, in words, why this is none."""
    if len(text) > BYTES_MAX:
        return f"more than {BYTES_MAX} bytes"
    samples = _samples(text)
    if isinstance(samples, str):
        return samples
    names = {sample.model for found in samples.values() for sample in found} - {""}
    engines = {name: _engine({family: _of(found, name) for family, found in samples.items()}) for name in sorted(names)}
    return Gauges(engines, _whole(samples[_GPU_TOTAL]), _whole(samples[_GPU_USED]))


# --- lines ---------------------------------------------------------------------------------------------------------


def _samples(text: bytes) -> dict[str, list[_Sample]] | str:
    found: dict[str, list[_Sample]] = {name: [] for name in _WANTED}
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for number, line in enumerate(text.split(b"\n"), 1):
        named = _NAME.match(line)
        if named is None or (name := named[0].decode()) not in _WANTED:
            continue
        if len(line) > _LINE_MAX:
            return f"line {number}: {name} in more than {_LINE_MAX} bytes"
        sample = _sample(line[named.end() :])
        if sample is None:
            return f"line {number}: {name} is no sample of Prometheus text"
        series = (name, frozenset(sample.labels.items()))
        if series in seen:
            return f"line {number}: {name} tells one thing twice"
        if len(seen) >= _SERIES_MAX:
            return f"more than {_SERIES_MAX} series that matter"
        seen.add(series)
        found[name].append(sample)
    return found


def _sample(rest: bytes) -> _Sample | None:
    """What follows a name: ``{label="value",…} number [timestamp]``."""
    try:
        text = rest.decode()
    except UnicodeDecodeError:
        return None
    labels: dict[str, str] = {}
    if text.startswith("{"):
        inside, closed = _inside(text)
        if closed < 0:
            return None
        at = 0
        while at < len(inside) and inside[at:].strip():
            match = _LABEL.match(inside, at)
            if match is None or match[1] in labels or len(labels) >= _LABELS_MAX:
                return None
            labels[match[1]] = re.sub(r"\\.", lambda each: _ESCAPES.get(each[0], each[0]), match[2])
            at = match.end()
        text = text[closed + 1 :]
    parts = text.split()
    if not 1 <= len(parts) <= 2:
        return None
    try:
        return _Sample(labels, float(parts[0]))
    except ValueError:
        return None


def _inside(text: str) -> tuple[str, int]:
    """What stands between the braces, and where they close: a label's value may hold a brace itself."""
    quoted = escaped = False
    for place, character in enumerate(text):
        if escaped:
            escaped = False
        elif quoted and character == "\\":
            escaped = True
        elif character == '"':
            quoted = not quoted
        elif character == "}" and not quoted:
            return text[1:place], place
    return "", -1


# --- what they say -------------------------------------------------------------------------------------------------


def _of(samples: list[_Sample], model: str) -> list[_Sample]:
    return [sample for sample in samples if sample.model == model]


def _engine(of: _Samples) -> EngineGauges:
    blocks = of[_BLOCKS]
    running, waiting = _whole(of[_RUNNING]), _whole(of[_WAITING])
    active = _whole(of[_REQUESTS], request_type="active")
    if running is not None:
        active = running + (waiting or 0)
    max_blocks = _whole(blocks, kv_cache_block_type="max")
    used = _whole(blocks, kv_cache_block_type="used")
    sizes = {_number(sample.value) for sample in blocks if sample.labels.get("kv_cache_block_type") == "tokens_per"}
    size = sizes.pop() if len(sizes) == 1 else None  # versions whose blocks differ can't be added up
    usage = next((sample.value for family in _USAGE for sample in of[family]), None)
    if of[_CACHE]:
        max_blocks, size = _configured(of[_CACHE])
    return EngineGauges(
        max_blocks=max_blocks,
        used_blocks=used,
        free_blocks=_whole(blocks, kv_cache_block_type="free"),
        tokens_per_block=size,
        usage=usage if usage is not None and 0 <= usage <= 1 else None,
        active=active,
        pending=_whole(of[_PENDING]),
    )


def _configured(infos: list[_Sample]) -> tuple[int | None, int | None]:
    """vLLM says in an info's labels how many blocks it made, and how large."""
    if len(infos) != 1:
        return None, None
    labels = infos[0].labels
    found = [labels.get(name, "") for name in ("num_gpu_blocks", "block_size")]
    blocks, size = (int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None for text in found)
    return blocks, size


def _whole(samples: list[_Sample], **labels: str) -> int | None:
    """The sum; None where there is none, or one of them counts nothing that could be counted."""
    chosen = [each for each in samples if all(each.labels.get(name) == value for name, value in labels.items())]
    return _total([sample.value for sample in chosen], _number)


def _total(values: list[float], read: Callable[[float], int | None]) -> int | None:
    total = 0
    for value in values:
        number = read(value)
        if number is None:
            return None
        total += number
    return total if values else None


def _number(value: float) -> int | None:
    return int(value) if math.isfinite(value) and 0 <= value < 2**53 and value == int(value) else None
