"""audit.redacting: the whole record, every text of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from audit.assemble import CallRecord
from audit.record import Content, Refused, Settled
from audit.redacting import WITHHELD, redacted
from sidecar.core.model import Redaction
from tests.support.store import PLACE, facts, settled

ROOT = b"r" * 32
MAIL, EMAIL = "alice@example.com", (Redaction("email"),)


def record(
    *, prompt: Sequence[bytes] = (), output: Sequence[bytes] = (), rules: tuple[Redaction, ...] = EMAIL, **more: object
) -> CallRecord:
    parts = list(prompt)
    content = Content(sum(map(len, parts)), hashlib.sha256(b"".join(parts)).digest(), parts)
    call = msgspec.structs.replace(facts(), prompt=content, redact=rules, **more)
    whole = b"".join(output)
    return CallRecord(PLACE, 0, 1, call, settled(call, whole), list(output))


def test_a_record_without_rules_is_untouched() -> None:
    given = record(prompt=[MAIL.encode()], rules=())
    assert redacted(given, ROOT) == (given, {})


def test_an_identifier_split_over_a_streams_chunks_is_found() -> None:
    kept, counts = redacted(record(output=[b"write to ali", b"ce@exam", b"ple.com", b" today"]), ROOT)
    assert b"".join(kept.output) == b"write to [email] today"
    assert counts == {"email": 1}
    assert isinstance(kept.end, Settled)
    assert kept.end.output_sha256 == hashlib.sha256(b"write to [email] today").digest()
    assert kept.end.output_bytes == len("write to alice@example.com today"), "the length is of what was sent"


def test_each_prompt_is_redacted_by_itself_and_the_digest_is_of_what_is_stored() -> None:
    kept, counts = redacted(record(prompt=[MAIL.encode(), b"none", b"\xff " + MAIL.encode()]), ROOT)
    assert kept.facts.prompt.parts == [b"[email]", b"none", b"\xff [email]"]
    assert kept.facts.prompt.sha256 == hashlib.sha256(b"[email]none\xff [email]").digest()
    assert counts == {"email": 2}


def test_a_text_that_was_cut_has_no_digest_left_to_guess_by() -> None:
    given = record(prompt=[f"{MAIL} and bob@exa".encode()])
    prompt = msgspec.structs.replace(given.facts.prompt, nbytes=1000)
    cut = CallRecord(PLACE, 0, 1, msgspec.structs.replace(given.facts, prompt=prompt), given.end, [])
    kept, _ = redacted(cut, ROOT)
    assert kept.facts.prompt == Content(1000, b"", [b"[email] and [cut]"])


def test_parameters_request_ids_and_error_texts_are_texts_too() -> None:
    given = record(request_id=MAIL, parameters={"stop": MAIL, "seed": 7, MAIL: True})
    end = msgspec.structs.replace(given.end, internal=f"cannot read {MAIL}")
    kept, counts = redacted(CallRecord(PLACE, 0, 1, given.facts, end, []), ROOT)
    assert kept.facts.request_id == "[email]"
    assert kept.facts.parameters == {"stop": "[email]", "seed": 7, "[email]": True}
    assert kept.end.internal == "cannot read [email]"
    assert counts == {"email": 4}


def test_a_refusals_texts_are_redacted() -> None:
    call = record().facts
    kept, _ = redacted(CallRecord(PLACE, 0, 0, call, Refused(call, "X", 3, f"input {MAIL}", MAIL), []), ROOT)
    assert isinstance(kept.end, Refused)
    assert (kept.end.detail, kept.end.internal) == ("input [email]", "[email]")


def test_a_refusal_holds_no_second_copy_of_what_was_taken_out() -> None:
    call = record(prompt=[MAIL.encode()]).facts
    kept, _ = redacted(CallRecord(PLACE, 0, 0, call, Refused(call, "X", 3), []), ROOT)
    assert MAIL.encode() not in msgspec.msgpack.encode([kept.facts, kept.end])


def test_rules_that_are_not_known_here_withhold_all_content() -> None:
    given = record(prompt=[b"secret"], output=[b"words"], rules=(Redaction("retina"),), parameters={"stop": "secret"})
    kept, counts = redacted(given, ROOT)
    assert kept.facts.prompt.parts == kept.output == [WITHHELD]
    assert kept.facts.parameters == {}
    assert kept.facts.prompt.sha256 == b""
    assert counts == {"withheld": 1}
    assert b"secret" not in msgspec.msgpack.encode([kept.facts, kept.end, kept.output])


def test_hashes_differ_between_tenants() -> None:
    rules = (Redaction("email", "hash"),)
    one, _ = redacted(record(prompt=[MAIL.encode()], rules=rules, tenant="acme"), ROOT)
    two, _ = redacted(record(prompt=[MAIL.encode()], rules=rules, tenant="birch"), ROOT)
    assert one.facts.prompt.parts != two.facts.prompt.parts
