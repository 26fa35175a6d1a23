"""What was to be redacted is in no column and no opened content, however the call ended."""

from __future__ import annotations

from pathlib import Path

import msgspec
import sqlalchemy as sa

from audit import store
from audit.opening import Opener
from audit.record import Admitted, Content, Output, Refused
from audit.vault import open_column
from sidecar.core.model import Redaction
from tests.support.store import FakeJournal, Shipping, facts, keys_in, settled, wait_until

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
    sanitised = asked(key_id="\x00")  # whose original values are kept beside it
    journal.append(Admitted(sanitised), settled(sanitised, told))
    with Shipping(journal, dsn, tmp_path, ended=spans.append) as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows >= 6)
    assert shipping.fault is None
    engine, opener = store.connect(dsn, application="test"), Opener(keys_in(tmp_path))
    with store.transaction(engine) as connection:
        rows = [dict(row) for row in connection.execute(sa.text("SELECT * FROM warden.audit_calls")).mappings()]
        opener.load(connection, [row["data_key"] for row in rows])
    engine.dispose()
    assert len(rows) == 6
    assert sum(row["evidence_sealed"] is not None for row in rows) == 1
    stops = set()
    for row in rows:
        key, opened = opener.record_key(row), opener.open(row, content=True)
        assert key is not None
        assert opened.identity is not None
        texts = [b"".join(parts) for parts in (opened.prompt, opened.output) if parts is not None]
        kept = b"" if row["evidence_sealed"] is None else open_column(key, "evidence", row["evidence_sealed"])
        stored = str(row).encode() + b"".join(texts) + kept + msgspec.json.encode(opened.identity)
        assert [text for text in PLANTED if text.encode() in stored] == []
        assert texts, "the rest of the text is kept"
        assert all(b"account [iban], card" in text for text in texts)
        stops.add(opened.identity.parameters["stop"])
        counts = row["redacted"]
        assert set(counts) == {"email", "iban", "card", "national_id", "badge"}
        assert counts["iban"] >= 1
    assert len(stops) == 1, "the same identifier of the same tenant can be told again"
