"""Mixed load by three tenants, each call remembered as its client saw it, and what the audit must say of each."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from sidecar.triton.protos import ModelStreamInferResponse
from tests.support.sidecar import INFER, STREAM, Bare, Sidecar, echo, final, said, slow

WORD_MS = 10
LAG_WORDS = 100 // WORD_MS + 3  # DESIGN rule 6: 100 ms; and some for how exactly `slow` keeps its pace
LAG_S = 0.15  # 100 ms, and some for how late a client's thread notices
KINDS = ("unary", "stream", "cancelled", "refused", "refused in-band", "throttled")


@dataclass
class Seen:
    """One call as its client saw it. ``call_id`` is empty where no header came."""

    kind: str
    call_id: str = ""
    code: str = ""
    text: str = ""
    final: bool = False
    in_band: str = ""  # an error message inside a stream
    seconds: float = 0.0
    refused: bool = False  # by a status with our details
    times: list[float] = field(default_factory=list)  # when each word came (monotonic seconds)

    @property
    def answered(self) -> bool:
        """By the sidecar: a status of a broken connection carries no details."""
        return bool(self.call_id) and (self.code == "OK" or self.final or self.in_band != "" or self.refused)


@dataclass
class Load:
    """Sends calls from ``threads`` clients until all are sent; who loses the connection waits for it."""

    sidecar: Sidecar
    total: int
    threads: int = 12
    seed: int = 1
    seen: list[Seen] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def done(self) -> int:
        return len(self.seen)

    def run(self) -> list[Seen]:
        random.seed(self.seed)
        kinds = [KINDS[n % len(KINDS)] for n in range(self.total)]
        random.shuffle(kinds)
        with ThreadPoolExecutor(self.threads) as pool:
            for worker in [pool.submit(self._work, kinds[n :: self.threads]) for n in range(self.threads)]:
                worker.result()
        return self.seen

    def _work(self, kinds: list[str]) -> None:
        with Bare(self.sidecar.grpc) as bare:
            for kind in kinds:
                began = time.monotonic()
                seen = self._one(bare, kind)
                seen.seconds = time.monotonic() - began
                with self._lock:
                    self.seen.append(seen)
                if not seen.answered and seen.code == "UNAVAILABLE":
                    grpc.channel_ready_future(bare.channel).result(60)  # the sidecar is back

    def _one(self, bare: Bare, kind: str) -> Seen:
        acme, birch = self.sidecar.headers("acme"), self.sidecar.headers("birch")
        match kind:
            case "unary":
                return _unary(bare, kind, echo(), acme)
            case "refused":
                return _unary(bare, kind, echo(), birch)  # a model that isn't birch's
            case "throttled":
                return _unary(bare, kind, echo(), self.sidecar.headers("one-a-minute"))
            case "refused in-band":
                return _stream(bare, kind, slow(1), birch)
            case "cancelled":
                return _stream(bare, kind, slow(500, WORD_MS), acme, leave_after=3)
            case _:
                return _stream(bare, kind, slow(30, WORD_MS), acme)


def _unary(bare: Bare, kind: str, message: bytes, headers: Mapping[str, str]) -> Seen:
    call = bare.channel.unary_unary(INFER).future(message, metadata=tuple(headers.items()), timeout=60)
    error = call.exception()
    seen = Seen(kind, code=call.code().name)
    seen.call_id = dict(call.initial_metadata() or ()).get("x-warden-call-id", "")
    seen.refused = error is not None and "grpc-status-details-bin" in dict(call.trailing_metadata() or ())
    return seen


def _stream(bare: Bare, kind: str, message: bytes, headers: Mapping[str, str], leave_after: int | None = None) -> Seen:
    call = bare.channel.stream_stream(STREAM)(iter([message]), metadata=tuple(headers.items()), timeout=60)
    seen, count = Seen(kind), 0
    try:
        for data in call:
            response = ModelStreamInferResponse.FromString(data)
            seen.in_band = seen.in_band or response.error_message
            seen.text += said(response)
            if said(response):
                seen.times.append(time.monotonic())
            seen.final = seen.final or final(response)
            count += 1
            if count == leave_after:
                call.cancel()
    except grpc.RpcError:
        pass
    seen.code = call.code().name
    stream_id = dict(call.initial_metadata() or ()).get("x-warden-call-id", "")
    seen.call_id = f"{stream_id}/1" if stream_id else ""
    return seen


def judge(seen: list[Seen], records: list[dict[str, Any]], progress: Callable[[str], None] = print) -> dict[str, int]:
    """Fails where the records don't say what the clients saw; counts of outcomes, and what was cut off, else."""
    by_id = {record["call_id"]: record for record in records}
    assert len(by_id) == len(records), "a call has more than one record"
    outcomes: Counter[str] = Counter()
    for call in seen:
        record = by_id.get(call.call_id)
        if record is None:
            # Only a call whose client saw nothing of it may have none: the sidecar died before it had read it whole.
            assert not call.answered, call
            assert not call.text, call
            outcomes["(never arrived)"] += 1
            continue
        outcomes[record["outcome"]] += 1
        _agrees(call, record)
    progress(f"{len(seen)} calls: {dict(outcomes)}")
    return dict(outcomes)


def _agrees(call: Seen, record: dict[str, Any]) -> None:
    output = record["output"] or ""
    if call.kind in ("refused", "refused in-band", "throttled") and call.answered and (call.refused or call.in_band):
        assert record["outcome"] == "refused", (call, record)
    elif call.kind == "unary" and call.code == "OK":
        assert record["outcome"] == "completed", (call, record)
    elif call.kind in ("stream", "cancelled") and call.in_band:
        assert record["outcome"] in ("failed", "refused"), (call, record)  # Triton itself had gone, say
    elif call.kind in ("stream", "cancelled") and call.final:
        assert (record["outcome"], output) == ("completed", call.text), (call, record)
    elif call.kind == "cancelled" and call.code == "CANCELLED":
        assert record["outcome"] in ("cancelled", "aborted"), (call, record)
        assert call.text.startswith(output) or output.startswith(call.text), (call, record)
    elif not call.answered:
        # Cut off by the crash: its record may be whole, where only the last frame was lost.
        assert record["outcome"] in ("aborted", "completed", "refused", "cancelled"), (call, record)
    if call.text:
        read, kept = len(call.text.split()), len(output.split())
        # A model that was kept waiting says several words at once: so many may be behind, if they came together.
        behind = call.times[-1] - call.times[kept] if kept < len(call.times) else 0.0
        words = f"{read - kept} words of {read} delivered are not in the record, over {behind:.3f} s: {call}"
        assert kept >= read - LAG_WORDS or behind <= LAG_S, words
        assert output.startswith(call.text) or call.text.startswith(output)
