"""What a journal entry holds of a call: its facts, and as much of its content as is kept, within bounds."""

from __future__ import annotations

import hashlib
import itertools
import re
from typing import Any, Final, assert_never

import msgspec

from audit import record
from audit.assemble import CutOff
from audit.record import CallFacts, Content, Digested, Entry, Event, Settled, Tensor
from audit.recovery import OpenCall
from sidecar.core.model import (
    AuditLevel,
    AuditRule,
    Call,
    Demand,
    Denial,
    Finding,
    InferenceFacts,
    Instant,
    OutcomeKind,
    Principal,
    Verdict,
)
from sidecar.core.reasons import Code
from sidecar.core.routing import NO_ROUTE

__all__ = [
    "ABORTED_WORDS",
    "DIMENSIONS",
    "FACTS_BYTES",
    "NOBODY",
    "NOTHING",
    "PARAMETERS",
    "QUOTED_BYTES",
    "TENSORS",
    "TEXT_CHARS",
    "aborted",
    "bounded",
    "call_facts",
    "content_bytes_of",
    "content_of",
    "cut",
]

# What a call may put into an entry beside its content. Only an entry over FACTS_BYTES is cut, to the bounds below it:
# so the ordinary one isn't looked at field by field.
FACTS_BYTES: Final = 16 * 1024
TEXT_CHARS: Final = 1024
PARAMETERS: Final = 256
TENSORS: Final = 256
DIMENSIONS: Final = 64
QUOTED_BYTES: Final = 64 * 1024  # of an error text: it must fit into what is kept free for outcomes
PARTS: Final = 1024  # of one content; each costs up to 5 bytes more than its text, also where that is empty
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

NOTHING: Final = Content()
NOBODY: Final = Principal(tenant="", name="", kind="observed")  # whose call it is where nobody knows
_NO_DEMAND: Final = Demand()
ABORTED_WORDS: Final = (
    "the sidecar ended before this call did; what was sent after its last journaled output is unknown"
)
END_LOST_WORDS: Final = "it had ended; how, and what was sent after its last output here, was lost with damaged entries"


def cut_off(call: CutOff, at: Instant, words: str = ABORTED_WORDS) -> Settled:
    """As ``aborted``, of a call that a shipper found without an end."""
    facts = call.facts
    left = OpenCall(
        facts.call_id, call.first, facts.started_ns, facts.decided_ns, facts.level, facts.model, facts.prompt_tokens,
        call.output_bytes, call.output_sha256, facts.store,
    )  # fmt: skip
    return aborted(left, at, 0, words)


def aborted(call: OpenCall, at: Instant, until_ns: int, words: str = ABORTED_WORDS) -> Settled:
    """The outcome of a call that a crash cut off; Triton may be working on it until ``until_ns`` (wall clock)."""
    full = call.level == AuditLevel.FULL
    return Settled(
        call_id=call.call_id,
        at_ns=at.wall_ns,
        outcome=OutcomeKind.ABORTED.value,
        status=int(Code.UNAVAILABLE),
        reason="",
        internal=words,
        offset=call.output_bytes,
        texts=[],
        output_bytes=call.output_bytes,
        output_sha256=call.output_sha256 if full else b"",
        input_tokens=call.prompt_tokens,
        output_tokens=0,
        input_exact=False,
        output_exact=False,
        responses=0,
        response_bytes=0,
        first_response_ns=None,
        duration_ns=max(call.last_ns - call.started_ns, 0),
        holds_until_ns=until_ns,
        store=call.store,
    )


