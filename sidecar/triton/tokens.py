"""Counts prompts by a model's own tokenizer (a Hugging Face ``tokenizer.json``), once it has shown that it can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

__all__ = ["COUNTED_BYTES", "Counter", "load_counter"]

Counter = Callable[[bytes], int | None]
"""Tokens of one prompt; None where it is too long to be counted at once, or is no UTF-8."""

COUNTED_BYTES: Final = 64 * 1024  # of one prompt: some 10 ms; a longer one is estimated
_FILE_BYTES: Final = 128 * 2**20
# What any tokenizer of a language model keeps apart: counted as less, prompts would pass for shorter than they are.
_PROBES: Final = (
    "The quick brown fox jumps over the lazy dog. " * 64,
    "0123456789 " * 200,
    "".join(chr(code) for code in range(0x4E00, 0x4E00 + 500)),
    '{\n  "a": [1, 2.5, null]\n}\n' * 40,
    "\U0001f680\U0001f9ea naïve façade Ω≈ç√∫ " * 40,
)
_WIDEST: Final = 16.0  # bytes a token, over a whole probe: what does better leaves something out


def load_counter(path: Path) -> Counter | str:
    """Read and try a tokenizer; a text says what is wrong with it. Needs the extra ``tokenizers``."""
    try:
        if path.stat().st_size > _FILE_BYTES:
            return f"is larger than {_FILE_BYTES} bytes"
        text = path.read_text("utf-8")
    except (OSError, UnicodeError) as fault:
        return f"cannot be read: {fault}"
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 — an extra
    except ImportError:
        return "needs the extra tokenizers: pip install 'triton-warden[tokenizers]'"
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as fault:  # noqa: BLE001 — the library raises bare Exceptions
        return f"is no tokenizer.json: {fault}"
    # Both would make every long prompt count the same.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return _lie(tokenizer) or _counter(tokenizer)


def _lie(tokenizer: Any) -> str | None:
    """What shows that its counts can't be believed."""
    for probe in _PROBES:
        try:
            found = tokenizer.encode(probe, add_special_tokens=False)
        except Exception as fault:  # noqa: BLE001
            return f"cannot encode {probe[:20]!a}: {fault}"
        if len(found.ids) * _WIDEST < len(probe.encode()):
            return f"counts {len(found.ids)} tokens for {len(probe.encode())} bytes beginning {probe[:20]!a}"
        if any(end > len(probe) for _, end in found.offsets):
            return f"names a place beyond the end of {probe[:20]!a}"
    twice = tokenizer.encode(_PROBES[0] + _PROBES[0], add_special_tokens=False)
    if len(twice.ids) < 1.5 * len(tokenizer.encode(_PROBES[0], add_special_tokens=False).ids):
        return "counts a text twice as long as hardly longer"
    return None


def _counter(tokenizer: Any) -> Counter:
    def count(prompt: bytes) -> int | None:
        if len(prompt) > COUNTED_BYTES:
            return None
        try:
            return len(tokenizer.encode(prompt.decode("utf-8")).ids)
        except UnicodeDecodeError:
            return None

    return count
