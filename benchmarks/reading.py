"""Reading one request, by contract and size: time, and the memory it takes beside the message (none of a payload)."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from itertools import product
from typing import Any, Final

from policies.document import GuardDoc
from policies.guards import Guards, compile_guards
from policies.watching import Hold
from sidecar.core.model import NO_FACTS, Contract, InferenceFacts, ModelProfile, Secret
from sidecar.triton import methods
from sidecar.triton.chat import plan
from sidecar.triton.isolation import Isolation
from sidecar.triton.knowledge import ModelBook
from sidecar.triton.reader import TritonReader, named
from sidecar.triton.request import read_form
from sidecar.triton.sequences import SequenceTable
from tests.support.kserve import packed, request

ROUNDS: Final = 5  # the best counts: the others met somebody else's load
PROMPT: Final = b"All work and no play makes a dull benchmark. " * 23
# For guards: some digits, colons and letters beyond ASCII in prose; nothing but numbers; and such as have the shapes of
# cards' and national ones. None of them is anybody's.
PROSE: Final = "All work and no play makes a dull benchmark: 12 of 34, at 10:30 in Zürich, since 2024. ".encode() * 12
NUMBERS: Final = b"row 17; 2024-11-30; 1,234.56; 88 99; 20 of 44\n" * 24
LOOKALIKES: Final = b"4111 1111 1111 1112 300 000 001 1.2.3 99999999 2001-02-0003 AB12 555 0199\n" * 15
_CLASSES: Final = ("email", "phone", "iban", "card", "national_id", "ip")
_KEY: Final = Secret(b"k" * 32)
_REMEMBERED: Final = (read_form, plan, named)  # headers that were read already
_UNARY: Final = methods.lookup(methods.KSERVE + "ModelInfer")


def measure(*, quick: bool) -> dict[str, Any]:
    """``requests``: by what is read, µs (of a header seen before, and afresh) and extra peak bytes.

    ``guards``: µs a KB of text, by what is looked for.
    """
    scale = 5 if quick else 1
    return {"requests": _requests(scale), "guards": _guards(scale)}


def _least(step: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        for _ in range(times):
            step()
        best = min(best, (time.process_time_ns() - began) / times / 1000)
    return round(best, 2)


# --- requests -----------------------------------------------------------------------------------------------------


def extra_bytes(step: Callable[[], object]) -> int:
    """The most that ``step`` held at once of what Python allocates, beyond what there was before."""
    step()  # what is made once and kept is not the call's
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        step()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def requests() -> dict[str, tuple[Contract, bytes]]:
    """What is read, by name: a prompt as each contract has it, an image, and a large tensor."""
    sampling = json.dumps({"max_tokens": 256, "temperature": 0.2}).encode()
    text = ("text_input", "BYTES", [1, 1], packed(PROMPT))
    most = ("max_tokens", "INT32", [1, 1], struct.pack("<i", 256))
    made = {
        "vllm, prompt of 1 KB": (Contract.VLLM, request(
            "m", ("text_input", "BYTES", [1], packed(PROMPT)), ("sampling_parameters", "BYTES", [1], packed(sampling)),
        )),
        "trtllm, prompt of 1 KB": (Contract.TRTLLM, request("m", text, most)),
        "generic, text of 1 KB": (Contract.GENERIC, request("m", text)),
        "generic, image of 1 MB in BYTES": (
            Contract.GENERIC, request("m", ("image", "BYTES", [1], packed(bytes(2**20)))),
        ),
        "generic, image of 1 MB in UINT8": (
            Contract.GENERIC, request("m", ("image", "UINT8", [1024, 1024], bytes(2**20))),
        ),
        "generic, tensor of 64 MB": (Contract.GENERIC, request("m", ("x", "FP32", [2**24], bytes(2**26)))),
    }  # fmt: skip
    return {name: (contract, bytes(message.SerializeToString())) for name, (contract, message) in made.items()}


def reading(contract: Contract, message: bytes) -> Callable[[], InferenceFacts]:
    """All that is read of ``message`` before anything is decided by it: its model, then its facts."""
    reader = TritonReader(Isolation(ModelBook(), _KEY, SequenceTable(_KEY)))
    profile = ModelProfile("m", contract, stated=True)

    def read() -> InferenceFacts:
        return reader.facts(_UNARY, message, profile, reader.head(_UNARY, message))

    return read


def _requests(scale: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, (contract, message) in requests().items():
        read = reading(contract, message)

        def afresh(read: Callable[[], object] = read) -> None:
            for remembered in _REMEMBERED:
                remembered.cache_clear()
            read()

        found[name] = {
            "message_bytes": len(message),
            "us": _least(read, 5_000 // scale),
            "afresh_us": _least(afresh, 5_000 // scale),
            "extra_bytes": max(extra_bytes(read), extra_bytes(afresh)),
        }
    return found


# --- guards -------------------------------------------------------------------------------------------------------


# How an output is told, and what its guards do about it.
PIECES: Final = (4, 16, 256)  # bytes
HELD: Final = Hold(512, 10**9)


def _guards(scale: int) -> dict[str, dict[str, float]]:
    looked = {kind: {"classes": (kind,)} for kind in _CLASSES}
    looked |= {"all classes": {"classes": _CLASSES}, "a pattern": {"patterns": ("(?i)project x",)}}
    looked["64 patterns"] = {"patterns": tuple(f"(?i)project {n}" for n in range(64))}
    found = {name: _guard(scale, PROSE, **what) for name, what in looked.items()}
    found["all classes, among numbers"] = _guard(scale, NUMBERS, classes=_CLASSES)
    return {**found, "all classes, among lookalikes": _guard(scale, LOOKALIKES, classes=_CLASSES)}


def _guard(scale: int, text: bytes, **what: Any) -> dict[str, float]:
    """µs for each KB of text in which nothing is found: a prompt, an output in pieces of so many bytes.

    ``tells``: flagged only; ``holds``: denied, from what is held back; ``denies``: each piece before it is sent.
    """
    kilobytes = len(text) / 1024
    facts = InferenceFacts(prompts=(text,))
    prompt = _compiled("prompt", what)
    assert not prompt.prompt(facts)
    found = {"prompt": _least(lambda: prompt.prompt(facts), 500 // scale) / kilobytes}
    ways = {
        "tells": _compiled("output", {**what, "then": "flag"}),
        "holds": _compiled("output", what, HELD),
        "denies": _compiled("output", what),
    }
    for (way, guards), size in product(ways.items(), PIECES):
        found[f"{way}_{size}"] = _least(_watching(guards, text, size), 20 // min(scale, 2)) / kilobytes
    return {name: round(value, 2) for name, value in found.items()}


def _watching(guards: Guards, text: bytes, size: int) -> Callable[[], None]:
    pieces = [(text[at : at + size],) for at in range(0, len(text), size)]

    def watch() -> None:
        watched = guards.watch(NO_FACTS)
        assert watched is not None
        for piece in pieces:
            assert not watched.feed(piece)
        assert not watched.finish()

    return watch


def _compiled(on: str, what: dict[str, Any], hold: Hold | None = None) -> Guards:
    compiled = compile_guards([GuardDoc.model_validate({"id": "bench", "on": on, "then": "deny", **what})], hold)
    assert compiled is not None
    return compiled