def call_facts(
    call: Call,
    principal: Principal,
    facts: InferenceFacts,
    audit: AuditRule,
    at: Instant,
    *,
    model: str,
    version: str,
    data_class: str,
    rule: str,
    bundle: str,
    prompt: Content,
    would_refuse: Denial | None,
    findings: tuple[Finding, ...],
    may_trace: bool,
    verdict: Verdict | None,
    store: str,
    resident: bool = True,
    demand: Demand = _NO_DEMAND,
    keeps: int = 0,
    request: bytes | None = None,
    digests: list[Digested] | None = None,
) -> CallFacts:
    """``resident`` False: this is no place for the call's data, so it names nobody but the credential's holder."""
    trace = call.trace
    alias, picked = ("", NO_ROUTE) if verdict is None else (verdict.alias, verdict.route)
    return CallFacts(
        call.id,
        call.arrived.wall_ns,
        at.wall_ns,
        call.method.path,
        principal.tenant,
        principal.name,
        principal.kind if principal is not NOBODY else "",
        principal.issuer,
        principal.key_id,
        principal.subject or call.subject if resident else "",
        principal.conversation or call.conversation if resident else "",
        model,
        version,
        facts.request_id,
        data_class,
        rule,
        bundle,
        audit.level.value,
        audit.retention_days,
        call.peer,
        trace.trace_id if trace is not None else "",
        trace.span_id if trace is not None else "",
        (trace.parent_id or "") if trace is not None else "",
        trace.sampled if trace is not None else False,
        {**facts.parameters},
        [Tensor(t.name, t.datatype, list(t.shape), t.nbytes) for t in facts.inputs],
        len(call.message),
        facts.prompt_tokens,
        facts.requested_tokens,
        prompt,
        would_refuse.reason.value if would_refuse is not None else "",
        may_trace,
        alias,
        picked.version,
        picked.kind.value if picked.kind is not None else "",
        picked.why,
        audit.redact,
        [*principal.roles] if len(principal.roles) == 1 else sorted(principal.roles),
        None if principal.models is None else list(principal.models),
        _classes(call, principal),
        would_refuse.rule if would_refuse is not None else "",
        findings,
        audit.searchable,
        (demand.tokens, demand.kv_bytes, demand.tensor_bytes),
        store,
        principal.actor,
        keeps,
        request,
        digests or [],
    )


def _classes(call: Call, principal: Principal) -> list[str]:
    if not call.data_class and not principal.data_classes:
        return []
    return [*filter(None, map(str.strip, call.data_class.split(","))), *principal.data_classes]


def content_of(prompts: tuple[bytes, ...], kept: int | None) -> Content:
    """Length and digest of the whole; the first ``kept`` bytes of it."""
    if not prompts:
        return NOTHING
    if len(prompts) == 1:
        (prompt,) = prompts
        nbytes, digest = len(prompt), hashlib.sha256(prompt).digest()
    else:
        whole = hashlib.sha256()
        for prompt in prompts:
            whole.update(prompt)
        nbytes, digest = sum(map(len, prompts)), whole.digest()
    return Content(nbytes, digest, None if kept is None else cut(prompts, kept))


def cut(texts: tuple[bytes, ...], room: int) -> list[bytes]:
    """The first ``room`` bytes of ``texts``; what comes after ``PARTS`` parts is one."""
    if len(texts) > PARTS:
        texts = (*texts[: PARTS - 1], b"".join(texts[PARTS - 1 :]))
    if (len(texts[0]) if len(texts) == 1 else sum(map(len, texts))) <= room:
        return list(texts)
    kept: list[bytes] = []
    for text in texts:
        if room <= 0:
            break
        kept.append(text[:room])
        room -= len(text)
    return kept


def content_bytes_of(entry: Entry) -> int:
    """How much of an entry is prompt or output, which has its own bound."""
    match entry:
        case record.Admitted(call=facts) | record.Refused(call=facts):
            return sum(map(len, facts.prompt.parts or ())) + len(facts.request or b"")
        case record.Responded(message=message):
            return len(message or b"")
        case record.Output(texts=texts):
            return sum(map(len, texts))
        case Settled(texts=texts, quoted=quoted):
            return sum(map(len, texts)) + sum(map(len, quoted.parts or ()))
        case Event():
            return 0
        case _:
            assert_never(entry)


def bounded(value: Any) -> Any:  # noqa: PLR0911 — one for each kind of value
    """``value`` with all that is over the bounds cut, and what MessagePack can't carry replaced.

    That is lone surrogates and integers over 64 bits; both can only come from a message that tries.
    """
    match value:
        case str():
            return _SURROGATE.sub("\ufffd", value[:TEXT_CHARS])
        case int() if not isinstance(value, bool):
            return max(-(2**63), min(2**63 - 1, value))
        case list() if not value or not isinstance(value[0], bytes):  # the bytes are content
            most = TENSORS if value and isinstance(value[0], Tensor | Digested) else DIMENSIONS
            return [bounded(item) for item in value[:most]]
        case tuple():  # of ours, and as long as its kind: what was reserved, findings, classes to redact
            return tuple(map(bounded, value))
        case dict():
            return {bounded(name): bounded(item) for name, item in itertools.islice(value.items(), PARAMETERS)}
        case msgspec.Struct():
            return type(value)(*(bounded(getattr(value, name)) for name in value.__struct_fields__))
        case _:
            return value
