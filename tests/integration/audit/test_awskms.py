"""audit.awskms and audit.filekeys before a KMS that encrypts: what lies in the directory opens nothing without it, and
a KMS that is slow, strict, gone or lying costs no record.
"""

from __future__ import annotations

import base64
import json
import secrets
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from audit.awskms import AwsKey, AwsKms
from audit.filekeys import COVER_SECONDS, FileKeys
from audit.keys import KeyFaultError, KeyGoneError
from sidecar.cli.evidence import app
from tests.integration.audit import test_erasing as erasing
from tests.integration.audit.test_erasing import COPIES, EVERYBODY, NO_ALICE, Desk
from tests.integration.audit.test_search import write_config
from tests.support import store as support
from tests.support.kms import REGION, Kms, refusal
from tests.support.postgres import Server
from tests.support.store import Shipping, completed, wait_until


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audit.awskms.TRIES", 1)  # what is tried again by botocore waits a second or two


@pytest.fixture
def desk(kms: Kms, dsn: str, tmp_path: Path) -> Any:
    """As in test_erasing, its keys wrapped by the KMS; each provider is as another process."""
    key = kms.key()
    support.PROVIDERS[tmp_path] = lambda: FileKeys(tmp_path / "tenant-keys", secrets.token_bytes, AwsKms(key))
    desk = Desk(dsn, tmp_path)
    for name, subject, tenant in erasing.CALLS:
        desk.journal.append(*completed(call_id=name, subject=subject, tenant=tenant))
    desk.ship(5)
    yield desk
    del support.PROVIDERS[tmp_path]


def test_what_lies_in_the_directory_is_wrapped_and_bound_to_its_place(kms: Kms, tmp_path: Path) -> None:
    cover = kms.cover()
    keys = FileKeys(tmp_path, secrets.token_bytes, cover)
    wrapped = keys.wrap("acme", keys.current("acme"), b"k" * 32, b"here")
    assert keys.unwrap("acme", 1, wrapped, b"here") == b"k" * 32
    assert FileKeys(tmp_path, secrets.token_bytes, cover).unwrap("acme", 1, wrapped, b"here") == b"k" * 32
    data = (tmp_path / "t-acme/1.key").read_bytes()
    plain = keys._known["acme", 1][0]
    assert plain not in data
    for other in ("birch/1.key", "acme/2.key"):  # a key that is moved to another tenant's or version's place
        place = tmp_path / f"t-{other}"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(data)
        tenant, version = other[: other.index("/")], int(other[-5])
        with pytest.raises(KeyFaultError, match=rf"t-{other}.*InvalidCiphertext"):
            keys.mac(tenant, version, b"x")
    with pytest.raises(KeyFaultError, match=r"1\.key: wrapped under arn:.*no such key is configured"):
        FileKeys(tmp_path, secrets.token_bytes).wrap("acme", 1, b"k", b"")
    elsewhere = FileKeys(tmp_path, secrets.token_bytes, AwsKms(kms.key("us-east-1")))
    with pytest.raises(KeyFaultError, match="no key of us-east-1"):
        elsewhere.wrap("acme", 1, b"k", b"")


def test_the_kms_is_asked_once_a_quarter_of_an_hour_and_a_destroyed_key_ends_at_once(kms: Kms, tmp_path: Path) -> None:
    """Invariant: what was destroyed, or may not be used any more, is in nobody's memory for longer than that."""
    at, cover = 0.0, kms.cover()
    keys = FileKeys(tmp_path, secrets.token_bytes, cover, lambda: at)
    wrapped = keys.wrap("acme", keys.current("acme"), b"k" * 32, b"")
    asked = len(kms.asked)
    for _ in range(3):
        assert keys.unwrap("acme", 1, wrapped, b"") == b"k" * 32
    assert len(kms.asked) == asked
    kms.script = lambda act, what: refusal("DisabledException", f"{what['KeyId']} is disabled.")
    assert keys.unwrap("acme", 1, wrapped, b"") == b"k" * 32
    at = COVER_SECONDS
    with pytest.raises(KeyFaultError, match=r"DisabledException .* is disabled"):
        keys.unwrap("acme", 1, wrapped, b"")
    kms.script = None
    assert keys.unwrap("acme", 1, wrapped, b"") == b"k" * 32
    FileKeys(tmp_path, secrets.token_bytes, cover).destroy("acme", 1, {})
    with pytest.raises(KeyGoneError):
        keys.unwrap("acme", 1, wrapped, b"")


