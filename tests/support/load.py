"""Mixed load by three tenants, each call remembered as its client saw it, and what the audit must say of each."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from sidecar.triton.protos import ModelStreamInferResponse
from tests.support.sidecar import INFER, STREAM, Bare, Sidecar, echo, final, said, slow

WORD_MS = 10
LAG_S, LAG_BYTES = 0.1, 16 * 1024  # what the journal may be behind (DESIGN rule 6)
LATE_S = 0.1  # and some for a busy machine, on which the sweep's thread may have to wait
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
    began: float = 0.0  # monotonic seconds, as all others
    ended: float = 0.0

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
    began = time.monotonic()
    call = bare.channel.unary_unary(INFER).future(message, metadata=tuple(headers.items()), timeout=60)
    error = call.exception()
    seen = Seen(kind, code=call.code().name, began=began, ended=time.monotonic())
    seen.call_id = dict(call.initial_metadata() or ()).get("x-warden-call-id", "")
    seen.refused = error is not None and "grpc-status-details-bin" in dict(call.trailing_metadata() or ())
    return seen


def _stream(bare: Bare, kind: str, message: bytes, headers: Mapping[str, str], leave_after: int | None = None) -> Seen:
    call = bare.channel.stream_stream(STREAM)(iter([message]), metadata=tuple(headers.items()), timeout=60)
    seen, count = Seen(kind, began=time.monotonic()), 0
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
    seen.code, seen.ended = call.code().name, time.monotonic()
    stream_id = dict(call.initial_metadata() or ()).get("x-warden-call-id", "")
    seen.call_id = f"{stream_id}/1" if stream_id else ""
    return seen


@dataclass
class Verdict:
    """What the records said of the calls of one run: outcomes, and how far the journal was behind in each crash."""

    outcomes: Counter[str] = field(default_factory=Counter)
    behind: list[float] = field(default_factory=list)  # seconds that a word had been read for which a crash lost


def judge(
    seen: list[Seen],
    records: list[dict[str, Any]],
    *,
    killed: Sequence[float] = (),
    upstream_failed: bool = False,
    progress: Callable[[str], None] = print,
) -> Verdict:
    """Fails where the records don't say what the clients saw.

    ``killed``: when the sidecar was (monotonic seconds). What a crash may lose is exactly what DESIGN rule 6 says: a
    word that a client had read 100 ms before the sidecar died was sent no later, so its record must have it. How many
    words that is depends on the model: kept waiting itself, it says many at once. ``upstream_failed``: Triton died or
    hung meanwhile, and calls may have failed of it.
    """
    by_id = {record["call_id"]: record for record in records}
    assert len(by_id) == len(records), "a call has more than one record"
    verdict = Verdict()
    for call in seen:
        record = by_id.get(call.call_id)
        if record is None:
            # Only a call whose client saw nothing of it may have none: the sidecar died before it had read it whole.
            assert not call.answered, call
            assert not call.text, call
            verdict.outcomes["(never arrived)"] += 1
            continue
        verdict.outcomes[record["outcome"]] += 1
        _agrees(call, record, upstream_failed=upstream_failed)
        if record["outcome"] == "aborted":
            verdict.behind += _behind(call, record["output"] or "", killed)
        else:
            assert (record["output"] or "").startswith(call.text), (call, record)
    progress(f"{len(seen)} calls: {dict(verdict.outcomes)}; behind by {max(verdict.behind, default=0.0):.3f} s at most")
    return verdict


def _agrees(call: Seen, record: dict[str, Any], *, upstream_failed: bool) -> None:
    outcome, output = record["outcome"], record["output"] or ""
    failed = ("failed",) if upstream_failed else ()
    told = call.answered and (call.refused or call.in_band != "")
    if told and (call.kind in ("refused", "refused in-band") or call.code == "RESOURCE_EXHAUSTED"):
        assert outcome == "refused", (call, record)
    elif call.kind == "unary" and call.code == "OK":
        assert outcome == "completed", (call, record)
    elif told:  # also whom its limit let through once a minute
        assert outcome in ("failed", "refused"), (call, record)  # Triton itself had gone, say
    elif call.kind in ("stream", "cancelled") and call.final:
        assert (outcome, output) == ("completed", call.text), (call, record)
    elif call.kind == "cancelled" and call.code == "CANCELLED":
        assert outcome in ("cancelled", "aborted", *failed), (call, record)
    elif not call.answered:
        # Cut off by the crash: its record may be whole, where only the last frame was lost.
        assert outcome in ("aborted", "completed", "refused", "cancelled", *failed), (call, record)


def _behind(call: Seen, output: str, killed: Sequence[float]) -> list[float]:
    """How long its client had read the first word that its record lost when the sidecar died; none: it lost none."""
    if output.startswith(call.text):
        return []
    assert call.text.startswith(output), (call, output)
    assert len(call.text) - len(output) <= LAG_BYTES, (call, output)
    died = min((at for at in killed if at >= call.began), default=call.ended)
    lost = max(0.0, died - call.times[len(output.split())])
    assert lost <= LAG_S + LATE_S, f"lost a word that had been read for {lost:.3f} s: {call}, recorded: {output}"
    return [lost]
