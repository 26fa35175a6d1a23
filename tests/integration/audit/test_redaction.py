"""What was to be redacted is in no column and no opened content, however the call ended."""

from __future__ import annotations

import json
from datetime import UTC
from pathlib import Path

import msgspec

from audit.content import ContentSealer
from audit.record import Admitted, Content, Output, Refused
from sidecar.core.model import Redaction
from tests.support.postgres import query
from tests.support.store import ROOT, FakeJournal, Shipping, facts, settled, wait_until

MAIL, IBAN, CARD, SSN = "alice@example.com", "DE89 3704 0044 0532 0130 00", "4111 1111 1111 1111", "536-90-4399"
RULES = (
    Redaction("email", "hash"),
    Redaction("iban"),
    Redaction("card", "drop"),
    Redaction("national_id"),
    Redaction("badge", "replace", r"E-\d{6}"),
)
WORDS = f"I am {MAIL}, badge E-123456, account {IBAN}, card {CARD}, number {SSN}."
PLANTED = (MAIL, "E-123456", IBAN, IBAN.replace(" ", ""), CARD, CARD.replace(" ", ""), SSN, "alice", "3704 0044")


def asked(**more: object) -> object:
    prompt = Content(len(WORDS), b"d" * 32, [WORDS.encode()])
    given = {"prompt": prompt, "redact": RULES, "parameters": {"stop": MAIL}, "request_id": CARD, **more}
    return msgspec.structs.replace(facts(), **given)


def test_no_identifier_reaches_the_database_on_any_path(dsn: str, tmp_path: Path) -> None:
    journal, spans = FakeJournal(), []
    told = WORDS.encode()
    for outcome in ("completed", "failed", "cancelled", "aborted"):
        call = asked(sampled=True)
        journal.append(Admitted(call), Output(call.call_id, call.started_ns, 0, [told[:9]]))
        end = settled(call, told[9:], before=told[:9], outcome=outcome)
        journal.append(msgspec.structs.replace(end, internal=f"Triton said {MAIL}", texts=[told[9:40], told[40:]]))
    refused = asked()
    journal.append(Refused(refused, "POLICY_FORBIDS", 7, f"no {MAIL}", f"because {IBAN}"))
    sanitised = asked(peer="\x00")  # whose original values are kept beside it
    journal.append(Admitted(sanitised), settled(sanitised, told))
    with Shipping(journal, dsn, tmp_path, ended=spans.append) as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows >= 6)
    assert shipping.fault is None
    rows = query(
        dsn, "SELECT to_jsonb(c), started_at, prompt_sealed, output_sealed, evidence FROM warden.audit_calls c"
    )
    assert len(rows) == 6
    for columns, started, prompt, output, evidence in rows:
        place = {"tenant": "acme", "day": started.astimezone(UTC).date(), "call_id": columns["call_id"]}
        opened = [
            b"".join(ContentSealer(ROOT).open(sealed, column=column, **place))
            for column, sealed in (("prompt", prompt), ("output", output))
            if sealed is not None
        ]
        stored = json.dumps(columns).encode() + b"".join(opened) + bytes(evidence or b"")
        assert [text for text in PLANTED if text.encode() in stored] == []
        assert opened, "the rest of the text is kept"
        assert all(b"account [iban], card" in text for text in opened)
        counts = columns["redacted"]
        assert set(counts) == {"email", "iban", "card", "national_id", "badge"}
        assert counts["iban"] >= 1
    hashes = {columns["parameters"]["stop"] for columns, *_ in rows}
    assert len(hashes) == 1, "the same identifier of the same tenant can be told again"