def _other_plaintext(act: str, what: dict[str, Any]) -> Any:
    if act != "Decrypt":
        return None
    return 200, {"KeyId": what["KeyId"], "Plaintext": base64.b64encode(b"z" * 32).decode()}


TROUBLES: list[tuple[str, Callable[[str, dict[str, Any]], Any], str]] = [
    ("throttled", lambda *_: refusal("ThrottlingException", "Rate exceeded"), "ThrottlingException Rate exceeded"),
    (
        "denied",
        lambda *_: refusal("AccessDeniedException", "User: x is not authorized"),
        "AccessDenied.*not authorized",
    ),
    ("pending deletion", lambda *_: refusal("KMSInvalidStateException", "pending deletion"), "pending deletion"),
    ("deleted", lambda *_: refusal("NotFoundException", "Key does not exist"), "NotFoundException"),
    ("broken", lambda *_: refusal("KMSInternalException", "", 500), "KMSInternalException"),
    ("no KMS", lambda *_: (200, {"hello": 1}), "answered under another key"),
    ("another key", lambda *_: (200, {"KeyId": "arn:other", "CiphertextBlob": "AA=="}), "answered under another key"),
    ("no ciphertext", lambda _, what: (200, {"KeyId": what["KeyId"]}), "has no CiphertextBlob"),
    ("another plaintext", _other_plaintext, "gives back another key"),
]


@pytest.mark.parametrize(("name", "script", "words"), TROUBLES, ids=[name for name, _, _ in TROUBLES])
def test_no_key_is_made_that_the_kms_would_not_give_back(
    kms: Kms, tmp_path: Path, name: str, script: Callable[[str, dict[str, Any]], Any], words: str
) -> None:
    keys = FileKeys(tmp_path, secrets.token_bytes, kms.cover())
    kms.script = script
    for _ in range(2):
        with pytest.raises(KeyFaultError, match=words):
            keys.current("acme")
    assert list(tmp_path.glob("*/*")) == []
    kms.script = None
    assert keys.wrap("acme", keys.current("acme"), b"k", b"")


def test_a_kms_that_gives_back_another_key_later_opens_and_seals_nothing(kms: Kms, tmp_path: Path) -> None:
    cover = kms.cover()
    FileKeys(tmp_path, secrets.token_bytes, cover).current("acme")
    kms.script = _other_plaintext
    with pytest.raises(KeyFaultError, match=r"1\.key: arn:.* gives back another key"):
        FileKeys(tmp_path, secrets.token_bytes, cover).wrap("acme", 1, b"k", b"")


def test_a_kms_that_is_not_there_and_credentials_that_are_not_are_told(
    kms: Kms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = kms.key()
    with pytest.raises(KeyFaultError, match=r"127\.0\.0\.1:9"):
        AwsKms(AwsKey(key.arn, "http://127.0.0.1:9")).close(b"k", {})
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "nowhere"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(KeyFaultError, match="Unable to locate credentials"):
        AwsKms(key).close(b"k", {})
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(KeyFaultError, match=r"pip install 'triton-warden\[aws\]'"):
        AwsKms(key)


def test_no_variable_of_the_environment_leads_to_another_kms(kms: Kms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    cover = AwsKms(kms.key())
    assert cover.open(cover.name, cover.close(b"key", {"a": "b"}), {"a": "b"}) == b"key"


def test_credentials_that_are_renewed_in_their_file_are_taken(
    kms: Kms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a web identity, a process or the metadata renew them: here by a process that AWS's own configuration names."""
    seen = tmp_path / "count"
    helper = tmp_path / "helper"
    helper.write_text(
        f"import json,os,datetime\nn=os.path.exists({str(seen)!r}); open({str(seen)!r},'a').write('x')\n"
        "soon=datetime.datetime.now(datetime.UTC)+datetime.timedelta(seconds=1 if not n else 7200)\n"
        "print(json.dumps({'Version':1,'AccessKeyId':'A','SecretAccessKey':'S','Expiration':soon.isoformat()}))\n"
    )
    config = tmp_path / "aws"
    config.write_text(f"[default]\ncredential_process = {sys.executable} {helper}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    cover = AwsKms(kms.key())
    for _ in range(3):
        assert cover.close(b"key", {})
    assert seen.read_text() == "xx"


# --- the record ---------------------------------------------------------------------------------------------------


def test_a_dump_and_the_directory_are_unreadable_without_the_kms_and_an_erasure_ends_the_key_at_once(
    postgres: Server, kms: Kms, desk: Desk
) -> None:
    assert desk.opened() == EVERYBODY
    dump = postgres.snapshot(desk.dsn)
    kms.script = lambda *_: refusal("AccessDeniedException")
    with pytest.raises(KeyFaultError, match="AccessDenied"):
        desk.opened()
    kms.script = None
    assert desk.erase("alice").state == "pending"
    (done,) = desk.finish(erasing.AT + COPIES)
    assert done.state == "done"
    postgres.restore(dump, desk.dsn)
    assert desk.opened() == NO_ALICE  # today's directory, the whole KMS, and yesterday's database


def test_records_wait_while_the_kms_hangs_and_none_is_lost(
    kms: Kms, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.awskms.READ", 0.3)
    with Shipping(desk.journal, desk.dsn, desk.directory) as shipping:
        kms.process.send_signal(signal.SIGSTOP)
        try:
            desk.journal.append(*completed(call_id="during", tenant="cobalt"))
            wait_until(lambda: shipping.fault or "timeout" in str(shipping.shipper.status.last_error).lower())
        finally:
            kms.process.send_signal(signal.SIGCONT)
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows == 1)
        assert shipping.shipper.status.poisoned == 0
    assert shipping.fault is None
    assert desk.opened() == EVERYBODY | {"during": ""}


def test_the_commands_wrap_what_lay_there_before_and_what_another_key_wrapped(
    kms: Kms, dsn: str, tmp_path: Path
) -> None:
    desk = Desk(dsn, tmp_path)  # plain files
    desk.journal.append(*completed(call_id="b1", subject="bob"))
    desk.ship(1)
    config = write_config(tmp_path, dsn)
    text, run = config.read_text(), lambda *asked: CliRunner().invoke(app, [*asked, "--config", str(config)])
    done = run("master-keys", "wrap")
    assert (done.exit_code, "nor gcp is configured" in done.output) == (2, True)
    file = tmp_path / "tenant-keys/t-acme/1.key"
    plain = file.read_bytes()
    for key in (kms.key(), kms.key()):
        section = f"{{key: '{key.arn}', jurisdiction: EU, endpoint: '{key.endpoint}'}}"
        config.write_text(f"{text}  keys: {{directory: tenant-keys, aws: {section}}}\n")
        done = run("search", "--subject", "bob", "--tenant", "acme", "--json")  # before they are wrapped anew
        assert [json.loads(line)["call_id"] for line in done.stdout.splitlines()] == ["b1"], done.output
        for wrapped in (True, False):
            done = run("master-keys", "wrap", "--json")
            assert (done.exit_code, json.loads(done.stdout)["wrapped"] > 0) == (0, wrapped), done.output
        (told,) = map(json.loads, run("master-keys", "status", "--tenant", "acme", "--json").stdout.splitlines())
        assert (told["wrapped_under"], told["missing"]) == ({"1": key.arn}, [])
        assert plain not in file.read_bytes()
    kms.script = lambda act, what: refusal("NotFoundException") if what["KeyId"] != key.arn else None
    done = run("search", "--subject", "bob", "--tenant", "acme", "--json")  # the first may be deleted
    assert [json.loads(line)["call_id"] for line in done.stdout.splitlines()] == ["b1"], done.output
    kms.script = lambda *_: refusal("AccessDeniedException", "not authorized")
    done = run("search", "--subject", "bob", "--tenant", "acme")
    assert (done.exit_code, "not authorized" in done.output, REGION in done.output) == (3, True, True)
